"""
What every adapter with SupportsServices must do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import NoCapacity, NotFound, ProviderError, Refused
from controlplane.providers.services import Scaling, ServiceSpec, ServiceView, SupportsServices
from tests.contract import kubernetes_harness, simulated_harness
from tests.contract.harness import Harness

PEERS = {**simulated_harness.harnesses(), **kubernetes_harness.harnesses()}
pytestmark = list(kubernetes_harness.MARKS)


@pytest.fixture(params=sorted(PEERS))
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A peer of its own for each test."""
    with PEERS[request.param](tmp_path) as made:
        yield made


def service(peer: Harness, cluster: ClusterSpec, **wanted: Any) -> ServiceSpec:
    """
    A service for the cluster: one GPU a replica, version 1.
    """
    shape: dict[str, Any] = {
        "version": 1,
        "turn": 1,
        "image": "example.org/echo:1",
        "port": 8000,
        "replicas": 2,
        "gpus_per_node": 1,
    }
    return ServiceSpec(peer.new_id("svc"), cluster.cluster_id, cluster.tenant_id, **{**shape, **wanted})


def told(peer: Harness, spec: ServiceSpec) -> ServiceSpec:
    """
    The peer was told the service.
    """
    peer.insist(lambda: peer.adapter.apply_service(spec), what="apply_service")
    return spec


def seen(peer: Harness, spec: ServiceSpec) -> ServiceView:
    """
    The service now.
    """
    view: ServiceView = peer.adapter.observe_service(spec.cluster_id, spec.service_id)
    return view


def up(peer: Harness, spec: ServiceSpec, count: int | None = None) -> ServiceView:
    """
    The service once so many replicas of the version are ready and no others are there.
    """
    wanted = spec.replicas if count is None else count

    def good(view: ServiceView) -> bool:
        ready = [one for one in view.replicas if one.phase == "ready" and one.version == spec.version]
        return len(ready) == len(view.replicas) == wanted

    return peer.until(lambda: seen(peer, spec), good, what=f"{wanted} replicas of version {spec.version}")


def gone(peer: Harness, spec: ServiceSpec) -> None:
    """
    The service is deleted and was seen to be absent.
    """

    def absent() -> bool:
        try:
            seen(peer, spec)
        except NotFound:
            return True
        return False

    peer.insist(lambda: peer.adapter.delete_service(spec.cluster_id, spec.service_id), what="delete_service")
    peer.until(absent, bool, what="service gone")


def test_it_keeps_services_up(peer: Harness) -> None:
    """The adapter has every method of the port."""
    assert isinstance(peer.adapter, SupportsServices)


def test_replicas_come_up_and_tell_where_they_are(peer: Harness) -> None:
    """Members, GPUs, version and turn are told; nothing is wrong with them; others can find the address."""
    cluster = peer.cluster(2)
    spec = told(peer, service(peer, cluster))
    view = up(peer, spec)
    assert (view.version, view.turn, view.wanted, view.going, view.trouble) == (1, 1, 2, False, "")
    assert all((one.gpus, one.trouble, one.restarts) == (1, "", 0) for one in view.replicas)
    assert {ref for one in view.replicas for ref in one.refs} <= {one.ref for one in cluster.members}
    assert view.address.endswith(":8000")


def test_telling_twice_changes_nothing(peer: Harness) -> None:
    """The same replicas are there after a repeat."""
    spec = told(peer, service(peer, peer.cluster(1)))
    before = {one.name for one in up(peer, spec).replicas}
    told(peer, spec)
    peer.pass_time()
    assert {one.name for one in up(peer, spec).replicas} == before


def test_a_new_version_replaces_the_old_one(peer: Harness) -> None:
    """All replicas are of the new version in the end, and other ones than before."""
    first = told(peer, service(peer, peer.cluster(1)))
    before = {one.name for one in up(peer, first).replicas}
    second = told(peer, replace(first, version=2, turn=2, image="example.org/echo:2"))
    view = up(peer, second)
    assert (view.version, view.turn) == (2, 2)
    assert not before & {one.name for one in view.replicas}


def test_an_older_turn_that_comes_late_changes_nothing(peer: Harness) -> None:
    """A repeat of what was told before must not undo what was told since."""
    first = told(peer, service(peer, peer.cluster(1)))
    up(peer, first)
    second = told(peer, replace(first, version=2, turn=2, replicas=1))
    up(peer, second)
    peer.adapter.apply_service(first)
    peer.pass_time()
    assert (seen(peer, first).version, seen(peer, first).turn, seen(peer, first).wanted) == (2, 2, 1)


def test_it_grows_shrinks_and_rests(peer: Harness) -> None:
    """Replicas follow the number, down to none; it is still known then."""
    spec = told(peer, service(peer, peer.cluster(1)))
    up(peer, spec)
    for turn, count in ((2, 4), (3, 1), (4, 0), (5, 2)):
        spec = told(peer, replace(spec, turn=turn, replicas=count))
        assert up(peer, spec).wanted == count


def test_replicas_without_room_wait(peer: Harness) -> None:
    """Those that fit are ready; one that is there without a place holds nothing and names what it lacks."""
    cluster = peer.cluster(1)
    spec = told(peer, service(peer, cluster, replicas=2, gpus_per_node=peer.gpus_per_node))
    view = peer.until(lambda: seen(peer, spec), lambda view: any(one.phase == "ready" for one in view.replicas), what="one ready")
    peer.pass_time()
    view = seen(peer, spec)
    assert (view.wanted, sum(one.phase == "ready" for one in view.replicas)) == (2, 1)
    waiting = [(one.phase, one.trouble, one.refs, one.gpus) for one in view.replicas if one.phase != "ready"]
    assert waiting in ([], [("pending", "no_room", (), 0)])


def test_what_can_never_run_is_turned_away(peer: Harness) -> None:
    """More GPUs on a node than any has; nothing is left behind."""
    spec = service(peer, peer.cluster(1), gpus_per_node=peer.gpus_per_node + 1)
    with pytest.raises((NoCapacity, Refused)):
        peer.adapter.apply_service(spec)
    with pytest.raises(NotFound):
        seen(peer, spec)


def test_deleting_leaves_nothing_and_may_be_repeated(peer: Harness) -> None:
    """Its machines are free for the next one; absence is success."""
    cluster = peer.cluster(1)
    spec = told(peer, service(peer, cluster, replicas=1, gpus_per_node=peer.gpus_per_node))
    up(peer, spec)
    assert peer.adapter.list_services(cluster.cluster_id) == (spec.service_id,)
    gone(peer, spec)
    gone(peer, spec)
    assert peer.adapter.list_services(cluster.cluster_id) == ()
    up(peer, told(peer, service(peer, cluster, replicas=1, gpus_per_node=peer.gpus_per_node)))


def test_an_unknown_service_is_not_found(peer: Harness) -> None:
    """Neither it nor its replicas."""
    cluster = peer.cluster(1)
    spec = service(peer, cluster)
    with pytest.raises(NotFound):
        seen(peer, spec)
    with pytest.raises(NotFound):
        peer.adapter.read_replica(cluster.cluster_id, spec.service_id, "x", limit=100)


def test_replicas_print(peer: Harness) -> None:
    """The last bytes are told, no more than asked; of a replica that is none, NotFound."""
    spec = told(peer, service(peer, peer.cluster(1), replicas=1))
    (replica,) = up(peer, spec).replicas
    text = peer.adapter.read_replica(spec.cluster_id, spec.service_id, replica.name, limit=10_000)
    assert text
    assert text.endswith(peer.adapter.read_replica(spec.cluster_id, spec.service_id, replica.name, limit=5))
    assert len(peer.adapter.read_replica(spec.cluster_id, spec.service_id, replica.name, limit=5)) == 5
    with pytest.raises(NotFound):
        peer.adapter.read_replica(spec.cluster_id, spec.service_id, f"{replica.name}-none", limit=5)


def test_another_tenant_cannot_run_on_the_cluster(peer: Harness) -> None:
    """Turned away, and nothing is there of it."""
    cluster = peer.cluster(1)
    foreign = replace(service(peer, cluster), tenant_id=peer.tenants[1])
    with pytest.raises(ProviderError):
        peer.adapter.apply_service(foreign)
    assert peer.adapter.list_services(cluster.cluster_id) == ()


def test_another_cluster_sees_nothing_of_it(peer: Harness) -> None:
    """By the other cluster it is unknown, and a delete through it does nothing."""
    one, other = peer.cluster(1), peer.cluster(1, peer.tenants[1])
    spec = told(peer, service(peer, one))
    up(peer, spec)
    with pytest.raises(NotFound):
        peer.adapter.observe_service(other.cluster_id, spec.service_id)
    peer.adapter.delete_service(other.cluster_id, spec.service_id)
    assert len(up(peer, spec).replicas) == 2


def test_a_dead_machines_replicas_are_made_again(peer: Harness) -> None:
    """On the machine that is left."""
    cluster = peer.cluster(2)
    spec = told(peer, service(peer, cluster, replicas=1))
    (before,) = up(peer, spec).replicas
    peer.node_dies(before.refs[0])

    def good(view: ServiceView) -> bool:
        return any(one.phase == "ready" and one.refs != before.refs for one in view.replicas)

    view = peer.until(lambda: seen(peer, spec), good, what="made again elsewhere")
    assert any(one.phase == "ready" and one.refs and before.refs[0] not in one.refs for one in view.replicas)
    peer.node_returns(before.refs[0])


def test_deleting_the_cluster_takes_its_services(peer: Harness) -> None:
    """Nothing runs on once the cluster is gone."""
    cluster = peer.cluster(1)
    spec = told(peer, service(peer, cluster))
    up(peer, spec)
    peer.gone(cluster.cluster_id)

    def absent() -> bool:
        try:
            seen(peer, spec)
        except NotFound:
            return True
        return False

    assert peer.until(absent, bool, what="service gone with its cluster")


def test_a_metrics_bounds_hold(peer: Harness) -> None:
    """It begins within them, and goes back to a fixed number."""
    spec = told(peer, service(peer, peer.cluster(1), replicas=1, scaling=Scaling(2, 3, "cpu_cores", 2.0)))
    view = peer.until(lambda: seen(peer, spec), lambda view: view.wanted >= 1, what="told")
    assert view.wanted <= 3
    fixed = told(peer, replace(spec, turn=2, replicas=1, scaling=None))
    assert up(peer, fixed).wanted == 1


def test_a_replica_may_span_nodes(peer: Harness) -> None:
    """It is known, aims at its number, and goes without a trace."""
    cluster = peer.cluster(2)
    spec = told(peer, service(peer, cluster, nodes=2, replicas=1, gpus_per_node=peer.gpus_per_node))
    assert (seen(peer, spec).wanted, seen(peer, spec).version) == (1, 1)
    assert peer.adapter.list_services(cluster.cluster_id) == (spec.service_id,)
    gone(peer, spec)
