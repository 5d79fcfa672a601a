"""
Machines whose provider owns their whole life: the simulated region, whose ledger is the judge.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.faults import PRESETS
from controlplane.quotas import service as quotas
from tests.conftest import Database
from tests.factories.world import make_world
from tests.matrix.cases import COUNTS, Case
from tests.matrix.driven import PLENTY, forget_silence

REGION = """
fleet: matrix
region: test
templates:
  h100:
    instance_type: hgx-h100-8
    gpu_model: H100-SXM5-80GB
    gpus: 8
    memory_gib: 2048
    cpus: 192
    nvme_gib: 28800
    fabric_ports: 8
    power_w: 10200
    nvlink_domain: node
    firmware: {{bios: "2.4.1", bmc: "1.18.3"}}
sites:
  - name: one
    blocks:
      - {{template: h100, leaves: 1, racks_per_leaf: 1, nodes_per_rack: {count}}}
"""
CALLS = {
    "enrol": ("observe",),
    "inspect": ("inspect",),
    "qualify": ("qualify",),
    "wipe": ("wipe",),
    "deploy": ("deploy",),
    "release": ("release",),
    "replace": ("release", "wipe", "deploy"),
}
"""The provider's own calls in each operation; `power`, `attach` and `detach` are parts of others here."""


def faults_here(operation: str) -> list[str]:
    """
    The presets that can be played on the calls of the operation.
    """
    wanted = set(CALLS.get(operation, ()))
    return [name for name, preset in PRESETS.items() if wanted & set(preset.operations)]


class Script:
    """
    Says which fault is played on which machine, by the simulator's own rules.
    """

    def __init__(self, region: SimulatedRegion) -> None:
        self._region = region
        self.tenanted: set[str] = set()
        self.parts: dict[str, Rule] = {}

    def cast(self, one: str, case: Case, *, armed: bool = True) -> None:
        """The case is played on the node of this id; a cluster's is played on its node."""
        del armed
        ref = self._region.refs.get(one)
        if ref is None:
            return
        dice = random.Random(case.name)
        count, skip = dice.choice(COUNTS), dice.choice((0, 0, 0, 1))
        preset = PRESETS[case.fault]
        calls = [call for call in CALLS[case.operation] if call in preset.operations]
        call = calls[case.seed % len(calls)]
        rule = self._region.sim.play(case.fault, call, ref, count=count, after=skip, seed=case.seed)
        self.parts[one] = Rule(self._region.sim, rule, case)


class Rule:
    """
    A rule in force.
    """

    def __init__(self, sim: SimControl, number: int, case: Case) -> None:
        self._sim, self._number = sim, number
        self.case = case

    @property
    def played(self) -> int:
        """How often it was played."""
        return self._sim.played(self._number)


class SimulatedRegion:
    """
    A region of so many machines in one rack.
    """

    adapter = "simulated"
    kind = "slurm"
    reports = False

    def __init__(self, database: Database, folder: Path, count: int) -> None:
        fleet = folder / "fleet.yaml"
        fleet.write_text(REGION.format(count=count), encoding="utf-8")
        self.world = make_world(database, folder, fleet=str(fleet))
        self.sim = SimControl(self.world.region.world, now=self.world.clock)
        rows = self.world.rows("SELECT id, ref FROM nodes ORDER BY ref")
        self.ids = [row.id for row in rows]
        self.refs = {row.id: row.ref for row in rows}
        self.director = Script(self)
        self.world.do(self._raise_limits)

    def _raise_limits(self, session: Any) -> None:
        for scope_id in (self.world.keys.tenant_id, *(project for _, project in self.world.people)):
            scope = quotas.find_scope(session, scope_id)
            if scope is not None:
                for resource in ("gpus", "clusters", "operations"):
                    quotas.set_limit(session, scope, resource, PLENTY)  # type: ignore[arg-type]
        session.connection().exec_driver_sql(f"UPDATE quotas SET ceiling = {PLENTY} WHERE ceiling IS NOT NULL")

    def live(self) -> int:
        """The simulator lives by the clock."""
        forget_silence(self.world.tools)
        return 0

    def heal(self) -> None:
        """The provider is well, and workers are new processes."""
        self.sim.heal()
        self.world.tools.close()
        self.world.tools = self.world.toolbox()

    def broken(self) -> list[str]:
        """The ledger is judged at the end."""
        return []

    def remains(self) -> list[str]:
        """Traces on machines that nobody has."""
        return [f"I7 {ref}: still holds {self.sim.contents(ref)}" for ref in self.refs.values() if self.sim.contents(ref)]

    def close(self) -> None:
        """Nothing is held."""
        self.sim.close()
        self.world.tools.close()
        self.world.clock.stop()
