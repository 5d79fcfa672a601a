"""
How a program is started on a gang: the scripts that peers run for it. Pure.

The same words stand in both: on every node the launcher is told how many nodes there are, which of them it is on, and where all meet. Under
Slurm one task on each node does that; where a peer starts one process on each node by itself, the process is the launcher.
"""

import base64
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

TORCHRUN = (
    '--nnodes="$NNODES" --nproc-per-node="$TASKS_PER_NODE" --node-rank="$NODE_RANK"'
    ' --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
)
FIRST_PORT = 20_000
PORTS = 10_000
SCRIPT_VARIABLE = "CONTROLPLANE_SCRIPT"


@dataclass(frozen=True, slots=True)
class Launch:
    """
    A program that runs on all nodes of a gang at once.
    """

    kind: Literal["torchrun", "mpi"]
    """torchrun: one launcher on each node, which starts the processes; mpi: the scheduler starts every process itself."""
    command: tuple[str, ...]
    """The program and its arguments; for torchrun what follows the launcher's own arguments."""
    launcher: tuple[str, ...] = ("torchrun",)
    """What is run in the place of `torchrun`, for example `python3 -m torch.distributed.run`."""
    setup: str = ""
    """Shell lines that run before it, on every node."""
    pmi: str = ""
    """How MPI processes find each other under Slurm: `pmix`, `pmi2`; empty: as the peer is set up."""
    implementation: Literal["openmpi", "intel", "mpich"] = "openmpi"
    """Which MPI the image has, where its own `mpirun` starts the processes."""


@dataclass(frozen=True, slots=True)
class Gang:
    """
    The shape of a gang under Slurm.
    """

    nodes: int
    """How many."""
    gpus_per_node: int
    """GPUs on each."""
    tasks_per_node: int
    """Processes on each."""
    image: str = ""
    """The container image they run in, by Pyxis; empty: none."""
    mounts: tuple[str, ...] = ()
    """What its containers have of the node's folders, as Pyxis takes it: `from:to`, or `from:to:ro`."""
    address: str = "$(hostname)"
    """A shell expression for the address of the first node, in the batch script."""


def on_each_node(launch: Launch) -> str:
    """
    The script of the process that a peer starts on each node, told where it is by its environment. Raises ValueError for MPI.
    """
    if launch.kind != "torchrun":
        raise ValueError("only a scheduler that starts every process can launch MPI")
    return f"#!/bin/sh\n{_each(launch)}\n"


def by_mpirun(launch: Launch, *, nodes: int, per_node: int, variables: Iterable[str]) -> str:
    """
    The script of a launcher that has a list of hosts and reaches them, and tells every process its rank as Slurm's do. Open MPI passes
    variables on by name only, the others all of them. Hosts are filled one after the other.
    """
    passed = [f"-x {shlex.quote(name)}" for name in sorted(variables)] if launch.implementation == "openmpi" else []
    rank = (
        'export RANK="${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" LOCAL_RANK="${OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}"'
        f" WORLD_SIZE={nodes * per_node}; export NODE_RANK=$((RANK / {per_node}))"
    )
    words = " ".join(["mpirun", f"-n {nodes * per_node}", *passed, "sh", "-c", shlex.quote(f"{rank}; {_each(launch)}")])
    return f"#!/bin/sh\n{words}\n"


def under_slurm(launch: Launch, gang: Gang) -> str:
    """
    The batch script that starts the program through srun.
    """
    rank = "export NODE_RANK=$SLURM_NODEID"
    if launch.kind == "mpi":
        rank += " RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    per_node = gang.tasks_per_node if launch.kind == "mpi" else 1
    flags = [*_flags(gang, per_node), *([f"--mpi={launch.pmi}"] if launch.pmi else [])]
    inner = f"{rank}; {_each(launch)}"
    return "\n".join([*_head(gang), f"exec srun {' '.join(flags)} sh -c {shlex.quote(inner)}", ""])


def script_in_image(script: str, gang: Gang) -> str:
    """
    The batch script that runs the script once on each node, inside the image: as a peer does that runs containers.
    """
    packed = base64.b64encode(script.encode()).decode()
    inner = (
        "export NODE_RANK=$SLURM_NODEID; f=$(mktemp) && "
        f'printf %s "${SCRIPT_VARIABLE}" | base64 -d > "$f" && chmod 700 "$f" && exec "$f"'
    )
    start = f"exec srun {' '.join(_flags(gang, 1))} sh -c {shlex.quote(inner)}"
    return "\n".join([*_head(gang), f"export {SCRIPT_VARIABLE}={packed}", start, ""])


def _each(launch: Launch) -> str:
    program = " ".join(map(shlex.quote, launch.command))
    if launch.kind == "torchrun":
        program = f"{' '.join(map(shlex.quote, launch.launcher))} {TORCHRUN} {program}"
    setup = f"{launch.setup.rstrip()}\n" if launch.setup.strip() else ""
    return f"{setup}exec {program}"


def _head(gang: Gang) -> list[str]:
    """
    What all processes are told; a variable that the job sets itself is left as it is.
    """
    port = f"$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
    return [
        "#!/bin/bash",
        f"export NNODES={gang.nodes} GPUS_PER_NODE={gang.gpus_per_node} TASKS_PER_NODE={gang.tasks_per_node}",
        f': "${{MASTER_ADDR:={gang.address}}}" "${{MASTER_PORT:={port}}}"',
        "export MASTER_ADDR MASTER_PORT",
    ]


def _flags(gang: Gang, per_node: int) -> list[str]:
    """
    A step that has all CPUs of the job on each node, however few tasks it starts there.
    """
    cpus = max(1, gang.tasks_per_node // per_node)
    flags = [
        f"--nodes={gang.nodes}",
        f"--ntasks={gang.nodes * per_node}",
        f"--ntasks-per-node={per_node}",
        f"--cpus-per-task={cpus}",
    ]
    if gang.image:
        flags.append(f"--container-image={shlex.quote(gang.image)}")
    if gang.mounts:
        flags.append(f"--container-mounts={shlex.quote(','.join(gang.mounts))}")
    return flags
