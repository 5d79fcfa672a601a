"""
The bodies of submits: one builder for each of the two dialects of slurmrestd.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from controlplane.providers.adapters.slurm.hostlist import compress
from controlplane.providers.errors import Unsupported

MODERN = 40
"""From v0.0.40 on slurmrestd speaks its second dialect."""
SCRIPT_INSIDE = 41
"""From v0.0.41 on the script stands inside the job."""
EXCLUDES = MODERN
"""v0.0.38 cannot exclude nodes; scontrol can, on a held job."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Submit:
    """
    A batch job, in Slurm's words and in no version's spelling.
    """

    name: str
    """By which it is found again."""
    comment: str
    """Our mark."""
    script: str
    """With its `#!` line."""
    output: str
    """
    Path of its output and errors. Never left to Slurm: the default fails with 0:53 where the user cannot write. Each run appends to
    it: a second run that emptied it would make the offsets that readers hold wrong.
    """
    nodes: int
    """All or none."""
    tasks_per_node: int
    """Tasks of a bare `srun`."""
    minutes: int
    """Hard limit."""
    gpus: int = 0
    """On each node."""
    gpu_type: str = ""
    """As in gres.conf; empty: any."""
    reservation: str = ""
    """The wall it stays in."""
    partition: str = ""
    """Empty: Slurm's default."""
    account: str = ""
    """Empty: the user's default."""
    env: dict[str, str] = field(default_factory=dict)
    """Of the script."""
    exclude: tuple[str, ...] = ()
    """Nodes to stay away from."""
    only: tuple[str, ...] = ()
    """Nodes it must have."""
    exclusive: bool = False
    """Whether nobody else may be on its nodes."""
    hold: bool = False
    """Whether it waits for a release."""
    requeue: bool = True
    """Whether Slurm may start it again after a node failed."""
    nice: int = 0
    """How far behind others of its age it stands; a tenant's user may only ask for more, never for less than 0."""


def minutes(seconds: int) -> int:
    """
    Slurm's time limit in whole minutes, never shorter than asked.
    """
    return max(1, math.ceil(seconds / 60))


def body(submit: Submit, version: int) -> dict[str, Any]:
    """
    The body for `POST /slurm/v0.0.N/job/submit`. Raises Unsupported for what that version cannot say.
    """
    fields = _modern(submit) if version >= MODERN else _first(submit)
    job = {key: value for key, value in fields.items() if value not in (None, "", [])}
    if version >= SCRIPT_INSIDE:
        return {"job": {**job, "script": submit.script}}
    return {"script": submit.script, "job": job}


def _both(submit: Submit) -> dict[str, Any]:
    return {
        "name": submit.name,
        "comment": submit.comment,
        "current_working_directory": "/tmp",  # noqa: S108 - must exist on every node and be enterable by every user
        "standard_output": submit.output,
        "standard_error": submit.output,
        "tasks_per_node": submit.tasks_per_node,
        # without it a bare srun on newer servers starts one task a node
        "tasks": submit.nodes * submit.tasks_per_node,
        "partition": submit.partition,
        "account": submit.account,
        "reservation": submit.reservation,
        "hold": True if submit.hold else None,
        "nice": submit.nice or None,
    }


def _gres(submit: Submit) -> str:
    return ":".join(part for part in ("gpu", submit.gpu_type, str(submit.gpus)) if part) if submit.gpus else ""


def _first(submit: Submit) -> dict[str, Any]:
    """
    v0.0.38. `nodes` must be a number (its documented list gives one node); `nodelist` works though it is not documented.
    """
    if submit.exclude:
        raise Unsupported("v0.0.38 cannot exclude nodes in a submit")
    return {
        **_both(submit),
        "environment": {"PATH": _PATH, **submit.env},
        "nodes": submit.nodes,
        "gres": _gres(submit),
        "time_limit": submit.minutes,
        "nodelist": compress(submit.only),
        "exclusive": "exclusive" if submit.exclusive else None,
        "open_mode": "append",
        # this version takes `requeue` for true whatever it says
        "requeue": True if submit.requeue else None,
        "no_requeue": None if submit.requeue else True,
    }


def _modern(submit: Submit) -> dict[str, Any]:
    """
    v0.0.40 and later, where `gres` would be dropped with a mere warning.
    """
    gres = _gres(submit)
    return {
        **_both(submit),
        "environment": [f"{key}={value}" for key, value in {"PATH": _PATH, **submit.env}.items()],
        "nodes": str(submit.nodes),
        "tres_per_node": f"gres/{gres}" if gres else "",
        "time_limit": {"set": True, "infinite": False, "number": submit.minutes},
        "required_nodes": list(submit.only),
        "excluded_nodes": list(submit.exclude),
        "shared": ["none"] if submit.exclusive else None,
        "open_mode": ["APPEND"],
        "requeue": submit.requeue,
    }
