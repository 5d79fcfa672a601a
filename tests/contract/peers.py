"""
A real Slurm and the kit of Kubernetes below a world of jobs: the same rows, steps that reach a peer.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.kit.ids import new_id
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.toolbox import Toolbox
from tests.contract import kubernetes_harness, slurm_harness
from tests.contract.harness import Harness
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.contract.slurm_harness import SlurmHarness
from tests.factories.jobs import CLUSTER, CUSTOMER, GROUND, MEMBER, SITE, Customer, JobWorld
from tests.kubernetes_kit import UNTIDY

PEERS = {"slurm": slurm_harness, "kubernetes": kubernetes_harness}
BOTH = [pytest.param("slurm", marks=slurm_harness.MARKS), pytest.param("kubernetes", marks=(UNTIDY,))]


@contextmanager
def peer_of(kind: str, folder: Path) -> Iterator[tuple[str, Harness]]:
    """
    The kind of cluster, and who runs it.
    """
    with PEERS[kind].harnesses()[kind](folder) as harness:
        yield kind, harness


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


def play(world: JobWorld, harness: Harness, is_so: Callable[[], object], *, within_s: float = 60.0) -> None:
    """
    Everything due is done, and the peer does its part, until it is so.
    """
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be"
        world.clock.advance(2)
        world.settle()
        harness.pass_time()
