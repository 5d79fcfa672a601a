"""
A machine's network ports and its tenant's network, where an operator told us how the ports are wired.
"""

from controlplane.kit.outcome import Outcome, Wait
from controlplane.nodes.steps.metal.sequence import POLL_S, Machine
from controlplane.providers.fabrics import NetworkSpec, PortRef


def attach(machine: Machine) -> Outcome | None:
    """
    Every wired port was told to carry the tenant's network and no other.
    """
    tenancy = machine.node.tenancy
    assert tenancy is not None
    network = NetworkSpec(tenancy.network, tenancy.tenant_id, tenancy.segment)
    for wire in machine.node.wires:
        machine.tools.fabric(wire.provider).attach(PortRef(wire.switch, wire.port), network)
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
    Every wired port was told to carry no tenant's network.
    """
    for wire in machine.node.wires:
        machine.tools.fabric(wire.provider).detach(PortRef(wire.switch, wire.port))
    return None


def apart(machine: Machine) -> Outcome | None:
    """
    Every wired port was seen to carry nothing.
    """
    return _seen(machine, None, back_to="detach", words="{} of {} ports carry nothing.")


def _seen(machine: Machine, segment: int | None, *, back_to: str, words: str) -> Outcome | None:
    """
    None when all ports are as they should be; else the ports are told once more, for switches forget and people change them.
    """
    views = [machine.tools.fabric(wire.provider).observe_port(PortRef(wire.switch, wire.port)) for wire in machine.node.wires]
    good = [view for view in views if view.segment == segment and not view.strange]
    if len(good) == len(views):
        return None
    detail = "; ".join(f"{view.ref.switch}/{view.ref.port}: {view.strange or view.segment}" for view in views if view not in good)
    return Wait(words.format(len(good), len(views)), POLL_S, step=back_to, detail=detail)
