"""
slurmdbd and its database on the first head: no password and no port, since the database knows Slurm's user by the socket it comes in by.

Source: slurmdbd.conf(5), slurm.schedmd.com/accounting.html (the settings of InnoDB).
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.rendering.slurm.conf import Key, line
from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.keys import jwt_path
from controlplane.rendering.slurm.plan import Accounting, SlurmPlan

DATABASE = "slurm_acct_db"
DATABASE_SETTINGS = "/etc/mysql/mariadb.conf.d/60-slurm.cnf"


def accounting_files(plan: SlurmPlan) -> tuple[RenderedFile, ...]:
    """
    The head's slurmdbd.conf, which only Slurm's user may read, and the database's settings; none without accounting.
    """
    if plan.accounting is None:
        return ()
    conf = text_file(
        f"{plan.layout.conf_dir}/slurmdbd.conf",
        (line(key) for key in _keys(plan, plan.accounting)),
        mode=0o600,
        owner="slurm:slurm",
        on_change="slurmdbd",
    )
    return conf, text_file(DATABASE_SETTINGS, _database(plan.accounting), on_change="mariadb")


def _keys(plan: SlurmPlan, accounting: Accounting) -> Iterator[Key]:
    head, layout = plan.heads[0], plan.layout
    yield "AuthType", "auth/munge"
    yield "AuthAltTypes", "auth/jwt"
    yield "AuthAltParameters", f"jwt_key={jwt_path(layout)}"
    yield "DbdHost", head.name
    yield "DbdAddr", head.address
    yield "DbdPort", plan.ports.slurmdbd
    if plan.listen_named:
        yield "CommunicationParameters", "NoInAddrAny"
    yield "SlurmUser", "slurm"
    yield "LogFile", f"{layout.log_dir}/slurmdbd.log"
    yield "PidFile", f"{layout.run_dir}/slurmdbd.pid"
    yield "DebugLevel", "info"
    yield "StorageType", "accounting_storage/mysql"
    yield "StorageHost", "localhost"
    yield "StorageUser", "slurm"
    yield "StorageLoc", DATABASE
    for kind in ("Job", "Step", "Event", "Resv"):
        yield f"Purge{kind}After", f"{accounting.keep_months}months"


def _database(accounting: Accounting) -> Iterator[str]:
    yield "[mariadbd]"
    yield "skip-networking"
    yield f"innodb_buffer_pool_size={accounting.buffer_pool_mib}M"
    yield "innodb_lock_wait_timeout=900"
    yield "max_allowed_packet=16M"
