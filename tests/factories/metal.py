"""
A bare machine on the bench: a management controller and switch that do what they are told, or lie as a test asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from controlplane.kit.outcome import Outcome, Wait
from controlplane.nodes.states import Access, Boot, Expected, NodeFacts, NodeSnapshot, ProviderRef, Rotation, Tenancy, Wire
from controlplane.nodes.steps import STEPS
from controlplane.providers.errors import AuthFailed, Refused, Unknown, Unsupported
from controlplane.providers.fabrics import FabricView, NetworkSpec, PortRef, PortView
from controlplane.providers.hardware import (
    BootSource,
    Checkup,
    Controller,
    Drive,
    Fact,
    Gpu,
    HardwareInventory,
    HardwareView,
    Logs,
    Nic,
    UpdateView,
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
    secret: str = ""
    """The password that lets in."""
    wrong: int = 0
    """Wrong passwords since the last right one: what controllers lock accounts for."""
    most_wrong: int = 0
    """The most of them in a row."""
    accounts: tuple[str, ...] = ("admin",)
    """Who can log in."""
    lacks: frozenset[str] = frozenset()
    """Methods that this controller does not offer: they raise Unsupported."""
    goes_wrong: dict[str, list[str]] = field(default_factory=dict)
    """By method, how its next calls end: `lost` takes effect and `dropped` does not, `refused` says no, `stubborn` says yes and forgets."""
    locked: bool = False
    """Whether the host is kept from its controller."""
    restarts: int = 0
    """How often the controller was restarted."""
    silent_looks: int = 0
    """How many looks it does not answer after a restart."""
    settings: dict[str, str] = field(default_factory=lambda: {"secure_boot": "off", "ProcTurbo": "Enabled"})
    """In force."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Accepted, in force from the next power-on."""
    restarting: int = 0
    """Looks it will not answer now."""
    flash: dict[str, Any] = field(default_factory=lambda: {"ends": "succeeded", "looks": 1, "when": "end"})
    """How an update goes: `ends` as succeeded, unknown or failed after so many `looks`; installed at the `end`, at the next `start`, or
    `never`; with `task` empty, without one to follow."""
    flashing: tuple[str, str] | None = None
    """Component and version that are being installed."""
    flashed: list[str] = field(default_factory=list)
    """The images that it fetched, in order."""

    def let_in(self, password: str) -> bool:
        """Whether it does, counted as controllers count."""
        self.wrong = 0 if password == self.secret else self.wrong + 1
        self.most_wrong = max(self.most_wrong, self.wrong)
        return password == self.secret

    def _enter(self, controller: Controller, method: str) -> str:
        if method in self.lacks:
            raise Unsupported(f"no {method} here")
        if self.restarting:
            self.restarting -= 1
            raise Unknown("no answer")
        if not self.let_in(controller.password):
            raise AuthFailed("wrong password")
        ways = self.goes_wrong.get(method, [])
        way = ways.pop(0) if ways else ""
        if way == "refused":
            raise Refused("no")
        if way == "dropped":
            raise Unknown("no answer")
        return way

    # the controller
    def list_accounts(self, controller: Controller) -> tuple[str, ...]:
        self._enter(controller, "list_accounts")
        return tuple(sorted(self.accounts))

    def set_password(self, controller: Controller, password: str) -> None:
        try:
            way = self._enter(controller, "set_password")
        except AuthFailed:
            if self.let_in(password):
                return  # as a repeat after a lost answer finds
            raise
        self.acts.append("password")
        self.secret = self.secret if way == "stubborn" else password
        if way == "lost":
            raise Unknown("no answer")

    def lock(self, controller: Controller, *, locked: bool) -> None:
        way = self._enter(controller, "lock")
        self.acts.append("lock" if locked else "unlock")
        if not locked and self.power_ != "off":
            self.unsafe.append("a door opened for a machine that runs")
        self.locked = self.locked if way == "stubborn" else locked
        if way:
            raise Unknown("it does not show it")

    def reset_controller(self, controller: Controller) -> None:
        way = self._enter(controller, "reset_controller")
        self.acts.append("restart")
        if self.power_ != "off":
            self.unsafe.append("a controller restarted under a machine that runs")
        self.restarts += 1
        self.restarting = self.silent_looks
        if way == "lost":
            raise Unknown("no answer")

    def read_settings(self, controller: Controller) -> dict[str, str]:
        self._enter(controller, "read_settings")
        return dict(self.settings)

    def change_settings(self, controller: Controller, wanted: dict[str, str]) -> None:
        way = self._enter(controller, "change_settings")
        self.acts.append(f"settings {sorted(wanted)}")
        if way != "stubborn":
            self.waiting |= wanted

    def update_firmware(self, controller: Controller, image_url: str, *, targets: tuple[str, ...] = ()) -> UpdateView:
        way = self._enter(controller, "update_firmware")
        self.acts.append("update")
        if self.flashing is None:
            component, version = image_url.rpartition("/")[2].split("-")
            self.flashing, self.flash["left"] = (component, version), self.flash["looks"]
            self.flashed.append(image_url)
        if way == "lost":
            raise Unknown("no answer")
        task = self.flash.get("task", "task 1")
        return UpdateView(task, "running" if task else "unknown")

    def observe_update(self, controller: Controller, task: str) -> UpdateView:
        self._enter(controller, "observe_update")
        self.flash["left"] -= 1
        if self.flash["left"] > 0:
            return UpdateView(task, "running", percent=50)
        if self.flash["when"] == "end" and self.flash["ends"] != "failed":
            self.install()
        if self.flash["when"] == "never" or self.flash["ends"] == "failed":
            self.flashing = None
        return UpdateView(task, self.flash["ends"], message="so it ended")

    def find_update(self, controller: Controller) -> UpdateView | None:
        self._enter(controller, "find_update")
        if self.flashing is None or self.flash["left"] <= 0 or self.flash["ends"] == "unknown":
            return None
        view = self.observe_update(controller, "task 1")
        return view if view.state == "running" else None

    def install(self) -> None:
        """What was being installed is there."""
        if self.flashing is not None:
            firmware = {**self.inventory.firmware, self.flashing[0]: self.flashing[1]}
            self.inventory, self.flashing = replace(self.inventory, firmware=firmware), None

    def observe(self, controller: Controller) -> HardwareView:
        self._enter(controller, "observe")
        return HardwareView(power=self.power_, media=self.media)  # type: ignore[arg-type]

    def power(self, controller: Controller, *, on: bool, force: bool = False) -> None:
        self._enter(controller, "power")
        self.acts.append("on" if on else "cut" if force else "off")
        if not on and not force and self.deaf:
            return
        self.power_ = "on" if on or self.stuck_on else "off"
        if on:
            self.settings |= self.waiting
            self.waiting = {}
            if self.flash["when"] == "start":
                self.install()

    def boot_from(self, controller: Controller, source: BootSource) -> None:
        self._enter(controller, "boot_from")
        self.acts.append(f"boot {source}")

    def insert_media(self, controller: Controller, url: str) -> None:
        self._enter(controller, "insert_media")
        if self.power_ != "off":
            self.unsafe.append("a seed for a machine that runs")
        self.acts.append("insert")
        self.media = url

    def eject_media(self, controller: Controller) -> None:
        self._enter(controller, "eject_media")
        self.acts.append("eject")
        self.media = None

    def take_inventory(self, controller: Controller) -> HardwareInventory:
        self._enter(controller, "take_inventory")
        return self.inventory

    def read_health(self, controller: Controller) -> tuple[Fact, ...]:
        del controller
        if self.mute:
            raise Unknown("no answer")
        return self.facts

    def check_up(self, controller: Controller) -> Checkup:
        return Checkup(self.power_, self.read_health(controller))  # type: ignore[arg-type]

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
        return Controller(ref, url, username, (sealed or b"").decode(), system)

    def seal_password(self, ref: str, password: str) -> bytes:
        del ref
        return password.encode()

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


def learnt(node: NodeSnapshot, facts: Any) -> NodeSnapshot:
    """
    The node as its row would be read next, with what a step learnt.
    """
    if not isinstance(facts, NodeFacts):
        return node
    if facts.rotation is not None:
        assert node.access is not None
        access, ended = node.access, facts.rotation not in {"prepared", "told"}
        following = access.sealed_next or facts.sealed_next
        now = access.sealed_next if facts.rotation == "rotated" else access.sealed
        refusals = node.rotation.refusals + facts.refused
        node = replace(
            node,
            access=replace(access, sealed=now, sealed_next=None if ended else following),
            rotation=Rotation(facts.rotation, 0 if ended else refusals, shared=node.rotation.shared),
        )
    return replace(
        node,
        inventory=facts.inventory if facts.inventory is not None else node.inventory,
        door=facts.door if facts.door is not None else node.door,
        update=facts.update if facts.update is not None else node.update,
        restarted_for_s=0.0 if facts.restarted else node.restarted_for_s,
    )


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
        node = replace(learnt(node, outcome.facts), step=step)
        if step != trail[-1]:
            trail.append(step)
    raise AssertionError(f"no end: {trail}")
