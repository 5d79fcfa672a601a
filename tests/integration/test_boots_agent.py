"""
What runs on the machine: the boothook of real user-data, real scripts in a real shell, and reports to the real application.
"""

from __future__ import annotations

import ast
import getpass
import grp
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from controlplane.boots import service
from controlplane.boots.seed import Content, Machine, user_data
from controlplane.boots.states import CLOUD_INIT_STAGES, BootLinks, BootView, Facts, NewBlueprint, NewBoot, NodeFile, Script
from controlplane.kit.secrets import Sealer
from tests.conftest import Database
from tests.factories.boots import KEY, LINKS, Root
from tests.factories.nodes import make_fleet
from tests.factories.serving import MASTER_KEY, serving

BOOT = "bot_01k5x7p3r8w2v6t9q4n0m1c2d3"
ME = f"{getpass.getuser()}:{grp.getgrgid(os.getgid()).gr_name}"


class Host(Root):
    """
    A machine as far as the agent sees it.
    """

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """The command has ended well."""
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done

    def boot(self, sent: bytes) -> None:
        """cloud-init has come to the boothook of this user-data."""
        hook = next(one for one in message_from_bytes(sent).walk() if one.get_content_type() == "text/cloud-boothook")
        script = self.root / "boothook"
        script.write_text(str(hook.get_payload()).removeprefix("#cloud-boothook\n"), encoding="utf-8")
        script.chmod(0o700)
        self.run(str(script))

    def finish(self, **errors: list[str]) -> None:
        """cloud-init has run our scripts in its last stage and says that it is done."""
        self.run(str(self.root / "var/lib/cloud/scripts/per-instance/00-boot-agent"))
        stages = {
            name: {"start": 1.0, "finished": 2.0, "errors": errors.get(name.replace("-", "_"), [])} for name in CLOUD_INIT_STAGES
        }
        status = {"v1": {"datasource": "DataSourceNoCloudNet", "stage": None, **stages}}
        for name, said in (("status.json", status), ("result.json", {"v1": {"errors": []}})):
            kept = self.root / "var/lib/cloud/data" / name
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(said), encoding="utf-8")
            shown = self.root / "run/cloud-init" / name
            shown.unlink(missing_ok=True)
            shown.symlink_to(kept)

    def start_without_seed(self) -> None:
        """It was switched off and on, and cloud-init found no seed."""
        for one in (self.root / "run/cloud-init").iterdir():
            one.unlink()
        (self.root / "run/cloud-init/disabled").touch()

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """What came of the scripts, by name."""
        told = json.loads((self.home / "scripts.json").read_text(encoding="utf-8"))
        return {one["name"]: one for one in told["scripts"]}

    def serve(self) -> subprocess.Popen[bytes]:
        """The service has been started."""
        return subprocess.Popen([sys.executable, str(self.home / "agent.py"), "run"], env=self.environment())

    def plan(self, **changes: Any) -> None:
        """The plan on the machine is another one."""
        path = self.home / "plan.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine that was just switched on."""
    return Host(tmp_path / "root")


def seed(*scripts: Script, secret_files: tuple[NodeFile, ...] = (), url: str = "") -> bytes:
    """User-data with these scripts and files."""
    machine = Machine(BOOT, url or LINKS.url(BOOT), "deploy", Facts("n1", instance_id=BOOT))
    return user_data(
        Content(scripts=scripts, files=(NodeFile("/etc/a.conf", "a\n", "0640", ME),), secret_files=secret_files), machine
    )


def eventually(look: Callable[[], bool]) -> None:
    """The look has found what it looks for. Fails after half a minute."""
    pause = threading.Event()
    for _ in range(600):
        if look():
            return
        pause.wait(0.05)
    pytest.fail("it did not come to pass")


def test_the_boothook_lays_everything_down(host: Host) -> None:
    """Agent, plan, files, the hook of the last stage and the unit are there with their modes; the service is started, not waited for."""
    host.boot(seed(Script("one", "true\n")))
    conf = host.root / "etc/a.conf"
    assert (conf.read_text(encoding="utf-8"), conf.stat().st_mode & 0o777) == ("a\n", 0o640)
    assert (host.home / "plan.json").stat().st_mode & 0o777 == 0o600
    assert "ExecStart=" in (host.root / "etc/systemd/system/boot-agent.service").read_text(encoding="utf-8")
    told = (host.root / "systemctl.log").read_text(encoding="utf-8").splitlines()
    assert told == ["daemon-reload", "enable boot-agent.service", "start --no-block boot-agent.service"]
    host.finish()
    assert {name: one["ok"] for name, one in host.outcomes().items()} == {"files": True, "one": True}


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="no real bash: /bin/bash is absent")
@pytest.mark.parametrize(
    ("text", "line", "code", "words"),
    [
        ("echo one\nfalse\ntouch $HOME/never\n", 2, 1, "one"),
        ("echo one\n\nexit 3\necho never\n", 3, 3, "one"),
        ("f() {\n  ls /no/such/path\n}\nf\n", 2, 2, "/no/such/path"),
        ("true\nfalse | cat\n", 2, 1, ""),
        ("true\nls /no/such/path || exit\n", 2, 2, "/no/such/path"),
        ("echo $(( 1 +\n", None, 2, "line"),
        ("if true; then\n  no-such-command --secret\nfi\n", 2, 127, "no-such-command"),
        ("false || true\nx=$(true)\n! false\n[ 1 = 1 ]\n", None, 0, ""),
    ],
)
def test_a_script_ends_at_its_first_failing_line(host: Host, text: str, line: int | None, code: int, words: str) -> None:
    """Line, exit code and last output are known, nothing after the line is run, and no script after it."""
    host.boot(seed(Script("first", text), Script("second", "echo ran\n")))
    host.finish()
    first, second = host.outcomes()["first"], host.outcomes()["second"]
    assert (first["ok"], first["line"], first["exit_code"]) == (code == 0, line, code)
    assert words in first["output"]
    assert "never" not in first["output"]
    assert second["ok"] is (code == 0)
    assert second["output"] == ("ran" if code == 0 else "not run: one before it failed")


def test_a_script_that_never_ends_is_ended(host: Host) -> None:
    """A script that is still there after its time has failed, and so has its offspring."""
    host.boot(seed(Script("slow", "sleep 600 & sleep 600\n", timeout_s=0.5)))
    host.finish()
    slow = host.outcomes()["slow"]
    assert (slow["ok"], slow["exit_code"]) == (False, None)
    assert slow["output"].startswith("not over after 0.5 s")


def test_scripts_that_lost_their_power_run_again(host: Host) -> None:
    """cloud-init runs those of an instance once and never looks whether they came to an end; with the next boot they run from the first."""
    one = Script("one", "echo again >> $BOOT_AGENT_ROOT/one\n")
    two = Script("two", "[ ! -e $BOOT_AGENT_ROOT/cut ] || exit 0\ntouch $BOOT_AGENT_ROOT/cut\nkill -9 $PPID\n")
    host.boot(seed(one, two))
    hook = str(host.root / "var/lib/cloud/scripts/per-boot/00-boot-agent")
    assert subprocess.run([hook], env=host.environment(), check=False, timeout=60).returncode == -9
    assert "two" not in host.outcomes()
    host.run(hook)
    assert host.outcomes()["two"]["ok"] is True
    host.run(hook)
    assert (host.root / "one").read_text("ascii").split() == ["again", "again"]


def test_folders_made_for_files_let_everybody_in(host: Host) -> None:
    """Whatever umask the boothook runs under: what stands below must be found by others than root; our own folder is root's alone."""
    host.boot(seed(Script("one", "true\n"), secret_files=(NodeFile("/usr/local/libexec/a/b", "x\n", "0755", ME),)))
    made = [host.root / "usr/local/libexec", host.root / "usr/local/libexec/a"]
    assert [one.stat().st_mode & 0o777 for one in made] == [0o755, 0o755]
    assert host.home.stat().st_mode & 0o777 == 0o700


def test_a_file_waits_for_its_owner(host: Host) -> None:
    """A file whose owner is not there yet is laid down later; one whose owner never comes fails the boot before any script runs."""
    host.boot(seed(Script("one", "true\n"), secret_files=(NodeFile("/etc/key", "k", "0400", "no-such-user:root"),)))
    assert not (host.root / "etc/key").exists()
    host.finish()
    outcomes = host.outcomes()
    assert outcomes["files"]["ok"] is False
    assert "no-such-user" in outcomes["files"]["output"]
    assert outcomes["one"]["ok"] is False


def test_a_second_boot_of_the_same_instance_runs_nothing_again(host: Host) -> None:
    """After a restart files that were changed by hand and scripts that have run are left alone; a new boot id begins anew."""
    sent = seed(Script("count", "echo x >> $BOOT_CHECKS.count\n"))
    host.boot(sent)
    host.finish()
    (host.root / "etc/a.conf").write_text("by hand\n", encoding="utf-8")
    host.boot(sent)
    host.finish()
    assert (host.root / "etc/a.conf").read_text(encoding="utf-8") == "by hand\n"
    assert (host.home / "checks.jsonl.count").read_text(encoding="utf-8") == "x\n"
    host.boot(sent.replace(BOOT.encode(), b"bot_01k5x7p3r8w2v6t9q4n0m1c2d4"))
    host.finish()
    assert (host.root / "etc/a.conf").read_text(encoding="utf-8") == "a\n"
    assert (host.home / "checks.jsonl.count").read_text(encoding="utf-8") == "x\nx\n"


def test_the_agent_is_written_for_old_machines_too() -> None:
    """It is Python 3.7, needs the standard library only, and its text cannot end the document it travels in."""
    text = files("controlplane.boots").joinpath("agent.py").read_text("utf-8")
    tree = ast.parse(text, feature_version=(3, 7))
    imported = {name.name.partition(".")[0] for one in ast.walk(tree) if isinstance(one, ast.Import) for name in one.names}
    imported |= {str(one.module).partition(".")[0] for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names
    assert text.isascii()
    assert not [line for line in text.splitlines() if line.startswith("END-OF")]


@pytest.fixture
def hard_of_hearing() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """The address of a server that answers 503 to the first report, and what it was sent: what it is and its body."""
    heard: list[tuple[str, bytes]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.path.rpartition("/")[2]
            again = kind in dict(heard)
            heard.append((kind, body))
            self.send_response(503 if kind == "report" and not again else 200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1/boot/{LINKS.token(BOOT)}/", heard
    server.shutdown()
    thread.join()
    server.server_close()


def test_it_reports_until_it_is_heard(host: Host, hard_of_hearing: tuple[str, list[tuple[str, bytes]]]) -> None:
    """A report that was not taken is sent again; then the agent's work is done where no files are to be followed. No token is told."""
    url, sent = hard_of_hearing
    host.boot(seed(Script("leak", f"echo {LINKS.token(BOOT)}; printf '\\033[1m'; false\n"), url=url))
    host.plan(poll_s=0)
    host.finish(modules_final=["('scripts-user', RuntimeError('x'))"])
    with host.serve() as process:
        assert process.wait(30) == 0
    heard = [json.loads(body) for _kind, body in sent]
    assert heard[0] == heard[1]
    assert (len(heard), heard[1]["final"]) == (2, True)
    assert [one["errors"] for one in heard[1]["stages"] if one["name"] == "modules-final"] == [
        "('scripts-user', RuntimeError('x'))"
    ]
    assert LINKS.token(BOOT) not in json.dumps(heard)
    assert "\x1b" not in heard[1]["scripts"][-1]["output"]


def test_its_console_is_there_before_its_last_report(host: Host, hard_of_hearing: tuple[str, list[tuple[str, bytes]]]) -> None:
    """However much was written: who is told that the boot failed may switch the machine off, and the last words tell why."""
    url, sent = hard_of_hearing
    host.boot(seed(url=url))
    host.plan(poll_s=0)
    host.finish()
    written = "".join(f"line {number}\n" for number in range(20_000))
    (host.root / "var/log/cloud-init-output.log").write_text(written, encoding="utf-8")
    with host.serve() as process:
        assert process.wait(30) == 0
    assert [kind for kind, _body in sent[-2:]] == ["report", "report"]
    assert b"".join(body for kind, body in sent if kind == "console").decode() == written


@dataclass
class World:
    """
    The served application and one machine that boots from it.
    """

    url: str
    """The machine's own address at the application."""
    boot_id: str
    """Its boot."""
    blueprint_id: str
    """What it is to be."""
    do: Callable[[Any], Any]
    """Runs a job in a transaction."""

    def view(self) -> BootView:
        """Where the boot stands."""
        found: BootView = self.do(lambda session: service.views(session, [self.boot_id]))[self.boot_id]
        return found

    def get(self, name: str) -> bytes:
        """What the machine is handed."""
        return httpx.get(self.url + name).raise_for_status().content


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A machine is about to be switched on."""
    fleet = make_fleet(database, tmp_path)
    fleet.put("deploying", due_at="2099-01-01T00:00:00Z")
    with serving(database, machine_url="http://127.0.0.1:1") as served:
        links = BootLinks.from_master(served.url, MASTER_KEY, "cp")
        served.app.state.boots = replace(served.app.state.boots, links=links)
        check = '{"name": "gpus", "result": "passed", "detail": "8 of 8"}'
        new = NewBlueprint(
            ssh_keys=(KEY,),
            files=(
                NodeFile(
                    "/etc/a.conf", "a = 1\n", "0644", ME, on_change='cp "$BOOT_AGENT_ROOT/etc/a.conf" "$BOOT_AGENT_ROOT/etc/b"'
                ),
            ),
            scripts=(Script("look", f"echo '{check}' >> \"$BOOT_CHECKS\"\n"),),
        )
        blueprint_id = fleet.do(lambda session: service.make_blueprint(session, Sealer.from_base64(MASTER_KEY), new))
        boot = NewBoot(fleet.node_ids[0], "deploy", Facts("n1.example"), 900, blueprint_id=blueprint_id)
        boot_id = fleet.do(lambda session: service.begin(session, boot))
        yield World(links.url(boot_id), boot_id, blueprint_id, fleet.do)


def test_a_whole_life_of_a_machine(world: World, host: Host) -> None:
    """Booted, reported stage by stage, ready by its own word, and afterwards its files follow what is rewritten; a command that
    failed is run again until it succeeds.
    """
    sent = world.get("user-data")
    host.boot(sent)
    host.plan(poll_s=0.1)
    (host.root / "var/log/cloud-init-output.log").write_text(f"Cloud-init v. 22.4.2\nfrom {world.url}\n", encoding="utf-8")
    with host.serve() as process:
        try:
            eventually(lambda: world.view().state == "reporting")
            parts = {one.get_filename(): str(one.get_payload()) for one in message_from_bytes(sent).walk()}
            form = {"instance_id": json.loads(world.get("meta-data"))["instance-id"], "pub_key_ed25519": KEY}
            httpx.post(yaml.safe_load(parts["settings"])["phone_home"]["url"], data=form).raise_for_status()
            host.finish()
            eventually(lambda: world.view().state == "ready")
            eventually(lambda: world.view().applied_version == 1)
            fresh = NodeFile(
                "/etc/a.conf", "a = 2\n", "0644", ME, on_change='cp "$BOOT_AGENT_ROOT/etc/a.conf" "$BOOT_AGENT_ROOT/etc/b"'
            )
            unowned = NodeFile("/etc/c", "c", owner="no-such-user")
            world.do(lambda session: service.rewrite_files(session, world.blueprint_id, [fresh, unowned]))
            eventually(lambda: world.view().applied_version == 2)
            early = NodeFile("/etc/d", "d", "0644", ME, on_change='cp "$BOOT_AGENT_ROOT/etc/d" "$BOOT_AGENT_ROOT/later/"')
            world.do(lambda session: service.rewrite_files(session, world.blueprint_id, [fresh, unowned, early]))
            eventually(lambda: "/etc/d: on_change ended with 1" in world.view().apply_failure)
            (host.root / "later").mkdir()
            eventually(lambda: "/etc/d" not in world.view().apply_failure)
        finally:
            process.kill()
    view = world.view()
    assert [one.name for one in view.stages] == [*CLOUD_INIT_STAGES, "script:files", "script:look"]
    assert [one["detail"] for one in view.checks] == ["8 of 8"]
    assert "no-such-user" in view.apply_failure
    assert [(host.root / "etc" / name).read_text(encoding="utf-8") for name in ("a.conf", "b", "../later/d")] == [
        "a = 2\n",
        "a = 2\n",
        "d",
    ]
    console = world.do(lambda session: service.console_of(session, world.boot_id, 0)).data
    assert console.startswith(b"Cloud-init v. 22.4.2\n")
    assert world.url.rstrip("/").rpartition(".")[2].encode() not in console


def test_a_machine_that_starts_without_its_seed_follows_its_files(world: World, host: Host) -> None:
    """Its disc is out or its network boot was for once: cloud-init is off, and what is rewritten comes all the same."""
    host.boot(world.get("user-data"))
    host.plan(poll_s=0.1)
    host.finish()
    with host.serve() as process:
        try:
            eventually(lambda: world.view().applied_version == 1)
        finally:
            process.kill()
    host.start_without_seed()
    (host.root / "var/lib/cloud/data/result.json").unlink()  # there was a start with its seed between, and power lost in it
    world.do(lambda session: service.rewrite_files(session, world.blueprint_id, [NodeFile("/etc/a.conf", "a = 2\n", "0644", ME)]))
    with host.serve() as process:
        try:
            eventually(lambda: world.view().applied_version == 2)
        finally:
            process.kill()
    assert (host.root / "etc/a.conf").read_text(encoding="utf-8") == "a = 2\n"


@pytest.mark.parametrize("heard", [True, False])
def test_power_is_lost_about_the_last_report(world: World, host: Host, *, heard: bool) -> None:
    """Whether the last report was heard or not: without its seed the machine makes it again from what cloud-init kept, and follows."""
    host.boot(world.get("user-data"))
    httpx.post(f"{world.url}phone-home", data={"instance_id": json.loads(world.get("meta-data"))["instance-id"]}).raise_for_status()
    host.finish()
    if heard:
        host.plan(poll_s=0)
        with host.serve() as process:
            assert process.wait(30) == 0
    assert world.view().state == ("ready" if heard else "fetched")
    host.start_without_seed()
    host.plan(poll_s=0.1)
    world.do(lambda session: service.rewrite_files(session, world.blueprint_id, [NodeFile("/etc/a.conf", "a = 2\n", "0644", ME)]))
    with host.serve() as process:
        try:
            eventually(lambda: world.view().applied_version == 2)
        finally:
            process.kill()
    assert world.view().state == "ready"
    assert (host.root / "etc/a.conf").read_text(encoding="utf-8") == "a = 2\n"
