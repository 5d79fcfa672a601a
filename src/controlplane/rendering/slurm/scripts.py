"""
What starts each role: shell scripts that can be run again at any time, and that end, well or badly, after a bounded wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from controlplane.rendering.shell import Script, prelude
from controlplane.rendering.slurm import accounting, containers
from controlplane.rendering.slurm.keys import jwt_path
from controlplane.rendering.slurm.plan import Host, SlurmPlan
from controlplane.rendering.slurm.units import REST_USER

TRIES = 60
"""Looks, a second apart, before a script says what is not ready on its own host; the variable TRIES overrides it."""
PATIENCE = 900
"""The same for what another host does, which may be booting or without power: that says nothing about this one."""
PRELUDE = """\
renew() { # renew UNIT FILE...: it runs, and has read these files as they are now
  unit=$1
  shift
  now=$(cat "$@" | sha256sum | cut -d ' ' -f 1)
  systemctl enable --quiet "$unit"
  if [ "$(cat "$STAMPS/$unit" 2>/dev/null)" = "$now" ]; then
    systemctl start "$unit"
  else
    systemctl restart "$unit"
  fi
  printf '%s\\n' "$now" > "$STAMPS/$unit"
}
ensure_user() { # ensure_user NAME NUMBER: a login account with this number
  getent group "$1" >/dev/null || groupadd --gid "$2" "$1"
  getent passwd "$1" >/dev/null || useradd --uid "$2" --gid "$2" --create-home --shell /bin/bash "$1"
  [ "$(id -u "$1")" = "$2" ] || { echo "user $1 has another number than $2" >&2; exit 1; }
}"""


def head_script(plan: SlurmPlan, head: Host) -> Script:
    """
    Starts munge, accounting on the first head, slurmctld and slurmrestd, in this order.
    """
    return _script(plan, "start-head", _head(plan, head))


def worker_script(plan: SlurmPlan) -> Script:
    """
    Starts munge and slurmd, which asks the head until it answers; the same on every worker.
    """
    return _script(plan, "start-worker", _worker(plan))


def login_script(plan: SlurmPlan) -> Script:
    """
    Starts munge and, where the release has it, sackd; waits for a head that is not there yet.
    """
    return _script(plan, "start-login", _login(plan), PATIENCE)


def _head(plan: SlurmPlan, head: Host) -> Iterator[str]:
    layout = plan.layout
    yield "need munged slurmctld slurmrestd scontrol"
    yield f"install -d -o slurm -g slurm -m 0700 {layout.state_dir}"
    yield f"install -d -o slurm -g slurm -m 0755 {layout.log_dir}"
    yield f"getent passwd {REST_USER} >/dev/null || useradd --system --user-group --no-create-home --shell /usr/sbin/nologin {REST_USER}"
    yield from _common(plan)
    keeps_books = plan.accounting is not None and head == plan.heads[0]
    if keeps_books:
        yield from _books(plan)
    yield f"renew slurmctld.service {jwt_path(layout)} {_drop_in('slurmctld')}"
    yield "wait_for slurmctld scontrol ping"
    yield f"renew slurmrestd.service {_drop_in('slurmrestd')}"
    yield "wait_for slurmrestd systemctl is-active slurmrestd.service"
    if keeps_books and plan.accounting:
        for user in sorted(user.name for user in plan.users):
            add = f"sacctmgr -i add user {user} account={plan.accounting.account}"
            yield f"sacctmgr -nP show user {user} format=user | grep -qx {user} || {add}"


def _books(plan: SlurmPlan) -> Iterator[str]:
    account = plan.accounting.account if plan.accounting else ""
    yield "need slurmdbd mariadb mariadb-admin sacctmgr"
    yield f"renew mariadb.service {accounting.DATABASE_SETTINGS}"
    yield "wait_for mariadb mariadb-admin ping"
    yield (
        f'mariadb -e "CREATE DATABASE IF NOT EXISTS {accounting.DATABASE};'
        " CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket;"
        f" GRANT ALL ON {accounting.DATABASE}.* TO 'slurm'@'localhost';\""
    )
    yield f"renew slurmdbd.service {plan.layout.conf_dir}/slurmdbd.conf {_drop_in('slurmdbd')}"
    yield "wait_for slurmdbd sacctmgr -n show cluster"
    yield f"sacctmgr -nP show cluster format=cluster | grep -qx {plan.cluster} || sacctmgr -i add cluster {plan.cluster}"
    yield f"sacctmgr -nP show account {account} format=account | grep -qx {account} || sacctmgr -i add account {account}"


def _worker(plan: SlurmPlan) -> Iterator[str]:
    yield "need munged slurmd slurmstepd"
    yield f"install -d -m 0755 {plan.layout.spool_dir} {plan.layout.log_dir}"
    if plan.containers:
        yield f"install -d -m 0755 {' '.join(containers.folders(plan.containers))}"
    yield from _common(plan)
    if plan.imex:
        yield "systemctl enable --quiet nvidia-imex.service"
        yield "systemctl start nvidia-imex.service"
    yield f"renew slurmd.service /etc/default/slurmd {_drop_in('slurmd')}"
    yield "wait_for slurmd systemctl is-active slurmd.service"


def _login(plan: SlurmPlan) -> Iterator[str]:
    yield "need munged srun sbatch"
    yield from _common(plan)
    if plan.words.has_sackd:
        yield "need sackd"
        yield f"renew sackd.service /etc/default/sackd {_drop_in('sackd')}"
    yield "wait_for slurmctld scontrol ping"


def _common(plan: SlurmPlan) -> Iterator[str]:
    yield from (f"ensure_user {user.name} {user.uid}" for user in sorted(plan.users, key=lambda one: one.name))
    yield "systemctl daemon-reload"
    yield f"renew munge.service {plan.layout.munge_key}"


def _script(plan: SlurmPlan, name: str, body: Iterable[str], tries: int = TRIES) -> Script:
    stamps = plan.layout.stamps_dir
    lines = [
        "#!/bin/sh",
        f"# Starts this host's part of the Slurm cluster {plan.cluster}. Safe to run again.",
        prelude(tries),
        PRELUDE,
        f"STAMPS={stamps}",
        'install -d -m 0700 "$STAMPS"',
        *body,
    ]
    return Script(name, "".join(f"{line}\n" for line in lines))


def _drop_in(unit: str) -> str:
    return f"/etc/systemd/system/{unit}.service.d/10-cluster.conf"
