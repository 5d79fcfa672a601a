"""
The only wiring: settings become an engine, an authenticator, drivers and whatever else the API and the workers are made of.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from sqlalchemy import Engine, Table

from controlplane.boots import service as boots
from controlplane.boots.states import BootLinks
from controlplane.clusters import driving as cluster_driving
from controlplane.clusters import placing
from controlplane.clusters.models import ClusterRow
from controlplane.clusters.states import CLUSTER_STATES, KubeconfigAsk
from controlplane.clusters.steps import STEPS as CLUSTER_STEPS
from controlplane.clusters.steps.letting_in import issue
from controlplane.fabric_checks import driving as check_driving
from controlplane.fabric_checks.models import FabricCheckRow
from controlplane.fabric_checks.states import FABRIC_CHECK_STATES
from controlplane.fabric_checks.steps import STEPS as CHECK_STEPS
from controlplane.identity import service as identity
from controlplane.images.keeping import CountUses, Keeper
from controlplane.images.store import Depot, LocalImageStore
from controlplane.jobs import service as jobs
from controlplane.jobs.models import JobRow
from controlplane.jobs.sealing import open_secret
from controlplane.jobs.states import JOB_STATES
from controlplane.jobs.steps import STEPS as JOB_STEPS
from controlplane.kit.clock import utc_now
from controlplane.kit.db import EVERYTHING, in_transaction, make_engine
from controlplane.kit.guard import refuse_powerful_role
from controlplane.kit.lifecycle import Driver, Kind, Tempo
from controlplane.kit.secrets import Sealer
from controlplane.nodes import driving as node_driving
from controlplane.nodes.models import NodeRow
from controlplane.nodes.states import NODE_STATES
from controlplane.nodes.steps import STEPS as NODE_STEPS
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import Permanent
from controlplane.providers.toolbox import Toolbox
from controlplane.seeding import DemoKeys, Region, sow
from controlplane.services import driving as service_driving
from controlplane.services.models import ServiceRow
from controlplane.services.states import SERVICE_STATES
from controlplane.services.steps import STEPS as SERVICE_STEPS
from controlplane.settings import Settings

log = logging.getLogger(__name__)
Nudge = Callable[[list[tuple[str, str]]], None]
IMAGE_USES: Sequence[CountUses] = (boots.count_readers,)
"""One count per kind of deployment that reads images."""


def _no_nudge(hints: list[tuple[str, str]]) -> None:
    del hints


@dataclass
class Runtime:
    """
    What one process is made of.
    """

    settings: Settings
    """As read."""
    engine: Engine
    """The application role's."""
    authenticator: identity.KeyAuthenticator
    """Turns keys into principals."""
    sealer: Sealer
    """Seals and opens stored secrets."""
    images: Depot
    """Where images are kept."""
    keeper: Keeper
    """Checks and removes contents; runs in the API's processes once it is started."""
    nudge: Nudge = _no_nudge
    """Wakes workers; a hint."""
    closers: list[Callable[[], None]] = field(default_factory=list)
    """Run by close, last first."""

    def close(self) -> None:
        """
        No connection and no thread of this runtime is left.
        """
        for closer in reversed(self.closers):
            closer()
        self.engine.dispose()


def build(settings: Settings, *, application: str = "controlplane-api") -> Runtime:
    """
    A runtime on the application role. Raises when the role could get round the walls.
    """
    engine = make_engine(settings.database_url.get_secret_value(), pool_size=settings.db_pool_size, application=application)
    try:
        refuse_powerful_role(engine)
    except Exception:
        engine.dispose()
        raise
    store = LocalImageStore((settings.image_dir or settings.data_dir / "images").resolve())
    keeper = Keeper(engine, store, IMAGE_USES)
    runtime = Runtime(
        settings=settings,
        engine=engine,
        authenticator=identity.KeyAuthenticator(engine),
        sealer=Sealer.from_base64(settings.master_key.get_secret_value()),
        images=Depot(store, settings.max_image_bytes, settings.max_image_chunk_bytes, keeper.wake),
        keeper=keeper,
    )
    broker = settings.broker_url.get_secret_value()
    points = entry_points(group="controlplane.nudges") if broker else ()
    for point in points:
        runtime.nudge, stop = point.load()(broker)
        runtime.closers.append(stop)
    return runtime


def tempo_of(settings: Settings) -> Tempo:
    """
    The engine's times from the settings.
    """
    return Tempo(lease_s=settings.lease_s, grace_s=settings.lease_grace_s, max_attempts=settings.max_attempts)


def _sealer(settings: Settings) -> Sealer | None:
    """
    None for an installation without a master key.
    """
    key = settings.master_key.get_secret_value()
    return Sealer.from_base64(key) if key else None


def kinds(settings: Settings) -> Mapping[str, Kind]:
    """
    Everything the lifecycle engine drives, by noun.
    """
    return {
        "node": Kind(
            table=NODE_STATES,
            rows=_table(NodeRow),
            steps=NODE_STEPS,
            snapshots=node_driving.snapshots,
            apply=node_driving.apply,
            ends=node_driving.OPERATION_ENDS,
            follows="acting_for",
        ),
        "cluster": Kind(
            table=CLUSTER_STATES,
            rows=_table(ClusterRow),
            steps=CLUSTER_STEPS,
            snapshots=cluster_driving.snapshots(settings.observe_interval_s),
            apply=partial(cluster_driving.apply, sealer=_sealer(settings)),
            decisions=dict.fromkeys(("pending", "placing", "provisioning", "updating/placing"), placing.decide),
            ends=cluster_driving.OPERATION_ENDS,
        ),
        "job": Kind(
            table=JOB_STATES,
            rows=_table(JobRow),
            steps=JOB_STEPS,
            snapshots=jobs.snapshots,
            apply=jobs.apply,
            decisions={"queued": jobs.admit},
        ),
        "service": Kind(
            table=SERVICE_STATES,
            rows=_table(ServiceRow),
            steps=SERVICE_STEPS,
            snapshots=service_driving.snapshots,
            apply=service_driving.apply,
            decisions={"pending": service_driving.admit},
            ends=service_driving.OPERATION_ENDS,
        ),
        "fabric_check": Kind(
            table=FABRIC_CHECK_STATES,
            rows=_table(FabricCheckRow),
            steps=CHECK_STEPS,
            snapshots=check_driving.snapshots,
            apply=check_driving.apply,
            decisions={"judging": check_driving.judge},
            ends=check_driving.OPERATION_ENDS,
        ),
    }


def drivers(engine: Engine, settings: Settings) -> Mapping[str, Driver]:
    """
    A driver per kind.
    """
    tempo = tempo_of(settings)
    return {name: Driver(engine, kind, tempo) for name, kind in kinds(settings).items()}


def open_secrets(sealer: Sealer, provider_id: str, sealed: bytes | None) -> Mapping[str, str]:
    """
    The provider's secrets by name; none when it has none.
    """
    if sealed is None:
        return {}
    opened: dict[str, str] = json.loads(sealer.open(sealed, table="providers", column="sealed", row=provider_id))
    return opened


def boot_links(settings: Settings) -> BootLinks:
    """
    How machines that we drive ourselves find their seeds.
    """
    return BootLinks.from_master(settings.machine_url, settings.master_key.get_secret_value(), settings.deployment)


def seed_url(links: BootLinks, boot_id: str) -> str:
    """
    Where a machine's controller finds the seed of the boot. Raises Permanent where machines have no way to the API.
    """
    return f"{_reachable(links).url(boot_id)}seed.iso"


def config_drive_url(links: BootLinks, boot_id: str) -> str:
    """
    Where a provider that writes disks finds the same. Raises Permanent where machines have no way to the API.
    """
    return f"{_reachable(links).url(boot_id)}config-drive"


def image_url(links: BootLinks, boot_id: str) -> str:
    """
    Where it finds the image of the boot. Raises Permanent where machines have no way to the API.
    """
    return _reachable(links).image_url(boot_id)


def _reachable(links: BootLinks) -> BootLinks:
    if not links.base_url:
        raise Permanent("machines have no way to the API: set CONTROLPLANE_MACHINE_URL", code="machine_url_missing")
    return links


def open_password(sealer: Sealer, node_id: str, sealed: bytes | None) -> str:
    """
    The password of the node's controller; empty when it has none of its own.
    """
    return "" if sealed is None else sealer.open(sealed, table="nodes", column="sealed", row=node_id).decode()


def seal_password(sealer: Sealer, node_id: str, password: str) -> bytes:
    """
    The password of the node's controller as its row keeps it.
    """
    return sealer.seal(password.encode(), table="nodes", column="sealed", row=node_id)


def toolbox(settings: Settings, sealer: Sealer) -> Toolbox:
    """
    How steps reach providers.
    """
    links = boot_links(settings)
    return Toolbox(
        deployment=settings.deployment,
        now=utc_now,
        open_secrets=lambda provider_id, sealed: open_secrets(sealer, provider_id, sealed),
        open_password=lambda node_id, sealed: open_password(sealer, node_id, sealed),
        seal_password=lambda node_id, password: seal_password(sealer, node_id, password),
        seed_url=lambda boot_id: seed_url(links, boot_id),
        config_drive_url=lambda boot_id: config_drive_url(links, boot_id),
        image_url=lambda boot_id: image_url(links, boot_id),
        open_job_secret=lambda row_id, sealed: open_secret(sealer, row_id, sealed),
    )


def credential_desk(runtime: Runtime) -> Callable[[KubeconfigAsk], Kubeconfig]:
    """
    How the API asks providers for tenants' credentials; its connections are closed with the runtime.
    """
    tools = toolbox(runtime.settings, runtime.sealer)
    runtime.closers.append(tools.close)
    return lambda ask: issue(ask, tools)


def _table(row: Any) -> Table:
    table = row.__table__
    assert isinstance(table, Table)
    return table


def first_operator(settings: Settings, email: str) -> str:
    """
    The platform has its first operator; the key's text is returned once. Raises when there is one already.
    """
    engine = make_engine(settings.owner_database_url.get_secret_value(), pool_size=1, application="controlplane-bootstrap")
    try:
        return in_transaction(engine, EVERYTHING, lambda session: identity.first_operator(session, email))
    finally:
        engine.dispose()


def seed_demo(settings: Settings, *, known: Mapping[str, str] | None) -> DemoKeys:
    """
    The simulated region, an operator, a reseller, a tenant and their keys exist; what is known already is not made again.
    """
    engine = make_engine(settings.database_url.get_secret_value(), pool_size=2, application="controlplane-seed")
    try:
        return sow(engine, Region(settings.data_dir.resolve() / "region.sqlite"), settings.currency, dict(known or {}))
    finally:
        engine.dispose()
