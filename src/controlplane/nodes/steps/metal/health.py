"""
Looking at machines through their controllers: their health, and their power where the same look tells it.
"""

import logging

from controlplane.health.controllers import class_of
from controlplane.nodes.states import Look, Watched
from controlplane.providers.errors import ProviderError
from controlplane.providers.hardware import Checkup
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
        hardware = tools.hardware(node.provider, node.id)
        if hasattr(hardware, "check_up"):
            seen: Checkup = hardware.check_up(controller)
        else:
            seen = Checkup("unknown", hardware.read_health(controller))
    except ProviderError as error:
        log.info("a controller did not tell its health", extra={"node_id": node.id, "code": error.code})
        return None
    except Exception as error:
        log.exception("a look at a controller failed", extra={"node_id": node.id, "kind": type(error).__name__})
        return None
    said = ((fact.name, class_of(fact.name, fact.health), fact.message) for fact in seen.facts)
    told = tuple((name, found, words[:LONGEST]) for name, found, words in said if found is not None)
    return Look(node.id, told, seen.power)
