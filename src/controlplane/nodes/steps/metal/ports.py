"""
A machine's network ports and its tenant's network, where an operator told us how the ports are wired.
"""

import logging

from controlplane.kit.outcome import Outcome, Wait
from controlplane.nodes.cabling import Mend, SeenPort, SwitchLook, WatchedSwitch
from controlplane.nodes.states import Wire
from controlplane.nodes.steps.metal.sequence import POLL_S, Machine
from controlplane.providers.errors import ProviderError
from controlplane.providers.fabrics import Fabrics, NetworkSpec, PortRef, PortView
from controlplane.providers.toolbox import Toolbox

log = logging.getLogger(__name__)
LONGEST = 500
FAULT_OF_OURS = "internal"


def attach(machine: Machine) -> Outcome | None:
    """
    Every wired port was told to carry the tenant's network and no other.
    """
    tenancy = machine.node.tenancy
    assert tenancy is not None
    network = NetworkSpec(tenancy.network, tenancy.tenant_id, tenancy.segment)
    for wire in machine.node.wires:
        _fabric(wire, machine.tools).attach(_ref(wire), network, turn=machine.node.turn)
    return None


def joined(machine: Machine) -> Outcome | None:
    """
    Every wired port was seen to carry exactly the tenant's network.
    """
    tenancy = machine.node.tenancy
    assert tenancy is not None
    return _seen(machine, tenancy.segment, back_to="attach", words="{} of {} ports are on the tenant's network.")


def detach(machine: Machine) -> Outcome | None:
    """
    Every wired port was told to carry no tenant's network, and will not listen to anybody who decided otherwise before.
    """
    for wire in machine.node.wires:
        _fabric(wire, machine.tools).detach(_ref(wire), turn=machine.node.turn)
    return None


def apart(machine: Machine) -> Outcome | None:
    """
    Every wired port was seen to carry nothing.
    """
    return _seen(machine, None, back_to="detach", words="{} of {} ports carry nothing.")


def look(switch: WatchedSwitch, tools: Toolbox) -> SwitchLook:
    """
    What the switch does with its ports, by one call.
    """
    try:
        views = tools.fabric(switch.provider, switch.name).observe_ports(switch.name)
    except ProviderError as error:
        log.info("a switch did not tell of its ports", extra={"switch": switch.name, "code": error.code, "detail": error.detail})
        return SwitchLook(None, error.code)
    except Exception as error:
        log.exception("a look at a switch failed", extra={"switch": switch.name, "kind": type(error).__name__})
        return SwitchLook(None, FAULT_OF_OURS)
    return SwitchLook(tuple(SeenPort(view.ref.port, view.segment, view.strange[:LONGEST]) for view in views))


def tell(mend: Mend, tools: Toolbox) -> str:
    """
    The port was told what it should carry; empty, or the code of what went wrong.
    """
    try:
        fabric = _fabric(mend.wire, tools)
        if mend.off is not None:
            fabric.detach(_ref(mend.wire), only=mend.off, turn=mend.turn)
        elif mend.onto is None:
            fabric.detach(_ref(mend.wire), turn=mend.turn)
        if mend.onto is not None:
            network = NetworkSpec(mend.onto.name, mend.onto.tenant_id, mend.onto.segment)
            fabric.attach(_ref(mend.wire), network, turn=mend.turn)
    except ProviderError as error:
        place = {"node_id": mend.node_id, "switch": mend.wire.switch, "port": mend.wire.port}
        log.warning("a port could not be told", extra={**place, "code": error.code, "detail": error.detail})
        return error.code
    except Exception as error:
        place = {"node_id": mend.node_id, "switch": mend.wire.switch, "port": mend.wire.port}
        log.exception("telling a port failed", extra={**place, "kind": type(error).__name__})
        return FAULT_OF_OURS
    return ""


def take_back(mend: Mend, tools: Toolbox) -> None:
    """
    What `tell` put on the port, when it turns out to have been too late, is off again, unless somebody has decided of the port since.
    """
    if mend.onto is None:
        return
    try:
        _fabric(mend.wire, tools).detach(_ref(mend.wire), only=mend.onto.segment, turn=mend.turn)
    except ProviderError as error:
        place = {"node_id": mend.node_id, "switch": mend.wire.switch, "port": mend.wire.port}
        log.warning("a late attachment is left to the next look", extra={**place, "code": error.code, "detail": error.detail})


def _fabric(wire: Wire, tools: Toolbox) -> Fabrics:
    return tools.fabric(wire.provider, wire.switch)


def _ref(wire: Wire) -> PortRef:
    return PortRef(wire.switch, wire.port)


def _seen(machine: Machine, segment: int | None, *, back_to: str, words: str) -> Outcome | None:
    """
    None when all ports are as they should be; else the ports are told once more, for switches forget and people change them.
    """
    views: list[PortView] = [_fabric(wire, machine.tools).observe_port(_ref(wire)) for wire in machine.node.wires]
    good = [view for view in views if view.segment == segment and not view.strange]
    if len(good) == len(views):
        return None
    detail = "; ".join(f"{view.ref.switch}/{view.ref.port}: {view.strange or view.segment}" for view in views if view not in good)
    return Wait(words.format(len(good), len(views)), POLL_S, step=back_to, detail=detail)
