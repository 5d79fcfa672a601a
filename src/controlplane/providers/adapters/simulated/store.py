"""
The file that holds one simulated world: schema, connections and transactions.

Several processes share the file and any of them may be killed at any instant, so every change is one SQLite transaction (WAL).
`synchronous=OFF` gives up what only a power cut of the host could take. All instants are whole microseconds since 1970 UTC.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUSY_TIMEOUT_S = 20.0
"""How long a transaction waits for another process; each holds the file for about a millisecond."""

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE clock (
  id INTEGER PRIMARY KEY CHECK (id = 1), real_at INTEGER NOT NULL, virtual_at INTEGER NOT NULL, rate REAL NOT NULL
);
CREATE TABLE machines (
  ref TEXT PRIMARY KEY, site TEXT NOT NULL, instance_type TEXT NOT NULL, gpu_model TEXT NOT NULL, sold_gpus INTEGER NOT NULL,
  gpus INTEGER NOT NULL, memory_gib INTEGER NOT NULL, cpus INTEGER NOT NULL, serial TEXT NOT NULL, bmc TEXT NOT NULL,
  firmware TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE tenancies (
  id INTEGER PRIMARY KEY, ref TEXT NOT NULL, token TEXT NOT NULL, tenant_id TEXT NOT NULL, cluster_id TEXT NOT NULL,
  network TEXT NOT NULL, deployment TEXT NOT NULL, gpus INTEGER NOT NULL, requested_at INTEGER NOT NULL, reachable_from INTEGER,
  ready_at INTEGER, failed_at INTEGER, release_requested_at INTEGER, release_accepted_at INTEGER, detached_at INTEGER,
  powered_off_at INTEGER, release_seq INTEGER, hidden INTEGER NOT NULL DEFAULT 0, UNIQUE (ref, token)
);
CREATE INDEX tenancies_ref ON tenancies (ref, hidden, id);
CREATE INDEX tenancies_token ON tenancies (token);
CREATE TABLE wipes (
  id INTEGER PRIMARY KEY, ref TEXT NOT NULL, token TEXT NOT NULL, requested_at INTEGER NOT NULL, finished_at INTEGER,
  checks TEXT, cleared TEXT NOT NULL, failure TEXT NOT NULL DEFAULT '', UNIQUE (ref, token)
);
CREATE INDEX wipes_ref ON wipes (ref, id);
CREATE TABLE surveys (
  id INTEGER PRIMARY KEY, ref TEXT NOT NULL, kind TEXT NOT NULL, token TEXT NOT NULL, requested_at INTEGER NOT NULL,
  finished_at INTEGER, checks TEXT NOT NULL, UNIQUE (ref, kind, token)
);
CREATE INDEX surveys_ref ON surveys (ref, kind, id);
CREATE TABLE power_changes (
  id INTEGER PRIMARY KEY, ref TEXT NOT NULL, token TEXT NOT NULL, turn_on INTEGER NOT NULL, requested_at INTEGER NOT NULL,
  effective_at INTEGER, UNIQUE (ref, token)
);
CREATE INDEX power_changes_ref ON power_changes (ref, id);
CREATE TABLE outages (id INTEGER PRIMARY KEY, ref TEXT NOT NULL, from_at INTEGER NOT NULL, until_at INTEGER, cause TEXT NOT NULL);
CREATE INDEX outages_ref ON outages (ref);
CREATE TABLE clusters (
  id INTEGER PRIMARY KEY, cluster_id TEXT NOT NULL, deployment TEXT NOT NULL, tenant_id TEXT NOT NULL, project_id TEXT NOT NULL,
  run_as TEXT NOT NULL, created_at INTEGER NOT NULL, changed_at INTEGER NOT NULL, delete_requested_at INTEGER, deleted_at INTEGER,
  verified_at INTEGER, next_event_at INTEGER
);
CREATE INDEX clusters_name ON clusters (cluster_id, id);
CREATE TABLE members (
  id INTEGER PRIMARY KEY, object_id INTEGER NOT NULL, ref TEXT NOT NULL, token TEXT NOT NULL, gpus INTEGER NOT NULL,
  added_at INTEGER NOT NULL, join_us INTEGER, leaving_at INTEGER, removed_at INTEGER
);
CREATE INDEX members_object ON members (object_id);
CREATE INDEX members_ref ON members (ref, id);
CREATE INDEX members_token ON members (token);
CREATE TABLE drains (
  id INTEGER PRIMARY KEY, ref TEXT NOT NULL, reason TEXT NOT NULL, ours INTEGER NOT NULL, from_at INTEGER NOT NULL, until_at INTEGER
);
CREATE INDEX drains_ref ON drains (ref);
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY, object_id INTEGER NOT NULL, cluster_id TEXT NOT NULL, token TEXT NOT NULL, tenant_id TEXT NOT NULL,
  spec TEXT NOT NULL, submitted_at INTEGER NOT NULL, eligible_at INTEGER NOT NULL, submissions INTEGER NOT NULL,
  fate TEXT, requeue INTEGER NOT NULL, requeues INTEGER NOT NULL DEFAULT 0, phase TEXT NOT NULL, reason TEXT NOT NULL,
  expected_start_at INTEGER, failure TEXT, exit_code INTEGER, signal INTEGER, ended_at INTEGER, UNIQUE (cluster_id, token)
);
CREATE INDEX jobs_object ON jobs (object_id, phase);
CREATE TABLE runs (
  id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL, object_id INTEGER NOT NULL, started_at INTEGER NOT NULL,
  ends_at INTEGER NOT NULL, end_kind TEXT NOT NULL, ended_at INTEGER, freed_at INTEGER, nodes TEXT NOT NULL
);
CREATE INDEX runs_job ON runs (job_id);
CREATE INDEX runs_object ON runs (object_id, freed_at);
CREATE TABLE rules (
  id INTEGER PRIMARY KEY, fault TEXT NOT NULL, operation TEXT NOT NULL, target TEXT NOT NULL, tenant_id TEXT, remaining INTEGER,
  skip INTEGER NOT NULL, probability REAL NOT NULL, seed INTEGER NOT NULL, params TEXT NOT NULL, matched INTEGER NOT NULL DEFAULT 0,
  played INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE late_effects (id INTEGER PRIMARY KEY, due_at INTEGER NOT NULL, deployment TEXT NOT NULL, operation TEXT NOT NULL,
  target TEXT NOT NULL, token TEXT NOT NULL, tenant_id TEXT NOT NULL, payload TEXT NOT NULL);
CREATE TABLE links (
  id INTEGER PRIMARY KEY, switch TEXT NOT NULL, port TEXT NOT NULL, ref TEXT NOT NULL, network TEXT NOT NULL, tenant_id TEXT NOT NULL,
  segment INTEGER NOT NULL, deployment TEXT NOT NULL, from_at INTEGER NOT NULL, until_at INTEGER, shut INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX links_port ON links (switch, port, id);
CREATE INDEX links_standing ON links (until_at, from_at);
CREATE TABLE calls (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, operation TEXT NOT NULL, target TEXT NOT NULL, token TEXT NOT NULL,
  tenant_id TEXT NOT NULL, reads INTEGER NOT NULL, effect INTEGER NOT NULL DEFAULT 0, answer TEXT NOT NULL DEFAULT '',
  fault TEXT NOT NULL DEFAULT ''
);
"""
LATER = """
CREATE TABLE IF NOT EXISTS turns (
  switch TEXT NOT NULL, port TEXT NOT NULL, turn INTEGER NOT NULL, PRIMARY KEY (switch, port)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS check_sessions (
  token TEXT PRIMARY KEY, refs TEXT NOT NULL, begun_at INTEGER NOT NULL, ready_at INTEGER NOT NULL, ended_at INTEGER
);
CREATE TABLE IF NOT EXISTS check_runs (
  token TEXT NOT NULL, name TEXT NOT NULL, phase TEXT NOT NULL, output TEXT NOT NULL, detail TEXT NOT NULL,
  finished_at INTEGER NOT NULL, UNIQUE (token, name)
);
CREATE TABLE IF NOT EXISTS services (
  id INTEGER PRIMARY KEY, object_id INTEGER NOT NULL, cluster_id TEXT NOT NULL, service_id TEXT NOT NULL, tenant_id TEXT NOT NULL,
  spec TEXT NOT NULL, turn INTEGER NOT NULL, fate TEXT NOT NULL, wanted INTEGER NOT NULL, load REAL NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL, settled_at INTEGER NOT NULL, delete_requested_at INTEGER, UNIQUE (cluster_id, service_id)
);
CREATE TABLE IF NOT EXISTS replicas (
  id INTEGER PRIMARY KEY, service INTEGER NOT NULL, object_id INTEGER NOT NULL, version INTEGER NOT NULL, spec TEXT NOT NULL,
  fate TEXT NOT NULL, nodes TEXT NOT NULL, placed_at INTEGER, ready_at INTEGER, lost_at INTEGER, ending_at INTEGER, ended_at INTEGER,
  made_at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS replicas_service ON replicas (service, ended_at);
CREATE INDEX IF NOT EXISTS replicas_object ON replicas (object_id, ended_at);
CREATE TABLE IF NOT EXISTS standing_clusters (
  uid TEXT PRIMARY KEY, ref TEXT NOT NULL, version TEXT NOT NULL, refs TEXT NOT NULL, cluster_id TEXT NOT NULL, deployment TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS leads (member INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS flaws (machines TEXT NOT NULL, rail INTEGER NOT NULL, factor REAL);
"""
"""What worlds made by earlier versions lack."""


class Store:
    """
    One world's file: a connection per thread and process, and changes one at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inherited: list[object] = []
        self._reset()

    def create(self, fill: Callable[[sqlite3.Connection], None]) -> bool:
        """
        The file exists with its schema and what `fill` put there, once, however many processes ask. True for the one that made it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_name(self.path.name + ".lock").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            with self.change() as db:
                if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                    for statement in LATER.split(";\n"):
                        db.execute(statement)
                    return False
                for statement in (SCHEMA + LATER).split(";\n"):
                    db.execute(statement)
                fill(db)
                return True

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """
        A transaction that holds the file alone; committed at the end of the block, undone by an exception.
        """
        db = self.connection()
        with self._turn:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """
        A consistent reading view of the file that holds nobody up.
        """
        db = self.connection()
        db.execute("BEGIN")
        try:
            yield db
        finally:
            db.execute("ROLLBACK")

    def connection(self) -> sqlite3.Connection:
        """
        This thread's own connection; a forked child gets new ones.
        """
        if os.getpid() != self._pid:
            # A connection must not be closed by the child of the process that opened it; it is kept and never used.
            self._inherited.append(self._local)
            self._reset()
        held: sqlite3.Connection | None = getattr(self._local, "db", None)
        if held is None:
            held = _connect(self.path)
            self._local.db = held
        return held

    def close(self) -> None:
        """
        This thread's connection is closed; the next use opens another.
        """
        held: sqlite3.Connection | None = getattr(self._local, "db", None)
        if held is not None and os.getpid() == self._pid:
            held.close()
        self._local.db = None

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._local = threading.local()
        # Threads of one process queue here in turn instead of polling the file's lock against each other.
        self._turn = threading.Lock()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("PRAGMA temp_store = MEMORY")
    return db
