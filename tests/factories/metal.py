"""
A bare machine on the bench: a management controller and switch that do what they are told, or lie as a test asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from controlplane.kit.outcome import Outcome, Wait
from controlplane.nodes.states import Access, Boot, Expected, NodeSnapshot, ProviderRef, Tenancy, Wire
from controlplane.nodes.steps import STEPS
from controlplane.providers.errors import Unknown
from controlplane.providers.fabrics import FabricView, NetworkSpec, PortRef, PortView
from controlplane.providers.hardware import (
    BootSource,
    Controller,
    Drive,
    Fact,
    Gpu,
    HardwareInventory,
    HardwareView,
    Logs,
    Nic,
)

NOW = datetime(2026, 3, 1, 10, tzinfo=UTC)
PROVIDER = ProviderRef("prv_bmc", "redfish", {}, None, 1)
FABRIC = ProviderRef("prv_net", "frr-evpn", {}, None, 1)
HELD = Tenancy("alc_1", "ten_1", "prj_1", "clu_1", "net-ten_1", 10001, "held", None)
WIRES = (Wire("p1", FABRIC, "leaf1", "swp1"), Wire("p2", FABRIC, "leaf2", "swp1"))
INVENTORY = HardwareInventory(
    uuid="0f0f",
    vendor="Acme",
    model="G8",
    serial="S1",
    cpus=224,
    memory_gib=2048,
    gpus=tuple(Gpu(f"GPU{n}", "NVIDIA H100 80GB HBM3", f"G{n}") for n in range(8)),
    nics=(Nic("p1", "02:00:00:00:00:01"),),
    drives=(Drive("d0", serial="D0", size_bytes=10**12), Drive("d1", serial="D1", size_bytes=10**12)),
    firmware={"BMC": "1.0"},
)


@dataclass
class Bench:
    """
    One machine, its controller and its switch ports; `acts` is everything that was asked of them, in order.
    """

    power_: str = "on"
    media: str | None = None
    inventory: HardwareInventory = INVENTORY
    ports: dict[tuple[str, str], int | None] = field(default_factory=dict)
    acts: list[str] = field(default_factory=list)
    stuck_on: bool = False
    deaf: bool = False
    """Whether the operating system does not shut down when it is asked to."""
    forgetful: int = 0
    """How many attaches the switch forgets."""
    facts: tuple[Fact, ...] = ()
    """What the controller says of its parts."""
    mute: bool = False
    """Whether it says nothing of them."""
    unsafe: list[str] = field(default_factory=list)
    """What was asked in an order that would let one tenant meet another's data."""

    # the controller
    def observe(self, controller: Controller) -> HardwareView:
        del controller
        return HardwareView(power=self.power_, media=self.media)  # type: ignore[arg-type]

    def power(self, controller: Controller, *, on: bool, force: bool = False) -> None:
        del controller
        self.acts.append("on" if on else "cut" if force else "off")
        if not on and not force and self.deaf:
            return
        self.power_ = "on" if on or self.stuck_on else "off"

    def boot_from(self, controller: Controller, source: BootSource) -> None:
        del controller
        self.acts.append(f"boot {source}")

    def insert_media(self, controller: Controller, url: str) -> None:
        del controller
        if self.power_ != "off":
            self.unsafe.append("a seed for a machine that runs")
        self.acts.append("insert")
        self.media = url

    def eject_media(self, controller: Controller) -> None:
        del controller
        self.acts.append("eject")
        self.media = None

    def take_inventory(self, controller: Controller) -> HardwareInventory:
        del controller
        return self.inventory

    def read_health(self, controller: Controller) -> tuple[Fact, ...]:
        del controller
        if self.mute:
            raise Unknown("no answer")
        return self.facts

    def read_log(self, controller: Controller, *, after: str = "") -> Logs:
        del controller, after
        return Logs((), complete=True)

    # the fabric
    def attach(self, ref: PortRef, network: NetworkSpec, *, turn: int = 0) -> None:
        del turn
        self.acts.append(f"attach {ref.switch}")
        if self.power_ == "on":
            self.unsafe.append("a running machine joins a tenant's network")
        if self.forgetful:
            self.forgetful -= 1
            return
        self.ports[ref.switch, ref.port] = network.segment

    def detach(self, ref: PortRef, *, only: int | None = None, turn: int = 0) -> None:
        del turn
        self.acts.append(f"detach {ref.switch}")
        if only in {None, self.ports.get((ref.switch, ref.port))}:
            self.ports[ref.switch, ref.port] = None

    def observe_port(self, ref: PortRef) -> PortView:
        return PortView(ref, self.ports.get((ref.switch, ref.port)), up=True)

    def observe_ports(self, switch: str) -> tuple[PortView, ...]:
        return tuple(PortView(PortRef(*one), segment, up=True) for one, segment in sorted(self.ports.items()) if one[0] == switch)

    def observe_fabric(self) -> FabricView:
        return FabricView(
            tuple(PortView(PortRef(*one), segment, up=True) for one, segment in sorted(self.ports.items())), complete=True
        )


@dataclass
class Tools:
    """
    What steps are given: every provider is the bench.
    """

    bench: Bench

    def hardware(self, provider: Any, ref: str) -> Bench:
        del provider, ref
        return self.bench

    def fabric(self, provider: Any, switch: str) -> Bench:
        del provider, switch
        return self.bench

    def controller(self, ref: str, *, url: str, system: str, username: str, sealed: bytes | None) -> Controller:
        del sealed
        return Controller(ref, url, username, "", system)

    def seed_url(self, boot_id: str) -> str:
        return f"http://cp/v1/boot/{boot_id}.token/seed.iso"


def bare_node(state: str, **changes: Any) -> NodeSnapshot:
    """
    A node that we drive through its controller.
    """
    node = NodeSnapshot(
        id="nod_1",
        state=state,
        step="",
        ref="rack1-07",
        provider=PROVIDER,
        expected=Expected("H100-SXM5-80GB", 8, 2048),
        task_id="tsk_1",
        tenancy=HELD if state in {"deploying", "releasing"} else None,
        access=Access("https://10.0.0.7"),
        boot=Boot("bot_1", "made", 5.0),
        wires=WIRES,
    )
    return replace(node, **changes)


def drive(node: NodeSnapshot, bench: Bench, *, each_twice: bool = False, most: int = 60) -> tuple[Outcome, list[str]]:
    """
    The outcome when the node leaves its state or waits for something from outside, and the steps it went through. With `each_twice`
    every step is taken twice, as after a crash between the call and its record.
    """
    tools, trail = Tools(bench), [node.step]
    for _ in range(most):
        outcome = STEPS[node.state](node, tools)
        if each_twice:
            outcome = STEPS[node.state](node, tools)
        if not isinstance(outcome, Wait):
            return outcome, trail
        step = node.step if outcome.step is None else outcome.step
        if step == trail[-1] and outcome.retry_in_s > 0:
            return outcome, trail
        node = replace(node, step=step)
        trail.append(step)
    raise AssertionError(f"no end: {trail}")
