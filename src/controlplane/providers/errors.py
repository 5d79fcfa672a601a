"""
What an outside call can end in, other than its answer.

    ProviderError
    ├── Transient            worth another look later (`retry_in_s`)
    │   ├── NotSent          the request cannot have taken effect: safe to repeat
    │   ├── Unknown          it may or may not have taken effect: look before repeating
    │   │   └── UnknownBeyond    the peer answers; what is unknown is what something behind it did
    │   └── Busy             the peer asked for patience (429, 409 busy, maintenance)
    ├── Permanent            repeating the same request cannot help
    │   ├── Refused          the peer understood and said no
    │   ├── Unsupported      this peer, or this version of it, cannot do that
    │   └── Unusable         what we were told of the peer is no way to it: nobody was asked
    ├── NoCapacity           the peer has no room for it now
    ├── NotFound             the peer answered, completely, that it does not exist
    └── AuthFailed           our credential is not accepted

A timeout, a reset connection, a 5xx and an answer that cannot be read are `Unknown`; so is "200 with an error inside" for a call
that changes something. `NotFound` is raised only on a positive answer of the peer, never on the absence of one.
"""

from __future__ import annotations


class ProviderError(Exception):
    """
    An outside call did not return its answer.

    `code` is stable and may be shown to tenants. `detail` is the peer's own text: for operators and logs only.
    """

    code = "provider_error"

    def __init__(self, detail: str, *, code: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        if code is not None:
            self.code = code


class Transient(ProviderError):
    """
    A later look may find the peer in another mood; `retry_in_s` is the earliest sensible time.
    """

    code = "provider_unavailable"

    def __init__(self, detail: str, *, retry_in_s: float = 5.0, code: str | None = None) -> None:
        super().__init__(detail, code=code)
        self.retry_in_s = retry_in_s


class NotSent(Transient):
    """
    The request never reached the peer (name not resolved, connection refused): nothing happened.
    """

    code = "provider_unreachable"


class Unknown(Transient):
    """
    The request may have taken effect; only a look can tell.
    """

    code = "provider_outcome_unknown"


class UnknownBeyond(Unknown):
    """
    As Unknown, of something that the peer made and does not rule, such as a tenant's own cluster. The peer itself is not silent.
    """


class Busy(Transient):
    """
    The peer refused for now and said so.
    """

    code = "provider_busy"


class Permanent(ProviderError):
    """
    The same request will fail the same way for ever.
    """

    code = "provider_failed"


class Refused(Permanent):
    """
    The peer understood the request and turned it down.
    """

    code = "provider_refused"


class Unsupported(Permanent):
    """
    The peer, at its version and configuration, has no way to do this.
    """

    code = "provider_unsupported"


class Unusable(Permanent):
    """
    No adapter can be made of what its operator told us of the peer, which was not asked. It is mended by telling it anew.
    """


class NoCapacity(ProviderError):
    """
    The peer has no room for the request now.
    """

    code = "provider_no_capacity"


class NotFound(ProviderError):
    """
    The peer answered completely and the object is not there.
    """

    code = "provider_not_found"


class AuthFailed(ProviderError):
    """
    The peer does not accept our credential; an operator has to act.
    """

    code = "provider_auth_failed"
