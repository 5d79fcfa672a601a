"""
What holds for every answer that a controller could give.
"""

import json
from http import HTTPStatus

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.redfish.answers import LONGEST_DETAIL, LONGEST_WISH_S, Reply, understand
from controlplane.providers.errors import Busy, NotFound, NotSent, Permanent, ProviderError, Unknown

SECRET = "hush-hush-1"
WORDS = st.sampled_from(
    ["error", "@Message.ExtendedInfo", "MessageId", "Message", "Severity", "code", "Base.1.8.Success", "OK", "Critical", SECRET]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4), max_leaves=12)
BODIES = JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40) | st.just(b"")
VALUES = st.text(max_size=12) | st.sampled_from(["30", "\u00b2", "-1", "99999999999", "Sat, 28 Nov 2026 10:00:00 GMT"])
HEADERS = st.dictionaries(st.sampled_from(["Retry-After", "Content-Type", "ETag"]), VALUES, max_size=3)


def reply(method: str, status: int, headers: dict[str, str], body: bytes) -> Reply:
    """The answer as the adapter reads it."""
    return understand(method, "/redfish/v1/Systems/1", status, headers, body, lambda said: said.replace(SECRET, "***"))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["GET", "POST", "PATCH", "DELETE"]), st.integers(200, 599), HEADERS, BODIES)
def test_every_answer_is_a_success_or_one_error_of_the_port(method: str, status: int, headers: dict[str, str], body: bytes) -> None:
    """Nothing breaks the reading; no failure is a success, no breakdown is final, and no secret is in the words."""
    said = reply(method, status, headers, body)
    problem = said.problem()
    assert problem is None or isinstance(problem, ProviderError)
    assert not isinstance(problem, NotSent)
    assert SECRET not in said.detail
    assert len(said.detail) <= LONGEST_DETAIL
    if status >= 300:
        assert problem is not None
    if isinstance(problem, Busy):
        assert 0 <= problem.retry_in_s <= LONGEST_WISH_S
    if isinstance(problem, NotFound):
        assert status == HTTPStatus.NOT_FOUND
    if status >= 500 and isinstance(problem, Permanent):
        assert status == HTTPStatus.NOT_IMPLEMENTED
    if status < 300 and problem is not None:
        assert isinstance(problem, Unknown | Busy)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["POST", "PATCH"]), st.integers(200, 204), st.sampled_from(["Critical", "Warning"]), st.text(max_size=10))
def test_an_error_inside_a_success_is_never_success(method: str, status: int, severity: str, code: str) -> None:
    """Whatever the status and whatever the code that we do not know."""
    entry = {"MessageId": f"Vendor.1.0.X{code}", "Severity": severity}
    for body in ({"error": {"@Message.ExtendedInfo": [entry]}}, {"@Message.ExtendedInfo": [entry]}):
        assert reply(method, status, {}, json.dumps(body).encode()).problem() is not None
