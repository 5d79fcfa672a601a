"""
Where a cluster's files are, where its daemons listen and how long things may take.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """
    Absolute paths; the defaults are those of Debian's packages.
    """

    conf_dir: str = "/etc/slurm"
    """Configuration of the head; workers get theirs from the head."""
    state_dir: str = "/var/lib/slurm/slurmctld"
    """StateSaveLocation: jobs survive a restart of the head in it, so it is on a disk that does."""
    spool_dir: str = "/var/lib/slurm/slurmd"
    """SlurmdSpoolDir; `%n` is appended where several slurmd share a host."""
    log_dir: str = "/var/log/slurm"
    """Of all daemons."""
    hooks_dir: str = "/usr/local/libexec/slurm"
    """Prolog, epilog and other programs slurmd runs."""
    run_dir: str = "/run"
    """Process ids."""
    program_dir: str = "/usr/sbin"
    """Daemons, under their plain names: they look at their own name."""
    munge_key: str = "/etc/munge/munge.key"
    """Shared by all hosts of the cluster."""
    stamps_dir: str = "/var/lib/slurm-cluster"
    """What start scripts remember."""


@dataclass(frozen=True, slots=True)
class Ports:
    """
    TCP ports.
    """

    slurmctld: int = 6817
    """Of the controller."""
    slurmd: int = 6818
    """Of the workers."""
    slurmdbd: int = 6819
    """Of accounting."""
    slurmrestd: int = 6820
    """Of the REST API."""


@dataclass(frozen=True, slots=True)
class Timing:
    """
    Seconds.
    """

    slurmd_timeout_s: int = 300
    """A worker that is silent for longer is down, and its jobs are requeued."""
    slurmctld_timeout_s: int = 120
    """A backup head takes over after that."""
    reboot_s: int = 1800
    """A worker that was told to reboot is down after that; GPU servers take their time."""
    kill_wait_s: int = 30
    """Between TERM and KILL of a job past its limit."""
    unkillable_s: int = 180
    """A step that survives KILL for longer drains its node: processes that hang in a driver take a while."""
    hook_s: int = 300
    """Longest a prolog or epilog may run."""
    credential_s: int = 120
    """Lifetime of a job's credential; a requeued job waits that long."""
