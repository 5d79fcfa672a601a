"""
The life of a node as data, and the frozen values its steps get and give. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.boots.states import DiskImage
from controlplane.catalog.states import Parts
from controlplane.kit.states import State, StateTable

ASIDE = frozenset({"quarantined", "maintenance"})
TAKEN = frozenset({"reserved", "checking", "inspecting", "updating", "adopting"})
ACTING = frozenset({"restarting", "stopping", "starting", "reinstalling", "rescuing"})
"""A tenant's machine on which the tenant's action is under way."""
TENANTS = ACTING | {"active", "stopped", "rescued"}
"""Deployed for a tenant and not given back: whatever it is at, a release comes first."""
DARK = frozenset({"restarting", "stopping", "stopped", "starting"})
"""A tenant's machine that is without power because its tenant wants it so: what its controller says of it then is no news."""
LIT = frozenset({"active", "rescued"})
"""A tenant's machine that should have power: nobody asked us to switch it off."""

NODE_STATES = StateTable(
    kind="node",
    states=(
        State("enrolled", "moving", frozenset({"inspecting"}) | ASIDE, 600, says="Known by name; nothing measured yet."),
        State("inspecting", "moving", frozenset({"qualifying", "updating"}) | ASIDE, 3600, "quarantined", says="It is inspected."),
        State("updating", "moving", frozenset({"inspecting"}) | ASIDE, 4 * 3600, "quarantined", says="Its firmware is updated."),
        State("qualifying", "moving", frozenset({"cleaning"}) | ASIDE, 4 * 3600, "quarantined", says="Acceptance checks run."),
        State("available", "settled", TAKEN | ASIDE, says="Wiped, checked and free."),
        State(
            "checking",
            "settled",
            frozenset({"available"}),
            keeps_trying=True,
            says="Lent to a fabric check; free again when the check has seen it let go.",
        ),
        State(
            "adopting",
            "settled",
            frozenset({"active"}) | ASIDE,
            says="In use by a cluster that is being taken over, or let go again; nothing is done to it.",
        ),
        State("reserved", "moving", frozenset({"deploying", "releasing"}), 600, "releasing", says="Chosen for a cluster."),
        State(
            "deploying", "moving", frozenset({"active", "releasing"}), 2 * 3600, "releasing", says="Being made ready for a tenant."
        ),
        State(
            "active",
            "settled",
            frozenset({"restarting", "stopping", "reinstalling", "rescuing", "adopting", "releasing"}),
            says="A tenant's.",
        ),
        State("restarting", "moving", frozenset({"active", "releasing"}), 3600, "active", says="Being restarted for its tenant."),
        State("stopping", "moving", frozenset({"stopped", "active", "releasing"}), 3600, "active", says="Being switched off."),
        State(
            "stopped",
            "settled",
            frozenset({"starting", "reinstalling", "rescuing", "releasing"}),
            says="Its tenant's and switched off, at the tenant's wish or by an action that failed.",
        ),
        State("starting", "moving", frozenset({"active", "stopped", "releasing"}), 3600, "stopped", says="Being switched on."),
        State(
            "reinstalling",
            "moving",
            frozenset({"active", "stopped", "releasing"}),
            2 * 3600,
            "stopped",
            says="Being made ready anew for the same tenant.",
        ),
        State(
            "rescuing",
            "moving",
            frozenset({"rescued", "stopped", "releasing"}),
            2 * 3600,
            "stopped",
            says="A rescue system is being started for its tenant.",
        ),
        State(
            "rescued",
            "settled",
            frozenset({"starting", "stopping", "reinstalling", "releasing"}),
            says="Its tenant's, in a rescue system.",
        ),
        State(
            "releasing",
            "moving",
            frozenset({"cleaning"}),
            3600,
            None,
            True,
            "Networks detached, then powered off; it goes on only once it was seen released.",
        ),
        State(
            "cleaning",
            "moving",
            frozenset({"available"}) | ASIDE,
            4 * 3600,
            "quarantined",
            says="Being wiped; the wipe is verified.",
        ),
        State(
            "quarantined",
            "settled",
            frozenset({"inspecting", "updating", "adopting", "maintenance", "repairing", "retired"}),
            says="Out of use until a person decides.",
        ),
        State(
            "maintenance",
            "settled",
            frozenset({"inspecting", "updating", "adopting", "quarantined", "repairing", "retired"}),
            says="Taken out on purpose.",
        ),
        State("repairing", "settled", frozenset({"inspecting", "quarantined", "retired"}), says="With whoever repairs it."),
        State("retired", "final", says="Gone from the fleet."),
    ),
)


def host_name(own_id: str) -> str:
    """
    What a machine calls itself by this id: its instance's while it is a tenant's, which is never used again; else its node's.
    """
    return own_id.replace("_", "-")


@dataclass(frozen=True, slots=True)
class ProviderRef:
    """
    What a step needs to reach a provider; secrets stay sealed until the adapter is built.
    """

    id: str
    """`prv_…`."""
    adapter: str
    """Entry point name."""
    config: dict[str, Any]
    """Plain settings."""
    sealed: bytes | None
    """Sealed secrets."""
    version: int
    """Changes when any of it does."""
    job_features: tuple[str, ...] | None = None
    """What jobs may ask of it, as it said when it was last asked; None where it has not said."""
    volumes: tuple[str, ...] = ()
    """Names of what jobs can mount, as it said."""
    mig: Mapping[str, int] = field(default_factory=dict)
    """MIG profile to the most that one of its nodes has of it, as it said."""
    managed_work: tuple[str, ...] = ()
    """What work of ours runs in clusters whose control planes it keeps, as it said."""
    only_in: Mapping[str, str] = field(default_factory=dict)
    """Features that only its clusters of one kind have: by feature, the kind, as it said."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """
    The allocation that holds a node.
    """

    allocation_id: str
    """Token at the provider."""
    tenant_id: str
    """Whose."""
    project_id: str
    """For which project."""
    cluster_id: str
    """For which cluster."""
    network: str
    """Tenant network."""
    segment: int
    """The network's number in fabrics."""
    state: str
    """held, active or releasing."""
    release_accepted_at: datetime | None
    """When giving it back was accepted."""


@dataclass(frozen=True, slots=True)
class Access:
    """
    How a bare machine's management controller is reached; the secret stays sealed until a call is made.
    """

    url: str
    """Root of the controller."""
    system: str = ""
    """The machine among the controller's systems; empty where there is one."""
    username: str = ""
    """Account; empty: the provider's."""
    sealed: bytes | None = None
    """Sealed password; None: the provider's."""
    sealed_next: bytes | None = None
    """The sealed password that is to take its place; while there is one, either may be the one that lets us in."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """
    How far a controller is on its way to a new password.
    """

    state: str = ""
    """As in ROTATIONS."""
    refusals: int = 0
    """How often in a row it let us in with neither password."""
    shared: bool = False
    """Whether other nodes are reached through the same controller: a new password would lock them out."""


ROTATIONS: Mapping[str, str] = {
    "": "Its password was never changed by the control plane.",
    "due": "It gets a new password when the node is inspected or wiped next, or at once where an operator asked.",
    "prepared": "A new password is stored; the controller may or may not have it.",
    "told": "The controller took the new password; a login with it comes next.",
    "rotated": "It has a password of its own that nobody else knows.",
    "not_supported": "It cannot change passwords, or we use no account on it: it keeps the password that it has.",
    "refused": "It refused a new password: it keeps the one that it has.",
    "shared": "Other nodes are reached through it: its password is changed by hand.",
    "off": "The provider's settings leave passwords to somebody else (`rotate_passwords`).",
}
"""What each state of a rotation means, in words for operators."""
DOORS: Mapping[str, str] = {
    "": "The way from the host to its controller was never touched.",
    "locking": "The way is being locked.",
    "locked": "The host has no way to its controller.",
    "unlocked": "The way is open, for nobody but us holds the host.",
    "not_supported": "The controller has no switch for the way: a tenant's host can reach it.",
    "unsure": "It was told to unlock and does not show that it did.",
}
"""What each state of the way between a host and its controller means, in words for operators."""
NOTEWORTHY = frozenset({"not_supported", "refused", "shared", "off", "unsure"})
"""States of both that operators are shown as findings."""


@dataclass(frozen=True, slots=True)
class Update:
    """
    How far a node's firmware is on its way to what is wanted.
    """

    component: str = ""
    """Which component is being updated; empty: none was chosen yet."""
    task: str = ""
    """The controller's name of the task; empty: it gave none."""
    tries: int = 0
    """How often this component's image was sent."""
    since_s: float = 0.0
    """When the present part of it began, counted from when the node came into its state."""
    outcome: str = ""
    """How the task ended: succeeded or unknown; empty while it runs."""
    installed: Mapping[str, str] = field(default_factory=dict)
    """Component to the version that was installed, and seen, since somebody last asked for anything."""


@dataclass(frozen=True, slots=True)
class Wire:
    """
    Where one of a node's network ports ends.
    """

    name: str
    """The machine's name of it."""
    provider: ProviderRef
    """The fabric."""
    switch: str
    """The switch by the fabric's name."""
    port: str
    """The port by the switch's name."""


@dataclass(frozen=True, slots=True)
class Watched:
    """
    A machine whose controller is to be looked at.
    """

    id: str
    """`nod_…`."""
    provider: ProviderRef
    """The kind of controller."""
    access: Access
    """How it is reached."""


@dataclass(frozen=True, slots=True)
class Look:
    """
    What a controller said of its machine.
    """

    node_id: str
    """Which machine."""
    said: tuple[tuple[str, str, str], ...]
    """(check, class, words) of everything it knows."""
    power: str = "unknown"
    """`on`, `off`, or `unknown`: also where it did not tell."""


@dataclass(frozen=True, slots=True)
class Boot:
    """
    The boot that is under way on a machine, as its own reports tell.
    """

    id: str
    """`bot_…`."""
    state: str
    """made, fetched, reporting, ready, failed or ended."""
    age_s: float
    """Since it was made."""
    ready_at: datetime | None = None
    """When everything was reported good."""
    ready_for_s: float = 0.0
    """Since then."""
    failure: str = ""
    """Stable code and words of what went wrong."""
    checks: tuple[dict[str, str], ...] = ()
    """What a check or wipe boot reported: [{name, result, detail}]."""
    burn_in: Mapping[str, bool] = field(default_factory=dict)
    """The tests of a check, each with whether the node may not do without it."""
    outputs: tuple[tuple[str, str], ...] = ()
    """(test, why its output cannot be used), the latter empty where it can; of each output that came."""
    under: tuple[str, ...] = ()
    """What tools measured in this boot that is not good enough, in words."""
    purpose: str = ""
    """deploy, wipe, check, rescue, install or fabric."""
    image: DiskImage | None = None
    """What it writes to the disk, or what was written and it starts from."""
    allocation_id: str | None = None
    """For whom it is deployed."""


@dataclass(frozen=True, slots=True)
class Expected:
    """
    What was bought, from the catalog.
    """

    gpu_model: str
    """As in the catalog."""
    gpus: int
    """Per node."""
    memory_gib: int
    """Main memory."""
    parts: Parts = field(default_factory=Parts)
    """Everything else that a machine of its type must have; only told for inspections and updates."""
    serial: str | None = None
    """The serial number that the operator expects."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """
    All that a step of a node may know.
    """

    id: str
    """`nod_…`."""
    state: str
    """Where it stands."""
    step: str
    """Part of the state."""
    ref: str
    """Its name at the provider."""
    provider: ProviderRef
    """Who drives it."""
    expected: Expected
    """What it should be."""
    task_id: str | None = None
    """Token of the inspection, qualification or wipe under way."""
    tenancy: Tenancy | None = None
    """Who holds it."""
    cancel: bool = False
    """Whether its allocation was given back while it was being deployed."""
    health: str = "ok"
    """Worst class of its open reports."""
    state_for_s: float = 0.0
    """How long it has been in its state."""
    access: Access | None = None
    """Its controller, where we drive the machine ourselves."""
    boot: Boot | None = None
    """The boot that was begun last, where the machine reports to us."""
    wires: tuple[Wire, ...] = ()
    """Its ports, where an operator told us how they are wired."""
    turn: int = 0
    """When it was claimed, as its switches order what they are told of its ports; 0 without ports."""
    inventory: dict[str, Any] = field(default_factory=dict)
    """What inspection found: the baseline that a wiped machine is compared with."""
    rotation: Rotation = field(default=Rotation())
    """How far its controller's password is on its way to another."""
    door: str = ""
    """As in DOORS."""
    restarted_for_s: float | None = None
    """Since its controller took our word to restart; None: never."""
    update: Update = field(default_factory=Update)
    """How far its firmware is on its way to what is wanted."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """
    What a step learnt and `apply` stores with the move.
    """

    task_id: str | None = None
    """A token to remember before the call that uses it."""
    inventory: dict[str, Any] | None = None
    """What was found, with `findings`."""
    wipe_id: str | None = None
    """The wipe that is reported on."""
    wipe_finished_at: datetime | None = None
    """When it finished."""
    wipe_verified: bool = False
    """Whether it counts."""
    checks: tuple[dict[str, str], ...] = field(default=())
    """[{name, result, detail}] of a wipe or a qualification."""
    rotation: str | None = None
    """Where the rotation stands now, as in ROTATIONS; `rotated` makes the next password the current one."""
    sealed_next: bytes | None = field(default=None, repr=False)
    """With `prepared`: the sealed password to be told. One that is stored already stays."""
    refused: bool = False
    """Whether the controller let us in with neither password."""
    door: str | None = None
    """Where the way from the host to its controller stands now, as in DOORS."""
    restarted: bool = False
    """Whether the controller took our word to restart."""
    update: Update | None = None
    """How far the update of its firmware is now."""
    installed: bool = False
    """Whether the machine reported its tenant's image written and read back: the boot that follows is from its disk."""


@dataclass(frozen=True, slots=True)
class Deployed:
    """
    A deployment at a provider whose allocation has ended.
    """

    provider: ProviderRef
    """Where."""
    ref: str
    """The machine's name there."""
    allocation_id: str
    """Its token there."""
    release_accepted_at: datetime
    """When giving it back was accepted."""


@dataclass(frozen=True, slots=True)
class ProviderCheck:
    """
    What came of asking a provider how it is.
    """

    capabilities: dict[str, Any] | None = None
    """What it said it can do; None when it did not answer."""
    problem: str = ""
    """Why there was no answer, in the peer's words; for operators."""
    refs: tuple[str, ...] | None = None
    """The machines it listed; None when it listed none at all."""
    complete: bool = False
    """Whether the list proves that what is not on it is not there."""
    cluster_ids: tuple[str, ...] = ()
    """The clusters with our marks that it listed."""
    deployed: tuple[tuple[str, str], ...] = ()
    """(machine, allocation) of the deployments with our marks that it listed."""
