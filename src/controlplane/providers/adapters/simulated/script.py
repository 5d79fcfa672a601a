"""
The small shell that simulated jobs are written in: what a script prints, how long it takes and how it ends.

Known commands: `echo`, `sleep N`, `exit N`, `true`, `false`, `kill -N $$`, `hostname`, `env`/`printenv`, `export K=V`, `K=V`, and
`srun` in front of any of them or of `bash -c '...'`/`sh -c '...'`. Commands may be joined by `;` or `&&`. Anything else is taken to
succeed at once in silence; behind `srun` it prints one line per task that tells where the task ran. `$K` and `${K}` are replaced
from the job's environment. The grammar is written down in `docs/simulator.md`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.providers.adapters.simulated.durations import MICROS
from controlplane.providers.adapters.simulated.slices import Device, Nodes

MAX_SCRIPT_BYTES = 256 * 1024
MAX_SLEEP_S = 366 * 86_400
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_OWN_PID = "\x00PID"
_SRUN_FLAGS_WITH_VALUE = frozenset({"-n", "-N", "-c", "-w", "-x", "-t", "-J", "-G", "-o", "-e", "-p", "-A", "-D", "-m"})
_TASK_LINE = "SLURMD_NODENAME=$SLURMD_NODENAME SLURM_PROCID=$SLURM_PROCID CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Gang:
    """
    Where one run of a job stands.
    """

    job_id: str
    """The peer's id of the job."""
    nodes: Nodes
    """Machine and what it gives of its GPUs."""
    tasks_per_node: int
    """Tasks that `srun` starts on each machine."""
    cluster: str
    """The cluster's name."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The job's own environment."""
    restarts: int = 0
    """How often the peer started it again before this run."""
    pods: bool = False
    """Whether its script runs once on each machine, as on Kubernetes, and not once on the first."""
    gpus_per_node: int = 0
    """As it was asked for."""


@dataclass(frozen=True, slots=True)
class Printed:
    """
    One line of output.
    """

    at_us: int
    """Microseconds after the run's start."""
    line: str
    """Without its line end."""


@dataclass(frozen=True, slots=True)
class Played:
    """
    What became of a script.
    """

    duration_us: int
    """How long it ran."""
    exit_code: int
    """Of the script; 0 when a signal ended it."""
    signal: int
    """The signal that ended it; 0 for none."""
    printed: tuple[Printed, ...]
    """Its output in order."""


def problem_of(script: str) -> str:
    """
    Why the peer would refuse the script; empty when it would not.
    """
    if not script.startswith("#!"):
        return "the script does not begin with #!"
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        return f"the script is larger than {MAX_SCRIPT_BYTES} bytes"
    if "\x00" in script:
        return "the script holds a NUL"
    return ""


def play(script: str, gang: Gang) -> Played:
    """
    The script's run on the gang, from its first line to its end.
    """
    if not gang.pods:
        return _run(script, _Shell(gang))
    runs = [_run(script, _Shell(gang, node)) for node in range(len(gang.nodes))]
    bad = [one for one in runs if one.exit_code or one.signal]
    # the first pod that fails ends the others
    first = min(bad, key=lambda one: one.duration_us, default=None)
    until = first.duration_us if first is not None else max((one.duration_us for one in runs), default=0)
    printed = sorted((line for one in runs for line in one.printed if line.at_us <= until), key=lambda line: line.at_us)
    ended = (0, 0) if first is None else (first.exit_code, first.signal)
    return Played(until, *ended, tuple(printed))


def _run(script: str, shell: _Shell) -> Played:
    for line in script.replace("\\\n", " ").splitlines():
        for words in _commands(line):
            shell.run(words)
            if shell.over:
                return shell.result()
    return shell.result()


def _commands(line: str) -> Sequence[list[str]]:
    """
    The line's commands as words, quotes taken off; single quotes keep `$` from being replaced.
    """
    text = line.strip()
    if not text or text.startswith("#"):
        return ()
    lexer = shlex.shlex(_shield(text), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return ()
    found: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set(";&|"):
            found.append([])
        else:
            found[-1].append(word)
    return [one for one in found if one]


def _shield(text: str) -> str:
    """
    A `$` inside single quotes, or behind a backslash, is set aside so that only the others are replaced.
    """
    made, single, double, index = [], False, False, 0
    while index < len(text):
        char = text[index]
        if char == "\\" and not single and text[index + 1 : index + 2] == "$":
            made.append("\x01")
            index += 2
            continue
        if char == "'" and not double:
            single = not single
        elif char == '"' and not single:
            double = not double
        made.append("\x01" if char == "$" and single else char)
        index += 1
    return "".join(made)


class _Shell:
    """
    The state of one run.
    """

    def __init__(self, gang: Gang, pod: int | None = None) -> None:
        self._gang = gang
        self._clock_us = 0
        self._printed: list[Printed] = []
        self._status = 0
        self._signal = 0
        self.over = False
        self._env = _job_env(gang) if pod is None else _pod_env(gang, pod)

    def result(self) -> Played:
        """
        How it ended.
        """
        return Played(self._clock_us, 0 if self._signal else self._status, self._signal, tuple(self._printed))

    def run(self, words: list[str]) -> None:
        """
        One command has been run.
        """
        if words[0] == "exec":
            words = words[1:] or ["true"]
        if words[0] == "srun" and self._gang.pods:
            self._print("srun: command not found")
            self._status = 127
        elif words[0] == "srun":
            # As in any shell, the script's own variables are replaced before the tasks start.
            self._run_on_tasks([_substitute(word, self._env) for word in _without_flags(words[1:])])
        else:
            self._one(words, self._env, quiet=True)

    def _run_on_tasks(self, words: list[str]) -> None:
        started, latest, worst = self._clock_us, self._clock_us, 0
        rank = 0
        for node, (ref, gpus) in enumerate(self._gang.nodes):
            for task in range(self._gang.tasks_per_node):
                self._clock_us, self._status = started, 0
                env = {**self._env, **_task_env(ref, gpus, node=node, task=task, rank=rank)}
                self._step(words, env)
                worst = max(worst, self._status, 128 + self._signal if self._signal else 0)
                latest = max(latest, self._clock_us)
                self._signal, self.over = 0, False
                rank += 1
        self._clock_us, self._status = latest, worst
        self._printed.sort(key=lambda one: one.at_us)

    def _step(self, words: list[str], env: dict[str, str]) -> None:
        if len(words) >= 3 and words[0].rpartition("/")[2] in {"bash", "sh"} and words[1] in {"-c", "-lc", "-ec"}:  # noqa: PLR2004
            for inner in _commands(words[2].replace("\x01", "$")):
                self._one(inner, env, quiet=False)
                if self.over:
                    return
        else:
            self._one(words, env, quiet=False)

    def _one(self, words: list[str], env: dict[str, str], *, quiet: bool) -> None:
        if words and words[0] in {"export", "exec"}:
            words = words[1:]
        while words and (found := _ASSIGNMENT.match(words[0])):
            env[found[1]] = _expand(found[2], env)
            words = words[1:]
        if not words:
            return
        name, rest = words[0], [_expand(word, env) for word in words[1:]]
        self._status = 1 if name == "false" else 0
        if name == "sleep":
            self._clock_us += round(_number(rest, most=MAX_SLEEP_S) * MICROS)
        elif name == "exit":
            self._status, self.over = int(_number(rest, most=255)), True
        elif name == "kill" and rest[1:] == [_OWN_PID] and rest[0][:1] == "-" and rest[0][1:].isdigit():
            self._signal, self.over = int(rest[0][1:]), True
        else:
            self._say(name, rest, env, quiet=quiet)

    def _say(self, name: str, rest: list[str], env: Mapping[str, str], *, quiet: bool) -> None:
        if name == "echo":
            self._print(" ".join(rest[1:] if rest[:1] == ["-n"] else rest))
        elif name == "hostname":
            self._print(env["HOSTNAME"])
        elif name in {"env", "printenv"}:
            for key in rest or sorted(env):
                self._print(env.get(key, "") if rest else f"{key}={env[key]}")
        elif not quiet and name not in {"true", "false"}:
            self._print(_expand(_TASK_LINE, env))

    def _print(self, text: str) -> None:
        self._printed.append(Printed(self._clock_us, text.replace(_OWN_PID, "4242")))


def _without_flags(words: list[str]) -> list[str]:
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index] in _SRUN_FLAGS_WITH_VALUE else 1
    return words[index:]


def _job_env(gang: Gang) -> dict[str, str]:
    first, gpus = gang.nodes[0] if gang.nodes else ("", ())
    return {
        **gang.env,
        "SLURM_JOB_ID": gang.job_id,
        "SLURM_JOBID": gang.job_id,
        "SLURM_CLUSTER_NAME": gang.cluster,
        "SLURM_JOB_NODELIST": ",".join(ref for ref, _ in gang.nodes),
        "SLURM_NODELIST": ",".join(ref for ref, _ in gang.nodes),
        "SLURM_JOB_NUM_NODES": str(len(gang.nodes)),
        "SLURM_NNODES": str(len(gang.nodes)),
        "SLURM_NTASKS": str(len(gang.nodes) * gang.tasks_per_node),
        "SLURM_NTASKS_PER_NODE": str(gang.tasks_per_node),
        "SLURM_RESTART_COUNT": str(gang.restarts),
        **_task_env(first, gpus, node=0, task=0, rank=0),
    }


def _pod_env(gang: Gang, pod: int) -> dict[str, str]:
    """
    What a pod is told; the job's own variables win.
    """
    ref, gpus = gang.nodes[pod]
    return {
        "HOSTNAME": ref,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "NODE_RANK": str(pod),
        "NNODES": str(len(gang.nodes)),
        "GPUS_PER_NODE": str(gang.gpus_per_node),
        "TASKS_PER_NODE": str(gang.tasks_per_node),
        "MASTER_ADDR": gang.nodes[0][0],
        "MASTER_PORT": "29500",
        **gang.env,
    }


def _task_env(ref: str, gpus: tuple[Device, ...], *, node: int, task: int, rank: int) -> dict[str, str]:
    return {
        "SLURMD_NODENAME": ref,
        "HOSTNAME": ref,
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(task),
        "SLURM_PROCID": str(rank),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
        "SLURM_JOB_GPUS": ",".join(map(str, gpus)),
    }


def _expand(text: str, env: Mapping[str, str]) -> str:
    return _substitute(text, env).replace("\x01", "$")


def _substitute(text: str, env: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], ""), text.replace("$$", _OWN_PID))


def _number(words: list[str], *, most: int) -> float:
    try:
        given = float(words[0].removesuffix("s")) if words else 0.0
    except ValueError:
        return 0.0
    return min(max(given, 0.0), float(most)) if given == given else 0.0  # noqa: PLR0124
