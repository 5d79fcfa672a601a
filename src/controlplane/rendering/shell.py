"""
Shell scripts of hosts, and the words that all of them begin with.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Script:
    """
    A program that is run once on the host as root, and does no harm when run again.
    """

    name: str
    """For logs."""
    content: str = field(repr=False)
    """A POSIX shell script."""


def prelude(tries: int) -> str:
    """
    The script ends at its first failure, and has `need` and `wait_for`; the latter looks so often, a second apart, unless the variable
    TRIES says otherwise.
    """
    return f"""\
set -eu
TRIES=${{TRIES:-{tries}}}
need() {{ # need PROGRAM...: they are installed
  for program in "$@"; do
    command -v "$program" >/dev/null 2>&1 || {{ echo "$program is not installed" >&2; exit 1; }}
  done
}}
wait_for() {{ # wait_for WHAT COMMAND...: the command has succeeded once
  what=$1
  shift
  tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt "$TRIES" ] || {{ echo "$what is not ready" >&2; exit 1; }}
    sleep 1
  done
}}"""
