"""
Bringing a host that keeps its disk to a later release: a program that fetches, stops, backs up, installs, looks at what came of it and
starts the host's part again. It is run again until it is done, and does nothing after that.

Source: slurm.schedmd.com/upgrades.html: slurmdbd before slurmctld, both backed up when they have stopped; running jobs are slurmd's.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.rendering.shell import Script
from controlplane.rendering.slurm import accounting
from controlplane.rendering.slurm.conf import conf_path
from controlplane.rendering.slurm.files import RenderedFile, Role, text_file
from controlplane.rendering.slurm.plan import Install, SlurmPlan

PROGRAM = "follow-release"
PATIENCE = 7200
"""Looks, a second apart, for each daemon: a new slurmdbd may convert a history of years before it answers."""
TAIL = 5
"""Lines of the log that are told of a try that failed."""


def program_path(plan: SlurmPlan) -> str:
    """
    Where the program is on heads and logins.
    """
    return f"{plan.layout.hooks_dir}/{PROGRAM}"


def release_files(plan: SlurmPlan, how: Install, role: Role, start: Script) -> tuple[RenderedFile, ...]:
    """
    The program, which ends well once the host has the release and its part has started by the script; until then it says how far it is
    and ends badly, so that whoever runs it runs it again. With `now` it does the work before it ends.
    """
    return (
        text_file(program_path(plan), ["#!/bin/sh", *_program(plan, how, role)], mode=0o755),
        text_file(f"{program_path(plan)}-start", start.content.splitlines(), mode=0o700),
    )


def _program(plan: SlurmPlan, how: Install, role: Role) -> Iterator[str]:
    new, probe = how.release, "slurmctld" if role == "head" else "sinfo"
    yield f"# Brings this host to Slurm {new} by what the operator says; running jobs go on."
    yield "set -eu"
    yield f"STAMPS={plan.layout.stamps_dir}"
    yield f"BEFORE=$STAMPS/before-{new}"
    yield f"LOG=$STAMPS/{PROGRAM}.log"
    yield 'install -d -m 0700 "$STAMPS" "$BEFORE"'
    yield f'[ "$(cat "$STAMPS/release" 2>/dev/null)" != {new} ] || exit 0'
    yield f'is_new() {{ case "$({probe} -V)" in slurm*" {new}."*) ;; *) return 1 ;; esac; }}'
    yield 'exec 9>"$STAMPS/release.lock"'
    yield 'if [ "${1:-}" != now ]; then'
    yield f'  flock -n 9 || {{ echo "Slurm {new} is being installed" >&2; exit 1; }}'
    yield f'  [ ! -s "$LOG" ] || {{ echo "the last try ended with:" >&2; tail -n {TAIL} "$LOG" >&2; }}'
    yield '  setsid "$0" now >"$LOG.new" 2>&1 </dev/null 9>&- &'
    yield f'  echo "Slurm {new} is being installed" >&2'
    yield "  exit 1"
    yield "fi"
    yield "flock -w 10 9  # held by whoever started us, who ends now, or by another try"
    yield from _commands("fetch", how.fetch)
    yield from _commands("put", how.install)
    yield from _bring(plan, role)
    yield 'trap \'[ "$?" = 0 ] || { undo 9>&- || true; [ ! -e "$LOG.new" ] || mv "$LOG.new" "$LOG"; }\' EXIT'
    yield "is_new || fetch 9>&-"
    yield "bring 9>&-"
    yield f'is_new || {{ echo "the operator\'s commands left $({probe} -V) in place" >&2; exit 1; }}'
    yield f"TRIES={PATIENCE} {program_path(plan)}-start 9>&-"
    yield f"printf '%s\\n' {new} >\"$STAMPS/release\""
    yield 'rm -f "$LOG" "$LOG.new"'


def _commands(name: str, text: str) -> Iterator[str]:
    yield f"{name}() ("
    yield from (f"  {line}" for line in text.splitlines() or ["true"])
    yield ")"


def _bring(plan: SlurmPlan, role: Role) -> Iterator[str]:
    """
    `bring` is the time without a controller; `undo` starts what there was, where its programs are still in place.
    """
    books = plan.accounting is not None and role == "head"
    daemons = ["slurmrestd", "slurmctld", *(["slurmdbd"] if books else [])] if role == "head" else []
    yield "bring() {"
    yield "  ! is_new || return 0"
    if daemons:
        yield from (f"  systemctl stop {name}.service" for name in daemons)
        yield '  if [ ! -e "$BEFORE/whole" ]; then  # once: a later try may find what the new release has converted'
        yield f'    tar -C {plan.layout.state_dir} -cf "$BEFORE/state.tar" .'
        if books:
            yield f'    mariadb-dump --single-transaction --result-file="$BEFORE/history.sql" {accounting.DATABASE}'
        yield '    sync "$BEFORE"'
        yield '    touch "$BEFORE/whole"'
        yield "  fi"
    elif plan.words.has_sackd:
        yield f"  rm -f {conf_path(plan)} {plan.layout.conf_dir}/plugstack.conf  # commands would read it and not ask sackd"
    yield "  put"
    yield "}"
    yield "undo() {"
    yield "  ! is_new || return 0"
    yield from (f"  systemctl start {name}.service" for name in reversed(daemons))
    yield "}"
