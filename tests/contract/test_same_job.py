"""
One job, submitted unchanged to a real Slurm and to the kit of Kubernetes: the same is taken, and the same is printed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.kit.ids import new_id
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.toolbox import Toolbox
from tests.conftest import Database
from tests.contract import kubernetes_harness, slurm_harness
from tests.contract.harness import Harness
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.contract.slurm_harness import SlurmHarness
from tests.factories.jobs import CLUSTER, CUSTOMER, GROUND, MEMBER, SITE, Customer, JobWorld, job_world
from tests.kubernetes_kit import UNTIDY

SAME: dict[str, Any] = {
    "nodes": 2,
    "gpus_per_node": 8,
    "time_limit_s": 300,
    "env": {"GREETING": "hello, two words"},
    "priority": "high",
    "launch": {"kind": "torchrun", "command": ["train.py", "$HOME; done"], "launcher": ["echo"], "setup": 'echo "$GREETING"'},
}
PEERS = {"slurm": slurm_harness, "kubernetes": kubernetes_harness}


@pytest.fixture(
    params=[pytest.param("slurm", marks=slurm_harness.MARKS), pytest.param("kubernetes", marks=(UNTIDY,))],
)
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Harness]]:
    """
    The kind of cluster, and who runs it.
    """
    with PEERS[request.param].harnesses()[request.param](tmp_path) as harness:
        yield request.param, harness


def reached(kind: str, harness: Harness) -> tuple[dict[str, Any], dict[str, str], str]:
    """
    Config, secrets and name of the installation as the harness's own adapter has them.
    """
    if isinstance(harness, SlurmHarness):
        return harness.kit.config(), harness.kit.secrets(mint=True), "test"
    assert isinstance(harness, KubernetesHarness), kind
    return {}, {"kubeconfig": harness.kit.kubeconfig}, "contract"


def settled(world: JobWorld, kind: str, harness: Harness, spec: ClusterSpec) -> Customer:
    """
    The harness's cluster is its tenant's in our database, and steps reach its peer.
    """
    config, secrets, deployment = reached(kind, harness)
    world.provider = ProviderRef("prv_peer", kind, config, None, 1)
    world.tools = Toolbox(deployment=deployment, now=lambda: datetime.now(UTC), open_secrets=lambda _id, _sealed: secrets)
    one = Customer(spec.tenant_id, spec.project_id, spec.cluster_id, spec.user)
    world.customers.append(one)
    given = {
        "site": SITE,
        "reseller": "rsl_1",
        "provider": "prv_peer",
        "config": json.dumps(config),
        "tenant": one.tenant,
        "project": one.project,
        "cluster": one.cluster,
        "user": one.user,
        "kind": kind,
        "state": "running",
        "node_set": new_id("nds"),
        "count": len(spec.members),
    }
    with world.database.owner.begin() as connection:
        connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        for statement in (*GROUND[-1:], *CUSTOMER, *CLUSTER):
            connection.execute(text(statement), given)
        said = json.dumps(harness.adapter.capabilities().job_features)
        offered = "UPDATE providers SET adapter = :kind, capabilities = jsonb_build_object('job_features', CAST(:said AS jsonb))"
        connection.execute(text(f"{offered} WHERE id = 'prv_peer'"), {"kind": kind, "said": said})
        for member in spec.members:
            one.instances[member.ref] = new_id("ins")
            named = {"ref": member.ref, "node": new_id("nod"), "allocation": member.token, "instance": one.instances[member.ref]}
            for statement in MEMBER:
                connection.execute(text(statement), given | named)
    return one


def test_the_same_job_runs_on_slurm_and_on_kubernetes(database: Database, tmp_path: Path, peer: tuple[str, Harness]) -> None:
    """A gang launched by torchrun: the same body, the same states and instances, the same words on both of its nodes."""
    kind, harness = peer
    with job_world(database, tmp_path, nodes=1) as world:
        one = settled(world, kind, harness, harness.cluster(2))
        # both catalogs name the model; the peers need not tell it apart
        with world.database.owner.begin() as connection:
            connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
            connection.execute(text("UPDATE node_sets SET gpu_model = '' WHERE cluster_id = :id"), {"id": one.cluster})
        job_id = world.order(None, customer=one, **SAME)
        deadline = time.monotonic() + 60
        while world.job(job_id).state not in {"succeeded", "failed", "cancelled"}:
            assert time.monotonic() < deadline, world.job(job_id).reason
            world.clock.advance(2)
            world.settle()
            harness.pass_time()
        job = world.job(job_id)
        assert (job.state, job.exit_code, job.attempt) == ("succeeded", 0, 1), job.reason
        assert sorted(job.placement) == sorted(one.instances.values())
        lines = world.output(job_id).splitlines()
        world.tools.adapter(world.provider).close()
    assert [line for line in lines if line == "hello, two words"] == ["hello, two words"] * 2
    told = sorted(re.sub(r"--master-(addr|port)=\S+ ", "", line) for line in lines if line.startswith("--nnodes"))
    assert told == [f"--nnodes=2 --nproc-per-node=8 --node-rank={rank} train.py $HOME; done" for rank in (0, 1)]
    assert [state for state in world.history(job_id) if state in {"queued", "admitted", "completing", "succeeded"}] == [
        *("queued", "admitted", "completing", "succeeded")
    ]
