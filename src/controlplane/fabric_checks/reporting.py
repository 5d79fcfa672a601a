"""
What machines of a check say and are told, each by the token of its own boot: that they have come, which run is theirs now and who else is
in it, and what their tools said. Whoever calls has verified the token already.

Rows are locked as the lifecycle engine locks them, the check first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from sqlalchemy import Row
from sqlalchemy.orm import Session

from controlplane.boots.states import hide_tokens
from controlplane.fabric_checks import repository
from controlplane.fabric_checks.errors import AnotherWord, RunOver
from controlplane.fabric_checks.states import Arrival, Result, Run, tool_settings
from controlplane.kit.errors import NotFound
from controlplane.kit.lifecycle import wake

Role = Literal["client", "server", "head", "all"]


@dataclass(frozen=True, slots=True)
class Peer:
    """
    A machine of a run, as the others of the run are told of it.
    """

    address: str
    """Where it is reached."""
    key: str
    """Its public key as a client of SSH."""
    host_key: str
    """Its public key as a server of SSH."""


@dataclass(frozen=True, slots=True)
class Errand:
    """
    What a machine is to run now.
    """

    run: str
    """The run."""
    tool: str
    """Which tool."""
    role: Role
    """Its part: of a pair client or server, of a collective head or one of all."""
    place: int
    """Which of the peers it is itself."""
    peers: tuple[Peer, ...]
    """All machines of the run, the first one being client or head."""
    device: str
    """The only RDMA device to use; empty: all."""
    gpus: int
    """GPUs of each machine that take part."""
    limit_s: int
    """Longest the tool may run."""
    options: tuple[str, ...]
    """Of the tool."""
    launcher: tuple[str, ...]
    """More options of mpirun."""


@dataclass(frozen=True, slots=True)
class Heard:
    """
    What became of a machine's call.
    """

    errand: Errand | None
    """What it is to run; None: it waits."""
    check_id: str = ""
    """The check to look at, where the call changed it; else empty."""


@dataclass(frozen=True, slots=True)
class Word:
    """
    What a machine says of its part in a run.
    """

    result: Result
    """`passed`: its tool came to its end."""
    detail: str
    """Why it failed or was not measured."""
    output: str
    """All that the tool printed; only of client and head."""

    @property
    def digest(self) -> str:
        """
        Of all of it, in hex.
        """
        whole = f"{self.result}\0{self.detail}\0{self.output}"
        return sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def come(session: Session, boot_id: str, arrival: Arrival) -> Heard:
    """
    The machine of the boot has come to its check, and to the run that is opened for it; what it is to run is returned once all of the
    run's machines have come to it, and as long as the run is open and the machine has said nothing of it.

    Raises NotFound for every boot that is lent to no check that still goes on, AnotherWord for a second arrival that tells otherwise.
    """
    guest = _known(repository.find_guest(session, boot_id))
    told = arrival.document()
    if guest.arrived_at is None:
        wake(session, "fabric_checks", [guest.check_id])
        repository.put_arrival(session, guest.check_id, guest.node_id, guest.known_address or arrival.address, told)
        return Heard(None, guest.check_id)
    if guest.told != told:
        raise AnotherWord("This boot has told otherwise of its machine before.")
    if guest.run is None or guest.result:
        return Heard(None)
    if guest.came_at is None:
        repository.put_came(session, guest.check_id, guest.run, guest.node_id)
    others = repository.peers_of(session, guest.check_id, guest.run)
    if any(one.came_at is None for one in others):
        return Heard(None)
    return Heard(_errand(guest, {one.ref: one for one in others}))


def take_word(session: Session, boot_id: str, run: str, word: Word) -> str:
    """
    The machine's word on its part in the run counts; the check to look at is returned, empty where the same was said before.

    Raises NotFound for a boot that is in no such check or run, RunOver for one that nothing more is taken for, and for one that its machine
    has not been sent to, AnotherWord for a second word that says otherwise.
    """
    guest = _known(repository.find_guest(session, boot_id))
    wake(session, "fabric_checks", [guest.check_id])
    known = _known(repository.lock_attendance(session, guest.check_id, run, guest.node_id))
    if known.digest:
        if known.digest != word.digest:
            raise AnotherWord("This machine has said otherwise of the run before.")
        return ""
    if known.closed_at is not None or known.came_at is None:
        raise RunOver("Nothing is taken for this run now.")
    output = word.output if guest.ref == _run(guest.rounds, run).refs[0] else ""
    values = {"result": word.result, "detail": _plain(word.detail), "output": _plain(output), "digest": word.digest}
    repository.put_word(session, guest.check_id, run, guest.node_id, values)
    return str(guest.check_id)


def _errand(guest: Row[Any], others: Mapping[str, Row[Any]]) -> Errand:
    run = _run(guest.rounds, guest.run)
    settings = tool_settings(guest.config)
    place = run.refs.index(guest.ref)
    pair = guest.tool == "ib_write_bw"
    role: Role = ("server" if place else "client") if pair else ("all" if place else "head")
    told = [others[ref] for ref in run.refs]
    return Errand(
        run=run.name,
        tool=guest.tool,
        role=role,
        place=place,
        peers=tuple(Peer(one.address, one.told["key"], one.told["host_key"]) for one in told),
        device="" if run.rail is None else settings.rails[run.rail],
        gpus=min(int(one.told["gpus"]) for one in told),
        limit_s=settings.timeout_s,
        options=settings.ib_write_bw if pair else settings.all_reduce,
        launcher=settings.mpirun,
    )


def _plain(text: str) -> str:
    """
    The text as it can be stored, without tokens of boots.
    """
    return hide_tokens(text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8"))


def _run(rounds: Sequence[Sequence[Mapping[str, Any]]], name: str) -> Run:
    return next(Run.of(one) for some in rounds for one in some if one["name"] == name)


def _known(row: Row[Any] | None) -> Row[Any]:
    if row is None:
        raise NotFound
    return row
