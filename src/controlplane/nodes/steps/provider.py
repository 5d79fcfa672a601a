"""
Asking one provider what it can do, and which machines and clusters it has.
"""

import logging
from dataclasses import asdict

from controlplane.nodes.states import Deployed, ProviderCheck, ProviderRef
from controlplane.providers.errors import ProviderError, Unsupported
from controlplane.providers.toolbox import Toolbox

log = logging.getLogger(__name__)
DEPLOYED = frozenset({"deploying", "deployed"})
"""Phases of a machine on which a tenancy is, or is about to be."""


def check(provider: ProviderRef, tools: Toolbox) -> ProviderCheck:
    """
    What the provider said, or why it said nothing; never raises for anything the provider does.
    """
    try:
        return _ask(provider, tools)
    except ProviderError as error:
        return ProviderCheck(problem=f"{error.code}: {error.detail}"[:1000])
    except Exception as error:
        log.exception("provider check failed", extra={"provider_id": provider.id})
        return ProviderCheck(problem=f"internal: {type(error).__name__}")


def _ask(provider: ProviderRef, tools: Toolbox) -> ProviderCheck:
    said = asdict(tools.clusters(provider).capabilities())
    capabilities = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
    try:
        made = _list_clusters(provider, tools)
        if not hasattr(tools.adapter(provider), "list_machines"):
            return ProviderCheck(capabilities)
        listing = tools.machines(provider).list_machines()
    except Unsupported:
        return ProviderCheck(capabilities)
    except ProviderError as error:
        return ProviderCheck(capabilities, problem=f"{error.code}: {error.detail}"[:1000])
    refs = tuple(one.ref for one in listing.machines)
    deployed = tuple((one.ref, one.token) for one in listing.machines if one.token is not None and one.phase in DEPLOYED)
    return ProviderCheck(capabilities, refs=refs, complete=listing.complete, cluster_ids=made, deployed=deployed)


def is_deployed(provider: ProviderRef, ref: str, token: str, tools: Toolbox) -> bool:
    """
    Whether the machine, looked at by itself, is deployed under the token: a list may be older than it says. Raises any error of a provider.
    """
    view = tools.machines(provider).observe(ref)
    return view.token == token and view.phase in DEPLOYED


def end_deployment(one: Deployed, tools: Toolbox) -> None:
    """
    The provider was asked to end the deployment, as the node's own release does: under its own token, so that what has followed it stays.
    Raises any error of a provider.
    """
    tools.machines(one.provider).release(one.ref, one.allocation_id, accepted_at=one.release_accepted_at)


def _list_clusters(provider: ProviderRef, tools: Toolbox) -> tuple[str, ...]:
    """
    The clusters with our marks; none where the provider makes no clusters.
    """
    if not hasattr(tools.adapter(provider), "list_clusters"):
        return ()
    try:
        return tools.clusters(provider).list_clusters().cluster_ids
    except Unsupported:
        return ()
