"""
Finds who a server runs as that refuses to be root, and a place that this user can reach.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from controlplane.local.errors import ServerMissing
from controlplane.local.spawn import Account

UNPRIVILEGED_USER = "nobody"
OUTSIDE = Path("/var/lib/controlplane")  # only root writes here, so nobody can have prepared a trap


def server_account() -> Account | None:
    """
    Answers whom PostgreSQL must run as: nobody else unless this process is root, which it refuses to be.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError as error:
        raise ServerMissing(
            f"PostgreSQL refuses to run as root, and there is no user {UNPRIVILEGED_USER} to run it as.",
            "Start again as an ordinary user, or set DATABASE_URL to a PostgreSQL server that exists.",
        ) from error
    return Account(user=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid)


def can_reach(path: Path, account: Account | None) -> bool:
    """
    Tells whether the account may enter every folder above the path and, if it exists, read the path itself.
    """
    if account is None:
        return True
    above = all(_grants(folder, account, stat.S_IXOTH) for folder in path.resolve().parents)
    return above and (not path.exists() or _grants(path, account, stat.S_IXOTH | stat.S_IROTH))


def home_for(path: Path, account: Account | None) -> Path:
    """
    Answers a private folder that belongs to the account, at `path` or, where it cannot get there, behind a link at `path`.
    """
    if path.exists():
        return path.resolve()
    if can_reach(path, account):
        path.mkdir(mode=0o700)
        home = path
    else:
        OUTSIDE.mkdir(mode=0o755, parents=True, exist_ok=True)
        OUTSIDE.chmod(0o755)
        home = Path(tempfile.mkdtemp(dir=OUTSIDE, prefix=f"{path.name}-"))
        path.unlink(missing_ok=True)  # a link whose target is gone
        path.symlink_to(home)
    if account:
        os.chown(home, account.uid, account.gid)
    return home.resolve()


def reachable_copy(base: Path, parts: Sequence[str], name: str, account: Account | None) -> Path:
    """
    Answers a folder that holds these parts of `base`, all readable for the account: `base` itself, or a copy made once.
    """
    if account is None or all(can_reach(base / part, account) and _is_open(base / part) for part in parts):
        return base
    copy = OUTSIDE / name
    if not copy.exists():
        OUTSIDE.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OUTSIDE) as scratch:
            made = Path(scratch) / name
            for part in parts:
                shutil.copytree(base / part, made / part, ignore=shutil.ignore_patterns("include"))
            for each in (made, *made.rglob("*")):
                is_runnable = each.is_dir() or each.stat().st_mode & stat.S_IXUSR
                each.chmod(0o755 if is_runnable else 0o644)
            made.rename(copy)
    return copy


def _is_open(folder: Path) -> bool:
    """
    Tells whether everybody may read what lies directly in the folder: an installer's umask is the same for all of it.
    """
    return all(each.stat().st_mode & stat.S_IROTH for each in (folder, *folder.iterdir()))


def _grants(path: Path, account: Account, for_others: int) -> bool:
    """
    Tells whether the mode bits grant the account what `for_others` would grant everybody.
    """
    status = path.stat()
    shift = 6 if status.st_uid == account.uid else 3 if status.st_gid == account.gid else 0
    wanted = for_others << shift
    return status.st_mode & wanted == wanted
