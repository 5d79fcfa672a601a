"""
What must end well or with a person however bad it is: power that goes in any part of a wipe, user-data that breaks every boot, machines
that speak when they should not, and whoever asks for another's metadata.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.boots import reporting
from controlplane.boots import service as boots
from controlplane.boots.states import Facts
from controlplane.clusters import service as clusters
from controlplane.kit.errors import NotFound
from controlplane.kit.secrets import Sealer
from controlplane.nodes.states import NodeSnapshot
from controlplane.nodes.steps.metal.cleaning import ACTS
from controlplane.providers.errors import NotSent
from controlplane.web.limits import Buckets
from tests.conftest import Database
from tests.factories.boots import LINKS, Answer, Booting, Machine, ask, booting
from tests.factories.world import MASTER_KEY
from tests.matrix.cases import Case
from tests.matrix.driven import Rack
from tests.matrix.life import Life
from tests.matrix.playing import FaultyController
from tests.matrix.run import play

BREAKS = ("power goes", "reset", "controller gone")
GONE_S = 1200.0
PROBES = 10_000 if os.environ.get("FAULT_MATRIX") == "full" else 1_500
ADDRESSES = ("10.9.0.11", "10.9.0.12", "10.9.0.13")
NAMES = ("meta-data", "user-data", "seed.iso", "files")
PATHS = ("meta-data/instance-id", "meta-data/local-hostname", "meta-data/tags/instance/team", "user-data")


class Interrupted(Rack):
    """
    A rack whose machines are each interrupted in one act of the wipe that follows a tenancy.
    """

    def __init__(self, database: Database, folder: Path, breaks: list[tuple[str, str]]) -> None:
        super().__init__(database, folder, len(breaks))
        self.breaks = dict(zip(self.ids, breaks, strict=True))
        self.gone: dict[str, Any] = {}
        self.played: Counter[tuple[str, str]] = Counter()

    def before_step(self, node: NodeSnapshot) -> None:
        """Once, in the act that was chosen for the machine."""
        wanted = self.breaks.get(node.id)
        if wanted is None or node.state != "cleaning" or node.id not in self.director.tenanted:
            return
        act, how = wanted
        if (node.step or ACTS[0].name) != act:
            return
        del self.breaks[node.id]
        self.played[wanted] += 1
        machine = self.site.machines[node.id]
        if how == "power goes":
            machine.switch(on=False)
        elif how == "reset":
            machine.restart()
        else:
            self.gone[node.id] = self.world.clock()

    def hardware(self, provider: Any, ref: str) -> Any:
        """The machine's controller, while it answers."""
        since = self.gone.get(ref)
        if since is not None and (self.world.clock() - since).total_seconds() < GONE_S:
            raise NotSent("connection refused")
        return FaultyController(self.site.machines[ref], self.director)


def deploy_to_all(ground: Rack, **login: Any) -> Life:
    """
    A life of the ground in which the first tenant has ordered every machine.
    """
    life = Life(ground, [])
    life._rest("qualified")
    life._order_all(0, len(ground.ids))
    life._rest("deployed")
    life._remember_tenants()
    return life


def states(ground: Rack) -> dict[str, int]:
    """
    How many nodes stand in which state.
    """
    rows = ground.world.rows("SELECT state, count(*) AS n FROM nodes WHERE id = ANY(:ids) GROUP BY state", ids=ground.ids)
    return {row.state: row.n for row in rows}


def test_power_that_goes_in_any_act_of_a_wipe(database: Database, tmp_path: Path) -> None:
    """Cut, reset or with a controller that is away, in each act: wiped in the end or put aside with a reason, never offered unwiped."""
    acts = [one.name for one in ACTS if not one.name.endswith("-again")]
    ground = Interrupted(database, tmp_path, [(act, how) for act in acts for how in BREAKS])
    try:
        life = deploy_to_all(ground)
        assert states(ground) == {"active": len(ground.ids)}
        life._delete_all()
        life._rest("given back")
        assert sum(ground.played.values()) == len(ground.ids), ground.breaks
        assert life.verdict.broken == []
        assert set(states(ground)) <= {"available", "quarantined"}
        assert states(ground)["available"] > len(ground.ids) // 2
        life._come_back()
        life._order_all(1, len(ground.ids))
        life._rest("deployed for the next")
        assert life.verdict.broken == []
        assert states(ground) == {"active": len(ground.ids)}
    finally:
        ground.close()


def test_user_data_that_breaks_every_boot_ends(database: Database, tmp_path: Path) -> None:
    """The order fails after a few nodes with words, the console of each boot is kept, and the rest of the fleet is left alone."""
    ground = Rack(database, tmp_path, 8)
    try:
        life = Life(ground, [])
        life._rest("qualified")
        for node_id in ground.ids:
            ground.director.cast(node_id, Case("bare", "deploy", "fails_but_calls", 0))
        ground.voices.console = b"cloud-init: runcmd failed: exit 7\n"
        life._order(0, "broken")
        life._rest("ended")
        (cluster,) = ground.world.rows("SELECT state, reason, issues FROM clusters")
        assert (cluster.state, cluster.issues[0]["code"]) == ("failed", "deploy_failed")
        assert "could not be deployed" in cluster.issues[0]["message"]
        tried = ground.world.rows("SELECT id, failure FROM boots WHERE purpose = 'deploy'")
        assert len(tried) == 3
        for boot in tried:
            console = ground.world.do(lambda s, one=boot.id: boots.console_of(s, one, 0))
            assert console.data == ground.voices.console
            assert "cloud-init" in boot.failure
        assert states(ground) == {"available": 8}
        assert ground.world.rows("SELECT count(*) FROM node_holds WHERE lifted_at IS NULL") == [(3,)]
        assert ground.world.rows("SELECT sum(used) FROM quotas WHERE resource IN ('gpus', 'clusters')") == [(0,)]
        assert life.verdict.broken == []
    finally:
        ground.close()


def test_a_machine_that_speaks_after_its_tenant_left(database: Database, tmp_path: Path) -> None:
    """The boot of a tenancy that is over takes no phone-home, no report and no console, and gives no user-data, whatever its state was."""
    ground = Rack(database, tmp_path, 1)
    try:
        life = deploy_to_all(ground)
        (boot,) = ground.world.rows("SELECT id, facts->>'instance_id' AS instance FROM boots WHERE purpose = 'deploy'")
        tenant, project = ground.world.people[0]
        (cluster,) = ground.world.rows("SELECT id FROM clusters")
        ground.world.do(lambda s: clusters.delete_cluster(s, tenant, project, cluster.id, lambda _: None))
        for _ in range(4):
            ground.world.tick()
        for work in (
            lambda s: reporting.phone_home(s, boot.id, {"instance_id": boot.instance}),
            lambda s: reporting.take_console(s, boot.id, b"late", None),
            lambda s: reporting.content_for(s, Sealer.from_base64(MASTER_KEY), LINKS, boot.id),
        ):
            with pytest.raises(NotFound):
                ground.world.do(work)
        life._rest("wiped")
        assert states(ground) == {"available": 1}
    finally:
        ground.close()


def test_an_inspection_that_fails_ends(database: Database) -> None:
    """A provider that gave up reading an inventory is not waited for: the node is put aside with the reason, and comes back later."""
    verdict = play(database, [Case("ironic", "inspect", "fails", 1)])
    assert verdict.broken == []
    assert [(one.person, "could not read its inventory" in one.words) for one in verdict.ended] == [(True, True)]


@pytest.fixture
def ground(database: Database, tmp_path: Path) -> Iterator[Booting]:
    """Three machines whose addresses are believed."""
    with booting(database, tmp_path, metadata_networks=("10.9.0.0/16",), log_level="WARNING") as one:
        yield one


def test_no_machine_is_given_anothers_metadata(ground: Booting) -> None:
    """Thousands of requests with tokens, sessions, addresses and headers of three machines mixed: only one's own is ever answered."""
    machines = [
        ground.begin(number, facts=Facts(f"host-canary-{number}", address=address, tags={"team": f"tag-canary-{number}"}))
        for number, address in enumerate(ADDRESSES)
    ]
    marks = [
        (one.boot_id.encode(), f"host-canary-{number}".encode(), f"tag-canary-{number}".encode())
        for number, one in enumerate(machines)
    ]
    unhurried = Buckets(1e9, 10**9, clock=time.monotonic)
    ground.app.state.boots = replace(ground.app.state.boots, budget=unhurried)
    chance = random.Random(11)
    seen: Counter[tuple[str, int]] = Counter()

    async def probe() -> None:
        sessions = [await _session(ground, address) for address in ADDRESSES]
        for _ in range(PROBES):
            kind, owner, answer = await _mixed(ground, machines, sessions, chance)
            seen[kind, answer.status] += 1
            if answer.status != 200:
                assert not any(mark in answer.body for some in marks for mark in some), kind
                continue
            others = [mark for number, some in enumerate(marks) if number != owner for mark in some]
            assert owner is not None, kind
            assert not any(mark in answer.body for mark in others), (kind, owner)

    asyncio.run(probe())
    assert {kind for kind, status in seen if status == 200} == {"own token", "own session"}
    assert sum(count for (kind, status), count in seen.items() if kind == "foreign" and status != 200) > PROBES // 2


async def _session(ground: Booting, address: str) -> str:
    answer = await ask(ground.app, "PUT", "/latest/api/token", peer=address, X_aws_ec2_metadata_token_ttl_seconds="21600")
    assert answer.status == 200
    return answer.body.decode()


async def _mixed(
    ground: Booting, machines: list[Machine], sessions: list[str], chance: random.Random
) -> tuple[str, int | None, Answer]:
    """
    One request, whose it is, and what was answered.
    """
    mine, other = chance.sample(range(len(machines)), 2)
    kind = chance.choices(("own token", "own session", "foreign"), (1, 1, 18))[0]
    if kind == "own token":
        # A token is the machine, whatever address and headers it comes with.
        path = f"/v1/boot/{machines[mine].token}/{chance.choice(NAMES)}"
        return kind, mine, await ask(ground.app, "GET", path, peer=ADDRESSES[other], X_aws_ec2_metadata_token=sessions[other])
    if kind == "own session":
        path = f"/latest/{chance.choice(PATHS)}"
        return kind, mine, await ask(ground.app, "GET", path, peer=ADDRESSES[mine], X_aws_ec2_metadata_token=sessions[mine])
    return kind, None, await _foreign(ground, machines, sessions, chance, (mine, other))


async def _foreign(
    ground: Booting, machines: list[Machine], sessions: list[str], chance: random.Random, who: tuple[int, int]
) -> Answer:
    """
    What is answered to somebody who is not what he says.
    """
    mine, other = who
    token, victim = machines[mine].token, machines[other].token
    mixed = f"{machines[other].boot_id}.{token.partition('.')[2]}"
    session = sessions[mine]
    until, _, mark = session.partition(".")
    way = chance.randrange(6)
    if way == 0:
        return await ask(ground.app, "GET", f"/v1/boot/{mixed}/{chance.choice(NAMES)}", peer=ADDRESSES[mine])
    if way == 1:
        return await ask(ground.app, "GET", f"/v1/boot/{victim[:-3]}/{chance.choice(NAMES)}", peer=ADDRESSES[other])
    headers = {
        2: {"X_aws_ec2_metadata_token": session},
        3: {"X_aws_ec2_metadata_token": f"{int(until) + 60}.{mark}"},
        4: {"X_aws_ec2_metadata_token": sessions[other], "X_Forwarded_For": ADDRESSES[other]},
        5: {"X_aws_ec2_metadata_token": session, "Authorization": f"Bearer {victim}", "Cookie": f"token={victim}"},
    }[way]
    peer = ADDRESSES[other] if way in {2, 3, 5} else "10.9.77.1"
    return await ask(ground.app, "GET", f"/latest/{chance.choice(PATHS)}", peer=peer, **headers)
