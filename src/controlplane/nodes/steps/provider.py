"""
Asking one provider what it can do, and which machines and clusters it has.
"""

import logging
from dataclasses import asdict

from controlplane.nodes.states import ProviderCheck, ProviderRef
from controlplane.providers.errors import ProviderError, Unsupported
from controlplane.providers.toolbox import Toolbox

log = logging.getLogger(__name__)


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
    return ProviderCheck(capabilities, refs=refs, complete=listing.complete, cluster_ids=made)


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
