"""
Looking at the health of machines through their controllers.
"""

import logging

from controlplane.health.controllers import class_of
from controlplane.nodes.states import Look, Watched
from controlplane.providers.errors import ProviderError
from controlplane.providers.toolbox import Toolbox

log = logging.getLogger(__name__)
LONGEST = 500


def look(node: Watched, tools: Toolbox) -> Look | None:
    """
    What the controller says of its machine, as (check, class, words); None when it did not answer: one look that failed says nothing.
    """
    access = node.access
    controller = tools.controller(node.id, url=access.url, system=access.system, username=access.username, sealed=access.sealed)
    try:
        facts = tools.hardware(node.provider, node.id).read_health(controller)
    except ProviderError as error:
        log.info("a controller did not tell its health", extra={"node_id": node.id, "code": error.code})
        return None
    except Exception as error:
        log.exception("a look at a controller failed", extra={"node_id": node.id, "kind": type(error).__name__})
        return None
    said = ((fact.name, class_of(fact.name, fact.health), fact.message) for fact in facts)
    return Look(node.id, tuple((name, found, words[:LONGEST]) for name, found, words in said if found is not None))
