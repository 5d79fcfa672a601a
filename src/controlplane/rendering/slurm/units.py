"""
Drop-ins for the packages' units: who starts after whom, as whom, and that nobody gives up while another host is still booting.

Source: systemd.unit(5), systemd.service(5); the units of Debian 12 (22.05) and 13 (24.11).
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.rendering.slurm import outputs
from controlplane.rendering.slurm.conf import conf_path
from controlplane.rendering.slurm.files import Change, RenderedFile, text_file
from controlplane.rendering.slurm.plan import Host, SlurmPlan, Worker

REST_USER = "slurmrestd"
"""A user of its own: slurmrestd refuses to run as root or as Slurm's user."""
NEVER_GIVES_UP = ("StartLimitIntervalSec=0",)
RESTARTS = ("Restart=on-failure", "RestartSec=2")


def head_units(plan: SlurmPlan, head: Host) -> tuple[RenderedFile, ...]:
    """
    Of slurmctld, slurmrestd and, on the first head with accounting, slurmdbd.
    """
    keeps_books = plan.accounting is not None and head == plan.heads[0]
    after = ("After=slurmdbd.service", "Wants=slurmdbd.service") if keeps_books else ()
    files = [
        _drop_in("slurmctld", [*after, *NEVER_GIVES_UP], RESTARTS, "slurmctld"),
        _drop_in("slurmrestd", NEVER_GIVES_UP, _rest(plan, head), "slurmrestd"),
    ]
    if keeps_books:
        files.append(
            _drop_in("slurmdbd", ["After=mariadb.service", "Wants=mariadb.service", *NEVER_GIVES_UP], RESTARTS, "slurmdbd")
        )
    return tuple(files)


def worker_units(plan: SlurmPlan, worker: Worker) -> tuple[RenderedFile, ...]:
    """
    Of slurmd, which has no slurm.conf of its own: the packaged unit would skip its start without a word, and slurmd itself ends after
    some seconds while no head answers.
    """
    named = f" -N {worker.name}" if worker.hostname and worker.hostname != worker.name else ""
    options = f"SLURMD_OPTIONS='--conf-server {servers(plan)}{named}'"
    of_unit = ["ConditionPathExists=", *outputs.wanted_by_slurmd(plan), *NEVER_GIVES_UP]
    return (
        text_file("/etc/default/slurmd", [options], on_change="slurmd"),
        _drop_in("slurmd", of_unit, [*RESTARTS, "LimitMEMLOCK=infinity"], "slurmd"),
    )


def login_units(plan: SlurmPlan) -> tuple[RenderedFile, ...]:
    """
    Of sackd, where the release has it.
    """
    if not plan.words.has_sackd:
        return ()
    options = f"SACKD_OPTIONS='--conf-server {servers(plan)}'"
    return (
        text_file("/etc/default/sackd", [options], on_change="sackd"),
        _drop_in("sackd", ["ConditionPathExists=", *NEVER_GIVES_UP], RESTARTS, "sackd"),
    )


def servers(plan: SlurmPlan) -> str:
    """
    The heads as daemons are told to ask them.
    """
    return ",".join(f"{head.address}:{plan.ports.slurmctld}" for head in plan.heads)


def rest_command(plan: SlurmPlan, head: Host) -> tuple[str, ...]:
    """
    How slurmrestd is run on a head: one kind of authentication, and only plug-ins it can load.
    """
    plugins = plan.head_words.rest_plugins_dbd if plan.accounting else plan.head_words.rest_plugins
    return (
        f"{plan.layout.program_dir}/slurmrestd",
        *("-f", conf_path(plan)),
        *("-a", "rest_auth/jwt"),
        *("-s", plugins),
        f"{head.address}:{plan.ports.slurmrestd}",
    )


def _rest(plan: SlurmPlan, head: Host) -> tuple[str, ...]:
    return (
        f"User={REST_USER}",
        f"Group={REST_USER}",
        # any value: with the variable slurmrestd takes tokens, without it none
        "Environment=SLURM_JWT=daemon",
        "ExecStart=",
        f"ExecStart={' '.join(rest_command(plan, head))}",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "ProtectHome=yes",
        "ProtectSystem=strict",
        *RESTARTS,
    )


def _drop_in(unit: str, of_unit: Iterable[str], of_service: Iterable[str], change: Change) -> RenderedFile:
    path = f"/etc/systemd/system/{unit}.service.d/10-cluster.conf"
    return text_file(path, ["[Unit]", *of_unit, "", "[Service]", *of_service], on_change=change)
