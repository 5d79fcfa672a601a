"""
Orders that name an image: what may be named, two boots to install it, and that what is used is not deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from controlplane.boots import reporting
from controlplane.boots import service as boots
from controlplane.boots.states import CLOUD_INIT_STAGES, Outcome, Report
from controlplane.clusters import instances
from controlplane.clusters import service as clusters
from controlplane.clusters.instance_schemas import instance_out
from controlplane.clusters.schemas import cluster_out
from controlplane.images import service as images
from controlplane.images.errors import ImageInUse, NotReady
from controlplane.images.keeping import verify
from controlplane.images.store import LocalImageStore
from controlplane.kit.errors import Invalid, NoCapacity
from controlplane.kit.secrets import Sealer
from tests.factories.images import content_of, filled_image
from tests.factories.world import MASTER_KEY, World
from tests.integration.test_bare_nodes import KEY, Rack, only_bare

CONTENT = content_of(1000)
SOME_LOOKS = 20
"""Not enough for a machine that never reports to be given up."""
STAGES = ("disk", "image", "verify")


class Installers(Rack):
    """Bare machines that install images; the first so many that try have no disk for one."""

    def __init__(self, world: World, count: int) -> None:
        super().__init__(world, count)
        self.most_unable = 0
        self.unable: set[str] = set()
        self.aims: list[tuple[str, str]] = []
        shown = text("UPDATE providers SET capabilities = capabilities || '{\"images\": true}' WHERE adapter = 'redfish'")
        world.do(lambda s: s.execute(shown))

    def _report(self, session: Any, row: Any) -> None:
        if row.purpose in {"install", "deploy"}:
            aimed = [one for one in self.tools.benches[row.node_id].acts if one.startswith("boot ")]
            self.aims.append((row.purpose, aimed[-1]))
        if row.purpose != "install":
            super()._report(session, row)
            return
        reporting.phone_home(session, row.id, {"instance_id": row.instance})
        if len(self.unable) < self.most_unable:
            self.unable.add(row.node_id)
        able = row.node_id not in self.unable
        said = tuple(Outcome(name, ok=able, exit_code=0 if able else 1, line=None, output="") for name in STAGES)
        reporting.take_report(session, row.id, row.id, Report(True, dict.fromkeys(CLOUD_INIT_STAGES, ""), said))


@pytest.fixture
def rack(world: World) -> Installers:
    """Two free bare machines, and nothing else to be had."""
    made = Installers(world, 2)
    only_bare(world)
    made.settle()
    return made


@pytest.fixture
def store(tmp_path: Path) -> LocalImageStore:
    """An empty store."""
    return LocalImageStore(tmp_path / "images")


def image(world: World, store: LocalImageStore, name: str = "one", *, ready: bool = True) -> str:
    """The id of an image of the tenant's."""
    made = filled_image(world.engine, store, world.tenant, CONTENT, name)
    if ready:
        verify(world.engine, store)
    return made


def ordered(world: World, image_id: str, kind: str = "baremetal", name: str = "own") -> str:
    """The id of a cluster of one node that runs the image."""
    login = clusters.Login((KEY,)) if kind == "baremetal" else None
    sets = (clusters.SetOrder("workers", world.keys.instance_type, 1, image=image_id),)
    wanted = clusters.Order(name, kind, world.keys.site, sets, wait=True, login=login)
    sealer = Sealer.from_base64(MASTER_KEY)
    view, _ = world.do(lambda s: clusters.order_cluster(s, world.tenant, world.keys.project_id, wanted, sealer))
    return str(view.row.id)


def delete_image(world: World, image_id: str) -> None:
    """The tenant deletes it."""
    world.do(lambda s: images.delete_image(s, world.tenant, image_id, lambda _: None))


def test_an_image_is_installed_and_then_started(world: World, rack: Installers, store: LocalImageStore) -> None:
    """
    One boot installs, from what the provider starts machines from and without the tenant's blueprint; the next one starts the disk with it.
    The tenant is shown the image on both, and both consoles. It cannot be deleted before the cluster is.
    """
    image_id = image(world, store)
    cluster_id = ordered(world, image_id)
    rack.settle()
    assert rack.aims == [("install", "boot network"), ("deploy", "boot disk")]
    seen = world.rows(
        "SELECT purpose, state, blueprint_id IS NULL AS ours FROM boots WHERE image_id = :image ORDER BY id", image=image_id
    )
    assert seen == [("install", "ended", True), ("deploy", "ready", False)]
    view = world.do(lambda s: clusters.get_cluster(s, world.tenant, world.keys.project_id, cluster_id))
    assert (view.row.state, cluster_out(view).spec.node_sets[0].image) == ("running", image_id)
    (one,) = world.do(lambda s: instances.list_instances(s, world.tenant, world.keys.project_id, cluster_id))
    shown = instance_out(one)
    assert shown.image == image_id
    told = world.do(lambda s: instances.read_console(s, world.tenant, world.keys.project_id, cluster_id, shown.id, None, 0).boots)
    assert [one.purpose for one in told] == ["install", "deploy"]
    with pytest.raises(ImageInUse):
        delete_image(world, image_id)
    with pytest.raises(IntegrityError, match="is in use"):
        world.do(lambda s: s.execute(text("UPDATE images SET state = 'deleted' WHERE id = :id"), {"id": image_id}))
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    rack.settle()
    assert rack.states() == {"available": 2}
    delete_image(world, image_id)
    with pytest.raises(IntegrityError, match="is not ready"):
        world.do(lambda s: s.execute(text("UPDATE node_sets SET image_id = :id"), {"id": image_id}))


def test_an_image_that_cannot_be_installed_is_no_deployment(world: World, rack: Installers, store: LocalImageStore) -> None:
    """The machine that failed is put aside with its boot's words; another one takes its place."""
    image_id = image(world, store)
    rack.most_unable = 1
    cluster_id = ordered(world, image_id)
    rack.settle()
    (row,) = world.rows("SELECT state FROM clusters WHERE id = :id", id=cluster_id)
    assert row.state == "running"
    assert not [purpose for purpose, aim in rack.aims if (purpose, aim) == ("deploy", "boot network")]
    failed = world.rows("SELECT node_id FROM boots WHERE purpose = 'install' AND failure_code = 'script_failed'")
    members = world.rows("SELECT node_id FROM allocations WHERE cluster_id = :id AND state = 'active'", id=cluster_id)
    assert {row.node_id for row in failed} == rack.unable
    assert {row.node_id for row in members} == set(rack.ids) - rack.unable


def test_what_may_not_be_named_is_refused(world: World, rack: Installers, store: LocalImageStore) -> None:
    """Unknown, another kind of file, not checked yet, a product without disks of its own, a site that installs none."""
    del rack
    unready = image(world, store, ready=False)
    with pytest.raises(NotReady):
        ordered(world, unready)
    verify(world.engine, store)
    for given, code in (("img_unknown", "unknown_image"), (unready, "image_not_installable")):
        world.do(lambda s: s.execute(text("UPDATE images SET format = 'iso'")))
        with pytest.raises(Invalid) as refused:
            ordered(world, given)
        assert [(one.field, one.code) for one in refused.value.errors] == [("body.spec.node_sets.0.image", code)]
    world.do(lambda s: s.execute(text("UPDATE images SET format = 'raw'")))
    with pytest.raises(Invalid, match="no image of one's own"):
        ordered(world, unready, "slurm")
    world.do(lambda s: s.execute(text("UPDATE providers SET config = '{\"boot\": \"disk\"}' WHERE adapter = 'redfish'")))
    with pytest.raises(NoCapacity, match="installs images"):
        ordered(world, unready)


def test_images_go_where_their_format_is_taken(world: World, rack: Installers, store: LocalImageStore) -> None:
    """
    A qcow2 is refused, with what to do, where only `raw` is taken: in an order, and for a machine there is. Where a provider takes it, its
    machines are chosen though another's are free.
    """
    plain, packed = image(world, store, "plain"), image(world, store, "packed")
    world.do(lambda s: s.execute(text("UPDATE images SET format = 'qcow2' WHERE id = :id"), {"id": packed}))
    held = ordered(world, plain)
    rack.settle()
    where = (world.tenant, world.keys.project_id, held)
    (one,) = world.do(lambda s: instances.list_instances(s, *where))
    instance_id = one.row[0].instance_id
    for asks, field in (
        (lambda: ordered(world, packed, name="other"), "body.spec.node_sets.0.image"),
        (lambda: world.do(lambda s: instances.act(s, *where, instance_id, "reinstall", lambda _: None, packed)), "query.image"),
    ):
        with pytest.raises(Invalid, match="qemu-img convert") as refused:
            asks()
        assert [(one.field, one.code) for one in refused.value.errors] == [(field, "image_not_installable")]
    able = 'capabilities || \'{"images": true, "image_formats": ["qcow2"]}\''
    world.do(lambda s: s.execute(text(f"UPDATE providers SET state = 'active', capabilities = {able} WHERE adapter = 'simulated'")))
    chosen = ordered(world, packed, name="other")
    world.go_on(SOME_LOOKS)
    adapters = """SELECT DISTINCT p.adapter, c.state FROM clusters c JOIN allocations a ON a.cluster_id = c.id
        JOIN nodes n ON n.id = a.node_id JOIN providers p ON p.id = n.provider_id WHERE c.id = :id"""
    assert world.rows(adapters, id=chosen) == [("simulated", "provisioning")]
    assert world.rows(adapters, id=held) == [("redfish", "running")]


def test_a_node_is_reinstalled_with_another_image(world: World, rack: Installers, store: LocalImageStore) -> None:
    """The other image is installed and shown, and used from then on; both stay as long as the cluster names them."""
    first, second = image(world, store, "one"), image(world, store, "two")
    cluster_id = ordered(world, first)
    rack.settle()
    where = (world.tenant, world.keys.project_id, cluster_id)
    (one,) = world.do(lambda s: instances.list_instances(s, *where))
    instance_id = one.row[0].instance_id
    world.do(lambda s: instances.act(s, *where, instance_id, "reinstall", lambda _: None, second))
    rack.settle()
    (one,) = world.do(lambda s: instances.list_instances(s, *where))
    assert (one.row[0].image_id, one.row.node_state) == (second, "active")
    assert rack.aims[2:] == [("install", "boot network"), ("deploy", "boot disk")]
    for used in (first, second):
        with pytest.raises(ImageInUse):
            delete_image(world, used)
    assert world.do(lambda s: boots.count_readers(s, second)) == 0
