"""
Asking a provider which clusters it has that are not ours.
"""

import logging
from dataclasses import asdict

from controlplane.clusters.takeovers import Seen
from controlplane.nodes.states import ProviderRef
from controlplane.providers.adoption import Remark, Standing
from controlplane.providers.errors import ProviderError
from controlplane.providers.toolbox import Toolbox

log = logging.getLogger(__name__)


def list_standing(provider: ProviderRef, tools: Toolbox) -> tuple[Seen, ...] | None:
    """
    The clusters that the provider has and that are not ours; None where it hands over none, or did not answer: then nothing is learnt.
    """
    try:
        if not hasattr(tools.adapter(provider), "list_standing"):
            return None
        return tuple(_seen(one) for one in tools.adoption(provider).list_standing())
    except ProviderError as error:
        log.info("a provider does not list what stands there", extra={"provider_id": provider.id, "code": error.code})
        return None
    except Exception as error:
        log.exception("looking for clusters failed", extra={"provider_id": provider.id, "kind": type(error).__name__})
        return None


def _seen(one: Standing) -> Seen:
    return Seen(
        ref=one.ref,
        uid=one.uid,
        product=one.product,
        version=one.version,
        sets=tuple({"name": each.name, "instance_types": list(each.instance_types)} for each in one.sets),
        hosts=tuple(asdict(each) for each in one.hosts),
        obstacles=tuple(_told(each) for each in one.obstacles),
        notices=tuple(_told(each) for each in one.notices),
        distribution=one.distribution,
    )


def _told(remark: Remark) -> dict[str, str]:
    return {"code": remark.code, "message": remark.message}
