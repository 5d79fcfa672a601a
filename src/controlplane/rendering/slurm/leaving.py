"""
Nodes that are about to leave, as a list on the head: it drains them and lifts our drains from those that stay after all.

Source: scontrol(1), "update nodename": DRAIN lets running jobs end; a drain without our reason is somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.rendering.slurm.files import RenderedFile, text_file
from controlplane.rendering.slurm.plan import SlurmPlan

REASON = "controlplane: leaves"
"""Of our drains; the first word is the adapter's prefix, so that it knows them for ours."""

TRIES = 120
"""Looks, a second apart, for slurmctld; the boot agent gives a command longer."""


def leaving_files(plan: SlurmPlan, names: Iterable[str]) -> tuple[RenderedFile, ...]:
    """
    The list and the program that makes it true, which changes nothing when it is run again.
    """
    return (text_file(list_path(plan), sorted(names)), text_file(program_path(plan), ["#!/bin/sh", *_program(plan)], mode=0o755))


def list_path(plan: SlurmPlan) -> str:
    """
    Where the list is on a head.
    """
    return f"{plan.layout.conf_dir}/leaving"


def program_path(plan: SlurmPlan) -> str:
    """
    Where the program is on a head.
    """
    return f"{plan.layout.hooks_dir}/follow-leaving"


def _program(plan: SlurmPlan) -> tuple[str, ...]:
    listed = list_path(plan)
    return (
        "# Drains the nodes of the list, and lifts drains of the same reason from all others.",
        "set -eu",
        f"reason='{REASON}'",
        "tries=0  # a head that has just booted asks for its files before slurmctld answers",
        "until scontrol ping >/dev/null 2>&1; do",
        "  tries=$((tries + 1))",
        f'  [ "$tries" -lt {TRIES} ] || {{ echo "slurmctld does not answer" >&2; exit 1; }}',
        "  sleep 1",
        "done",
        "known=$(scontrol -o show node)",
        "for node in $(printf '%s\\n' \"$known\" | sed -n 's/^NodeName=\\([^ ]*\\) .*/\\1/p'); do",
        '  line=$(scontrol -o show node "$node")',
        f'  if grep -qx "$node" {listed}; then',
        '    case "$line" in *DRAIN*) ;; *) scontrol update nodename="$node" state=drain reason="$reason" ;; esac',
        "  else",
        '    case "$line" in *DRAIN*"Reason=$reason"*) scontrol update nodename="$node" state=undrain ;; esac',
        "  fi",
        "done",
    )
