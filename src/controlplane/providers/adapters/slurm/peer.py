"""
One Slurm as the rest of the adapter sees it: records in, changes out, its dialect and its two ways in hidden.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping

from controlplane.providers.adapters.slurm import answers
from controlplane.providers.adapters.slurm.answers import JobRecord, NodeRecord, ReservationRecord
from controlplane.providers.adapters.slurm.cli import Cli
from controlplane.providers.adapters.slurm.client import UNKNOWN_FIELD, Answer, SlurmRest, WordlessFailure
from controlplane.providers.adapters.slurm.config import SUPPORTED_API, SlurmConfig
from controlplane.providers.adapters.slurm.folding import whole
from controlplane.providers.adapters.slurm.names import Names, plain
from controlplane.providers.adapters.slurm.requests import Submit, body
from controlplane.providers.errors import AuthFailed, NotFound, ProviderError, Refused, Unknown, Unsupported

_PATH = re.compile(r"/slurm/v0\.0\.(\d+)/")
SEAL_AFTER_S = 1.5
"""slurmctld stamps changes by the second: a stamp seen twice this far apart can get no more changes."""


class Peer:
    """
    A Slurm: slurmrestd, and scontrol where it is configured. Safe to share between threads.
    """

    def __init__(
        self,
        rest: SlurmRest,
        cli: Cli | None,
        config: SlurmConfig,
        names: Names,
        *,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rest = rest
        self._cli = cli
        self._config = config
        self.names = names
        self._elapsed_s = elapsed_s
        self._lock = threading.Lock()
        self._version: int | None = None
        self._jobs: _SealedList | None = None
        self._accounts: bool | None = None

    @property
    def cli(self) -> Cli:
        """
        The command path. Raises Unsupported where none is configured.
        """
        if self._cli is None:
            raise Unsupported("this needs scontrol, and no cli is configured for this Slurm", code="provider_needs_cli")
        return self._cli

    @property
    def has_cli(self) -> bool:
        """
        Whether there is a command path.
        """
        return self._cli is not None

    def version(self) -> int:
        """
        The API's minor number, asked once. Raises Unsupported when the peer has none we know.
        """
        with self._lock:
            known = self._version
        if known is None:
            known = self._discover()
            with self._lock:
                self._version = known
        return known

    def release(self) -> str:
        """
        Slurm's release, for example `22.05.8`; proves that slurmctld answers and takes our token.
        """
        return answers.release(self._get("/ping").body)

    def nodes(self) -> tuple[NodeRecord, ...]:
        """
        All nodes.
        """
        return answers.records(self._get("/nodes").body, "nodes", answers.node)

    def node(self, name: str) -> NodeRecord:
        """
        One node. Raises NotFound only when the whole listing lacks it: versions differ in how they say that one is not there.
        """
        plain(name, "node name")
        try:
            found = answers.records(self._get(f"/node/{name}").body, "nodes", answers.node)
        except (NotFound, Unknown) as error:
            if isinstance(error, WordlessFailure):
                raise
            found = ()
        for record in found or self.nodes():
            if record.name == name:
                return record
        raise NotFound(f"no node {name}")

    def reservations(self) -> tuple[ReservationRecord, ...]:
        """
        All reservations.
        """
        return answers.records(self._get("/reservations").body, "reservations", answers.reservation)

    def find_reservation(self, cluster_id: str) -> ReservationRecord | None:
        """
        The cluster's wall, or None when the complete listing lacks it. A dedicated Slurm is as a whole what a wall would hold, without
        a name.
        """
        if self._config.dedicated:
            return ReservationRecord("", tuple(one.name for one in self.nodes()), (self._config.users[0],), None, None)
        name = self.names.reservation(cluster_id)
        return next((one for one in self.reservations() if one.name == name), None)

    def jobs(self) -> tuple[JobRecord, ...]:
        """
        All jobs slurmctld still knows, without the traces of refused submits.
        """
        with self._lock:
            cached = self._jobs
        params = {"update_time": str(cached.stamp_s + 1)} if cached and cached.sealed else None
        asked_at = self._elapsed_s()
        answer = self._get("/jobs", params)
        if answer.unchanged:
            if cached is None or params is None:
                raise Unknown("slurmrestd says that nothing changed, but was not asked")
            return cached.jobs
        listed = answers.records(answer.body, "jobs", answers.job)
        found = tuple(one for one in listed if not one.rejected)
        # v0.0.38 does not tell its stamp, and ours may differ from its clock: no cache then
        stamp_s = whole(answer.body.get("last_update"))
        if stamp_s:
            self._keep(_SealedList(stamp_s, asked_at, self._elapsed_s(), found))
        return found

    def submit(self, submit: Submit, user: str) -> int:
        """
        Slurm's number of the new job. Raises Refused when the server ignored a field, and cancels it: it could run without GPUs.
        """
        version = self.version()
        answer = self._rest.change("POST", self._path("/job/submit", version), body(submit, version), user=user)
        job_id = whole(answer.body.get("job_id"))
        if not job_id:
            raise Unknown(f"the submit was answered without a job number: {answer.detail}")
        ignored = [one.text for one in (*answer.warnings, *answer.errors) if UNKNOWN_FIELD in one.text.lower()]
        if ignored:
            self.cancel(job_id)
            raise Refused(f"slurmrestd ignored a field, so job {job_id} was cancelled: {ignored[0]}", code="provider_dialect")
        return job_id

    def cancel(self, job_id: int) -> None:
        """
        The job was asked to end; one that has ended or is not there is fine. Its state is read again by whoever must be sure.
        """
        try:
            self._rest.change("DELETE", self._path(f"/job/{int(job_id)}", self.version()))
        except NotFound:
            return
        except Refused as error:
            if "[2021]" not in error.detail:
                raise

    def has_accounts(self) -> bool:
        """
        Whether slurmctld writes to a slurmdbd; asked once.
        """
        if self._cli is None:
            return False
        with self._lock:
            known = self._accounts
        if known is None:
            said = self._cli.scontrol("show", "config")
            settings = dict(line.partition("=")[::2] for line in said.splitlines())
            known = any(key.strip() == "AccountingStorageType" and "slurmdbd" in value for key, value in settings.items())
            with self._lock:
                self._accounts = known
        return known

    def write_nodes(self, lines: list[str]) -> None:
        """
        The updates have been carried out, all by one scontrol.
        """
        if lines:
            self.cli.scontrol_lines(lines)

    def _keep(self, fresh: _SealedList) -> None:
        with self._lock:
            old = self._jobs
            if old and old.stamp_s > fresh.stamp_s:
                return
            if old and old.stamp_s == fresh.stamp_s:
                fresh.first_seen_at = min(old.first_seen_at, fresh.first_seen_at)
                fresh.sealed = old.sealed or fresh.asked_at - old.first_seen_at >= SEAL_AFTER_S
            self._jobs = fresh

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Answer:
        version = self.version()
        try:
            return self._rest.read(self._path(path, version), params)
        except WordlessFailure as error:
            if self._cli is not None and self._cli.controller_is_up():
                raise AuthFailed(f"slurmctld is up but slurmrestd gets no answer with our token: {error.detail}") from error
            raise
        except ProviderError:
            # the server may have been replaced by one of another version
            with self._lock:
                self._version = None
            raise

    def _discover(self) -> int:
        wanted = [one for one in SUPPORTED_API if self._config.api_versions is None or one in self._config.api_versions]
        paths = self._rest.read("/openapi/v3").body.get("paths")
        if not isinstance(paths, Mapping):
            raise Unsupported("slurmrestd's OpenAPI document has no paths", code="provider_answer_unknown")
        offered = {int(match[1]) for path in paths if (match := _PATH.match(str(path)))}
        for one in wanted:
            if one in offered:
                return one
        named = ", ".join(f"v0.0.{one}" for one in sorted(offered)) or "none"
        raise Unsupported(f"slurmrestd offers {named}; this adapter speaks {', '.join(f'v0.0.{one}' for one in wanted)}")

    @staticmethod
    def _path(path: str, version: int) -> str:
        return f"/slurm/v0.0.{version}{path}"


class _SealedList:
    """
    A job list and slurmctld's stamp of it.
    """

    def __init__(self, stamp_s: int, asked_at: float, answered_at: float, jobs: tuple[JobRecord, ...]) -> None:
        self.stamp_s = stamp_s
        self.asked_at = asked_at
        self.first_seen_at = answered_at
        self.jobs = jobs
        self.sealed = False
