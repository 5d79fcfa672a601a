"""
The program that brings a head to another release, run for real with stand-ins for what it calls: what it does in which order, and what a
failure at each point leaves.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.rendering.slurm.inplace import release_files
from controlplane.rendering.slurm.layout import Layout
from controlplane.rendering.slurm.plan import Install
from controlplane.rendering.slurm.roles import plain_files
from controlplane.rendering.slurm.scripts import head_script
from controlplane.rendering.slurm.words import BadPlan
from tests.factories import slurm_plans

STAND_INS = {
    "systemctl": 'echo "$1 ${2%.service}" >> "$SEEN"',
    "slurmctld": 'echo "slurm-wlm $(cat "$VERSION")"',
    "mariadb-dump": 'echo copied >> "$SEEN"; echo "history of $(cat "$VERSION")" > "${2#--result-file=}"',
}


class Head:
    """A folder that the program takes for a head with a history, on 22.05."""

    def __init__(self, folder: Path, fetch: str = 'echo fetched >> "$SEEN"', install: str = "") -> None:
        self.folder = folder
        self.seen, self.version = folder / "seen", folder / "version"
        self.version.write_text("22.05.8\n")
        (folder / "state").mkdir()
        (folder / "state/job_state").write_text("jobs of 22.05")
        (folder / "bin").mkdir()
        for name, text in STAND_INS.items():
            self._put(folder / "bin" / name, f"#!/bin/sh\n{text}\n")
        layout = Layout(state_dir=f"{folder}/state", hooks_dir=f"{folder}/hooks", stamps_dir=f"{folder}/stamps")
        plan = replace(slurm_plans.with_accounting(), layout=layout)
        how = Install("23.11", fetch, install or 'echo installed >> "$SEEN"; echo 23.11.4 > "$VERSION"')
        (folder / "hooks").mkdir()
        program, start = release_files(plan, how, "head", head_script(plan, plan.heads[0]))
        self.program = Path(program.path)
        self._put(self.program, program.content.decode())
        self._put(Path(start.path), '#!/bin/sh\necho started >> "$SEEN"\n')

    def _put(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def run(self) -> int:
        """How the program ends when it does its work at once."""
        env = {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "SEEN": str(self.seen), "VERSION": str(self.version)}
        return subprocess.run([self.program, "now"], env=env, check=False, timeout=30, capture_output=True).returncode

    def did(self) -> list[str]:
        """What it has done since it was last asked for."""
        lines = self.seen.read_text().splitlines() if self.seen.exists() else []
        self.seen.unlink(missing_ok=True)
        return lines

    def kept(self, name: str) -> str:
        """What was copied aside."""
        return (self.folder / "stamps/before-23.11" / name).read_text(errors="replace")


STOPS = ["stop slurmrestd", "stop slurmctld", "stop slurmdbd"]


def test_all_is_copied_aside_when_daemons_have_stopped_and_before_anything_is_installed(tmp_path: Path) -> None:
    """Fetching comes first, while all runs; a second run changes nothing and starts nothing."""
    head = Head(tmp_path)
    assert head.run() == 0
    assert head.did() == ["fetched", *STOPS, "copied", "installed", "started"]
    assert head.kept("history.sql") == "history of 22.05.8\n"
    assert "jobs of 22.05" in head.kept("state.tar")
    assert (head.run(), head.did()) == (0, [])


def test_what_cannot_be_fetched_stops_nothing(tmp_path: Path) -> None:
    """The daemons that run are asked to be started, which they are; nothing was stopped."""
    head = Head(tmp_path, fetch="false")
    assert head.run() != 0
    assert [one for one in head.did() if not one.startswith("start ")] == []


@pytest.mark.parametrize("install", ["false", "true"])
def test_an_installation_that_leaves_the_old_release_starts_the_old_daemons(tmp_path: Path, install: str) -> None:
    """Whether the commands fail or only do nothing: slurmdbd first, and the program ends badly, so that it is run again."""
    head = Head(tmp_path, install=install)
    assert head.run() != 0
    assert head.did()[-3:] == ["start slurmdbd", "start slurmctld", "start slurmrestd"]


def test_a_copy_is_never_replaced_by_what_a_new_release_left(tmp_path: Path) -> None:
    """A try that failed after its copy is tried again: what was copied the first time stays."""
    head = Head(tmp_path, install="false")
    assert head.run() != 0
    (tmp_path / "state/job_state").write_text("half converted")
    head.did()
    assert head.run() != 0
    assert "copied" not in head.did()
    assert "jobs of 22.05" in head.kept("state.tar")


def test_with_the_release_in_place_only_the_start_is_left(tmp_path: Path) -> None:
    """After a loss of power behind the installation nothing is stopped, copied or installed again."""
    head = Head(tmp_path)
    head.version.write_text("23.11.4\n")
    assert (head.run(), head.did()) == (0, ["started"])


def test_logins_follow_when_the_whole_cluster_does_and_impossible_hops_are_refused() -> None:
    """While workers have the older release only the head's files change; a head that would not understand its workers is not rendered."""
    plan, name = slurm_plans.leaf_spine(), "login-1"
    half = replace(plan, install=Install("23.11", "", "put it"))
    assert plain_files(half, "login", name) == plain_files(plan, "login", name)
    before, after = ({one.path: one for one in plain_files(each, "head", "head-1")} for each in (plan, half))
    assert after.keys() - before.keys() == {f"/usr/local/libexec/slurm/follow-release{end}" for end in ("", "-start")}
    assert after["/etc/slurm/slurm.conf"] == before["/etc/slurm/slurm.conf"]
    whole = replace(half, release="23.11")
    program = next(one for one in plain_files(whole, "login", name) if one.path.endswith("/follow-release"))
    assert b"rm -f /etc/slurm/slurm.conf" in program.content
    with pytest.raises(BadPlan, match="does not understand"):
        plain_files(replace(plan, install=Install("24.11", "", "put it")), "head", "head-1")
