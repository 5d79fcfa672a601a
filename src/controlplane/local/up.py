"""
The whole product on one machine: servers, schema, simulated region, API, workers, and the main job as its proof.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from controlplane import bootstrap, migrations
from controlplane.local import addresses
from controlplane.local.client import ApiClient
from controlplane.local.commands import api_command, worker_command
from controlplane.local.demo import NODES, MainJob, Order
from controlplane.local.errors import LocalError, PortTaken
from controlplane.local.hold import held
from controlplane.local.interrupts import Interrupts, StopRequested
from controlplane.local.keepsakes import Keepsakes, write_private
from controlplane.local.postgres import EmbeddedPostgres, release
from controlplane.local.progress import Progress
from controlplane.local.supervisor import ChildSpec, Supervisor
from controlplane.local.valkey import EmbeddedValkey
from controlplane.seeding import DemoKeys
from controlplane.settings import Settings

APP_ROLE = "controlplane_app"
TEND_EVERY_S = 0.2
FEW_CORES = 2
FLEET_DEADLINE_S = 60.0
KEY_NAMES = ("operator_key", "reseller_key", "tenant_key")
PASSED_ON = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "SSL_CERT_FILE", "VIRTUAL_ENV", "USER")


@dataclass(frozen=True, slots=True)
class UpOptions:
    """
    What the environment of `up` asks for.
    """

    port: int = 8080
    """Where the API listens, on loopback."""
    data_dir: Path = Path(".data")
    """Where everything is kept."""
    once: bool = False
    """End after the main job, with its exit code."""
    database_url: str = ""
    """The owner's URL of a PostgreSQL that exists; empty: an embedded one."""
    broker_url: str = ""
    """A Redis or Valkey that exists; empty: an embedded one."""
    workers: int = 1
    """Worker processes."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """
        Answers the options that PORT, DATA_DIR, ONCE, DATABASE_URL, BROKER_URL and WORKERS stand for.
        """
        return cls(
            port=_number(environment, "PORT", 8080, highest=65535),
            data_dir=Path(environment.get("DATA_DIR") or ".data"),
            once=environment.get("ONCE", "").lower() in {"1", "true", "yes"},
            database_url=environment.get("DATABASE_URL", ""),
            broker_url=environment.get("BROKER_URL", ""),
            workers=_number(environment, "WORKERS", 2 if (os.cpu_count() or 1) > FEW_CORES else 1, highest=64),
        )


def up(environment: Mapping[str, str], progress: Progress | None = None) -> int:
    """
    Everything runs until somebody ends it; answers the exit code.
    """
    progress = progress or Progress()
    interrupts = Interrupts()
    with interrupts.entered():
        try:
            options = UpOptions.from_environment(environment)
            data_dir = options.data_dir.absolute()
            _make_folder(data_dir)
            with held(data_dir, what=f"PORT={options.port} make up"):
                return Up(options, data_dir, progress, interrupts).run()
        except StopRequested:
            return 130 if environment.get("ONCE") else 0
        except LocalError as error:
            progress.say(f"\n{error.problem}\n{error.remedy}")
            return 1


class Up:
    """
    One run, from the first server to the last signal.
    """

    def __init__(self, options: UpOptions, data_dir: Path, progress: Progress, interrupts: Interrupts) -> None:
        self._options = options
        self._data_dir = data_dir
        self._progress = progress
        self._supervisor = Supervisor(report=progress.note, interrupts=interrupts)
        self._secrets = Keepsakes(data_dir / "secrets.json")
        self._keys = Keepsakes(data_dir / "keys.json")
        self._ports = Keepsakes(data_dir / "ports.json")
        self._url = f"http://{addresses.LOOPBACK}:{options.port}"

    def run(self) -> int:
        """
        Answers 0 when the main job succeeded, after serving until a signal unless ONCE is set.
        """
        if not addresses.port_is_free(self._options.port):
            raise PortTaken(
                f"Port {self._options.port} is in use by another program.",
                f"Choose another: PORT={addresses.free_port()} make up",
            )
        self._progress.say(f"Control plane for GPU clouds · data and logs in {_shown(self._data_dir)}")
        running = self._data_dir / "running.json"
        try:
            settings = self._settings(self._database(), self._broker())
            self._schema(settings)
            write_private(running, json.dumps(told(settings), indent=2))
            self._launch(settings)
            keys = self._region(settings)
            self._wait_for_api()
            self._fleet(keys)
            code = self._main_job(keys)
            if not self._options.once:
                self._progress.say(self._summary(keys))
                self._serve()
            return code
        finally:
            self._progress.keep_to_this_thread()
            with self._progress.step("stopped"):
                self._supervisor.stop()
            running.unlink(missing_ok=True)

    def _database(self) -> str:
        if self._options.database_url:
            return self._options.database_url
        with self._progress.step("PostgreSQL 18") as step:
            server = EmbeddedPostgres(
                self._data_dir / "postgres",
                password=self._secrets.password("database_owner"),
                log_path=self._log("postgres"),
                port=self._kept_port("postgres"),
            )
            made = server.prepare()
            self._supervisor.start(
                ChildSpec(
                    name="PostgreSQL",
                    command=server.command(),
                    environment=server.environment,
                    directory=server.directory,
                    log_path=server.log_path,
                    account=server.account,
                    is_ready=server.is_ready,
                    before_restart=lambda: release(server.data),
                    stop_signal=signal.SIGINT,
                    orphan_signal=signal.SIGINT,
                    stop_grace_s=15.0,
                )
            )
            self._ports.keep(postgres=str(server.port))
            self._progress.change(step, f"PostgreSQL 18 on port {server.port}{', new' if made else ''}")
        return server.owner_url()

    def _broker(self) -> str:
        if self._options.broker_url:
            return self._options.broker_url
        with self._progress.step("Valkey 9") as step:
            server = EmbeddedValkey(
                self._data_dir / "valkey",
                password=self._secrets.password("broker"),
                log_path=self._log("valkey"),
                port=self._kept_port("valkey"),
            )
            server.prepare()
            self._supervisor.start(
                ChildSpec(
                    name="Valkey",
                    command=server.command(),
                    environment=server.environment,
                    directory=server.directory,
                    log_path=server.log_path,
                    is_ready=server.is_ready,
                )
            )
            self._ports.keep(valkey=str(server.port))
            self._progress.change(step, f"Valkey 9 on port {server.port}")
        return server.url()

    def _settings(self, owner_url: str, broker_url: str) -> Settings:
        app_url = addresses.with_credentials(owner_url, APP_ROLE, self._secrets.password("database_app"))
        return Settings(
            database_url=SecretStr(app_url),
            owner_database_url=SecretStr(owner_url),
            broker_url=SecretStr(broker_url),
            data_dir=self._data_dir,
            master_key=SecretStr(self._secrets.master_key()),
        )

    def _schema(self, settings: Settings) -> None:
        with self._progress.step("database schema"):
            owner_url = settings.owner_database_url.get_secret_value()
            migrations.upgrade(owner_url)
            migrations.ensure_app_role(owner_url, APP_ROLE, self._secrets.password("database_app"))

    def _launch(self, settings: Settings) -> None:
        """
        API and workers are starting: the region is loaded meanwhile.
        """
        environment = child_environment(settings, os.environ)
        api = ChildSpec(
            name="API",
            command=api_command(port=self._options.port),
            environment=environment,
            directory=self._data_dir,
            log_path=self._log("api"),
            is_ready=self._api_is_ready,
        )
        workers = [
            ChildSpec(
                name=f"worker {number}",
                command=worker_command(name=f"worker-{number}"),
                environment=environment,
                directory=self._data_dir,
                log_path=self._log(f"worker-{number}"),
            )
            for number in range(1, self._options.workers + 1)
        ]
        self._supervisor.launch(api, *workers)

    def _wait_for_api(self) -> None:
        workers = "1 worker" if self._options.workers == 1 else f"{self._options.workers} workers"
        with self._progress.step(f"API on {self._url}, {workers}"):
            self._supervisor.wait_until_ready()

    def _api_is_ready(self) -> bool:
        with ApiClient(self._url) as probe:
            return probe.is_ready()

    def _region(self, settings: Settings) -> DemoKeys:
        with self._progress.step("simulated region, operator, reseller and tenant"):
            keys = bootstrap.seed_demo(settings, known=self._keys.all() or None)
            self._keys.keep(**{name: str(value) for name, value in asdict(keys).items()})
        return keys

    def _fleet(self, keys: DemoKeys) -> None:
        """
        Enough nodes have been inspected, tested and wiped for the main job.
        """
        until_s = time.monotonic() + FLEET_DEADLINE_S
        with self._progress.step("nodes inspected, tested and wiped") as step, ApiClient(self._url, keys.operator_key) as api:
            while True:
                free = {(each["site"], each["instance_type"]): each["free"] for each in api.get("/v1/availability")["items"]}
                self._progress.change(step, f"nodes inspected, tested and wiped: {sum(free.values())} ready")
                if free.get((keys.site, keys.instance_type), 0) >= NODES or time.monotonic() > until_s:
                    return
                self._supervisor.tend()
                time.sleep(TEND_EVERY_S)

    def _main_job(self, keys: DemoKeys) -> int:
        self._progress.heading("The main job, as the tenant would do it through the API")
        order = Order(project_id=keys.project_id, site=keys.site, instance_type=keys.instance_type)
        with ApiClient(self._url, keys.tenant_key) as api:
            work = Work(MainJob(api, order, self._progress).run)
            work.start()
            while work.is_alive():
                self._supervisor.tend()
                work.join(TEND_EVERY_S)
        if work.error is None:
            return 0
        if not isinstance(work.error, LocalError):
            raise work.error
        self._progress.say(f"\nThe main job failed. {work.error.problem}\n{work.error.remedy}")
        return 1

    def _serve(self) -> None:
        with contextlib.suppress(StopRequested):
            while True:
                self._supervisor.tend()
                time.sleep(TEND_EVERY_S)

    def _summary(self, keys: DemoKeys) -> str:
        call = f'curl -sH "Authorization: Bearer $KEY" {self._url}'
        return f"""
Serving on {self._url} (documentation: {self._url}/docs). Keys, also in {_shown(self._data_dir / "keys.json")}:

  operator   {keys.operator_key}
  reseller   {keys.reseller_key}
  tenant     {keys.tenant_key}

Three things to try next, in another window:

  export KEY={keys.tenant_key}
  {call}/v1/projects/{keys.project_id}/clusters
  {call}/v1/availability
  {call}/v1/usage

Ctrl-C stops everything; `make up` goes on from here."""

    def _kept_port(self, name: str) -> int | None:
        kept = self._ports.find(name)
        return int(kept) if kept else None

    def _log(self, name: str) -> Path:
        return self._data_dir / "logs" / f"{name}.log"


class Work(threading.Thread):
    """
    Work that runs beside the supervisor, which must stay in the main thread.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(name="main-job", daemon=True)
        self._work = work
        self.error: Exception | None = None
        """What it failed with."""

    def run(self) -> None:
        """
        The work is done, or its error is kept.
        """
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 -- the main thread raises it again
            self.error = error


def told(settings: Settings) -> dict[str, str]:
    """
    Answers the settings that API and workers run with, as environment variables: never the owner's URL.
    """
    return {
        "CONTROLPLANE_DATABASE_URL": settings.database_url.get_secret_value(),
        "CONTROLPLANE_BROKER_URL": settings.broker_url.get_secret_value(),
        "CONTROLPLANE_DATA_DIR": str(settings.data_dir),
        "CONTROLPLANE_MASTER_KEY": settings.master_key.get_secret_value(),
    }


def child_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """
    Answers all of the environment of API and workers: other settings of ours are passed on, strangers' variables are not.
    """
    ours = {name: value for name, value in environment.items() if name.startswith("CONTROLPLANE_")}
    ours.pop("CONTROLPLANE_OWNER_DATABASE_URL", None)
    passed_on = {name: environment[name] for name in PASSED_ON if name in environment}
    return passed_on | ours | told(settings) | {"PYTHONUNBUFFERED": "1"}


def _number(environment: Mapping[str, str], name: str, default: int, *, highest: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or not 0 < int(text) <= highest:
        raise LocalError(f"{name}={text} is not a number from 1 to {highest}.", f"For example: {name}={default} make up")
    return int(text)


def _make_folder(data_dir: Path) -> None:
    try:
        # Root's PostgreSQL runs as another user, who must get through this folder to its own.
        data_dir.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"The data directory cannot be made: {error}", "Choose another: DATA_DIR=/some/folder make up") from error


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
