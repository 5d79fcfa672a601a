"""
What runs on a machine that was booted by us: lays files down, runs our scripts, and reports until it is heard.

This file is sent to machines as it is and is run there by whatever Python 3 came with the image (3.7 or later), with nothing but the
standard library. Three verbs: `install` (from the boothook, before anything else), `scripts` (in cloud-init's last stage, before the
tenant's own), `run` (the service). All it knows stands in plan.json beside it; both are readable by root only.
"""

from __future__ import annotations

import grp
import gzip
import json
import os
import pwd
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(os.environ.get("BOOT_AGENT_ROOT", "/"))
HOME = ROOT / "var/lib/boot-agent"
CLOUD = ROOT / "run/cloud-init"
KEPT = ROOT / "var/lib/cloud/data"
OUTPUTS = HOME / "outputs"
MEMORY = ROOT / "run/boot-agent"
CONSOLE = ROOT / "var/log/cloud-init-output.log"
HOOKS = tuple(ROOT / "var/lib/cloud/scripts" / often / "00-boot-agent" for often in ("per-boot", "per-instance"))
UNIT = ROOT / "etc/systemd/system/boot-agent.service"
BASH = "/bin/bash"
STAGES = ("init-local", "init", "modules-config", "modules-final")
FILES = "files"
LOOK_S = 1.0
SLOWEST_S = 60.0
REFUSALS = 6
TIMEOUT_S = 15
LONGEST_TAIL = 2000
LINES = 20
CHUNK_BYTES = 48 * 1024
MOST_CHUNKS = 24  # more than the other side keeps


class Refused(Exception):
    """
    The other side will not take it, however often it is sent.
    """


class Unheard(Exception):
    """
    Nobody has answered, or has asked to come again.
    """


def read_json(path: Path) -> Any:
    """
    What the file holds; None when it is not there or not whole.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_file(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """
    The file has this content, mode and owner (user id, group id), at no moment anything in between.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    line = os.open(str(fresh), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(line, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        if owner is not None:
            os.chown(str(fresh), *owner)
        fresh.chmod(mode)
        fresh.replace(path)
    except BaseException:
        fresh.unlink()
        raise


def write_json(path: Path, value: Any) -> None:
    """
    The file holds the value; root alone reads it.
    """
    write_file(path, json.dumps(value).encode(), 0o600)


def owner_ids(owner: str) -> tuple[int, int]:
    """
    The ids of user:group. Raises KeyError while there is no such user or group.
    """
    user, _, group = owner.partition(":")
    entry = pwd.getpwnam(user)
    return entry.pw_uid, grp.getgrnam(group).gr_gid if group else entry.pw_gid


def lay(file: dict[str, Any]) -> bool:
    """
    The file is as the plan says; whether it was changed is returned. Raises KeyError, OSError.
    """
    path = ROOT / file["path"].lstrip("/")
    content, mode = file["content"].encode(), int(file["mode"], 8)
    ids = owner_ids(file["owner"])
    try:
        known = path.stat()
        same = path.read_bytes() == content and (known.st_mode & 0o7777, known.st_uid, known.st_gid) == (mode, *ids)
    except OSError:
        same = False
    if not same:
        make_folders(path.parent)
        write_file(path, content, mode, ids)
    return not same


def make_folders(folder: Path) -> None:
    """
    The folder is there; what of it was not there before lets everybody in, whatever the umask we were started under.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        one.chmod(0o755)


def lay_all(files: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """
    Every file that can be laid down is; those that changed, and why others could not be: [{path, detail}].
    """
    changed, failed = [], []
    for file in files:
        try:
            if lay(file):
                changed.append(file)
        except KeyError as error:
            failed.append({"path": file["path"], "detail": f"{file['owner']}: {error.args[0]}"})
        except OSError as error:
            failed.append({"path": file["path"], "detail": error.strerror or str(error)})
    return changed, failed


def clean(text: str, token: str) -> str:
    """
    The text without the token and without characters that do not print.
    """
    text = text.replace(token, "[hidden]") if token else text
    return "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)


def tail(path: Path, token: str) -> str:
    """
    The last lines of the file.
    """
    try:
        raw = path.read_bytes()[-8 * LONGEST_TAIL :]
    except OSError:
        return ""
    return clean("\n".join(raw.decode("utf-8", "replace").splitlines()[-LINES:]), token)[-LONGEST_TAIL:]


def token_of(plan: dict[str, Any]) -> str:
    """
    The token in the plan's address.
    """
    return str(plan["url"]).rstrip("/").rpartition("/")[2]


def install(plan: dict[str, Any]) -> None:
    """
    Files are laid down as far as their owners exist, our scripts will run in cloud-init's last stage, and the service has started.
    """
    marker = HOME / "boot-id"
    if not marker.exists() or marker.read_text(encoding="utf-8") != plan["boot_id"]:
        for old in ("scripts.json", "checks.jsonl", "applied.json"):
            if (HOME / old).exists():
                (HOME / old).unlink()
        shutil.rmtree(str(OUTPUTS), ignore_errors=True)
        lay_all(plan["files"])
        write_file(marker, plan["boot_id"].encode(), 0o600)
    agent = str(HOME / "agent.py")
    for hook in HOOKS:  # per instance once, also where power was lost on the way; per boot again, and there is nothing left to do
        write_file(hook, f"#!/bin/sh\nexec {sys.executable} {agent} scripts\n".encode(), 0o700)
    if (ROOT / "run/systemd/system").is_dir():
        unit = (HOME / UNIT.name).read_text(encoding="utf-8")
        write_file(UNIT, unit.replace("{command}", f"{sys.executable} {agent} run").encode(), 0o644)
        for verb in (["daemon-reload"], ["enable", UNIT.name], ["start", "--no-block", UNIT.name]):
            subprocess.run(["systemctl", *verb], check=True)  # noqa: S603, S607 - wherever the image has it
    else:
        own = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen([sys.executable, agent, "run"], start_new_session=True, **own)  # type: ignore[call-overload] # noqa: S603


def scripts(plan: dict[str, Any]) -> None:
    """
    Files that waited for an owner are laid down and our scripts have run, each to its first failing line, none after a failed one; what
    came of it is written beside the plan. Where they were cut off, they run again from the first one.
    """
    known = read_json(HOME / "scripts.json")
    if known is not None and known["boot_id"] == plan["boot_id"] and known["over"]:
        return
    done: list[dict[str, Any]] = []
    if plan["files"]:
        failed = lay_all(plan["files"])[1]
        words = clean("\n".join(f"{one['path']}: {one['detail']}" for one in failed), token_of(plan))[:LONGEST_TAIL]
        done.append({"name": FILES, "ok": not failed, "exit_code": None, "line": None, "output": words})
    for script in plan["scripts"]:
        if done and not done[-1]["ok"]:
            done.append(
                {"name": script["name"], "ok": False, "exit_code": None, "line": None, "output": "not run: one before it failed"}
            )
        else:
            done.append(run_script(script, plan))
        write_json(HOME / "scripts.json", {"boot_id": plan["boot_id"], "scripts": done, "over": False})  # told while others run
    write_json(HOME / "scripts.json", {"boot_id": plan["boot_id"], "scripts": done, "over": True})


def run_script(script: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    """
    What came of the script.
    """
    text, output, line = (HOME / f"{script['name']}.{end}" for end in ("sh", "out", "line"))
    write_file(text, script["text"].encode(), 0o700)
    write_file(line, b"", 0o600)
    strict = [BASH, "-c", (HOME / "strict.sh").read_text(encoding="utf-8"), script["name"], str(line), str(text)]
    shell = strict if Path(BASH).exists() else ["/bin/sh", "-e", str(text)]
    OUTPUTS.mkdir(mode=0o700, exist_ok=True)
    told = {"BOOT_CHECKS": str(HOME / "checks.jsonl"), "BOOT_OUTPUTS": str(OUTPUTS), "BOOT_PURPOSE": plan["purpose"]}
    told["BOOT_URL"] = plan["url"]
    with output.open("wb") as out:
        child = subprocess.Popen(  # noqa: S603 - our own script
            shell, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **told}, cwd="/", start_new_session=True
        )
        try:
            code: int | None = child.wait(script["timeout_s"])
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = None
    with output.open("rb") as written:
        shutil.copyfileobj(written, sys.stdout.buffer)
    sys.stdout.flush()
    failed_at = line.read_text(encoding="utf-8").split()
    words = tail(output, token_of(plan))
    return {
        "name": script["name"],
        "ok": code == 0,
        "exit_code": code,
        "line": int(failed_at[0]) if code and failed_at and failed_at[0].isdigit() else None,
        "output": words if code is not None else f"not over after {script['timeout_s']:g} s\n{words}"[:LONGEST_TAIL],
    }


class Line:
    """
    The way to whoever made the plan.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.url = str(plan["url"])
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(
        self, path: str, body: bytes | None = None, kind: str = "application/json", tag: str = ""
    ) -> tuple[dict[str, Any] | None, str]:
        """
        The answer and its ETag; None when what was tagged is unchanged. Raises Refused, Unheard.
        """
        headers = {"Content-Type": kind} if body is not None else {}
        if tag:
            headers["If-None-Match"] = tag
        request = urllib.request.Request(self.url + path, data=body, headers=headers)  # noqa: S310 - the plan's own address
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read()), answer.headers.get("ETag") or ""
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 304:  # noqa: PLR2004
                    return None, tag
                if error.code in {408, 425, 429} or error.code >= 500:  # noqa: PLR2004
                    raise Unheard(str(error.code)) from None
                raise Refused(str(error.code)) from None
        except (OSError, ValueError) as error:
            raise Unheard(type(error).__name__) from None


def said_by_cloud_init(name: str) -> Any:
    """
    What stands in this file of cloud-init's; where it is off for want of its seed, what stood there when it last ran.
    """
    return read_json((KEPT if (CLOUD / "disabled").exists() else CLOUD) / name)


def keep_what_was_said() -> None:
    """
    What cloud-init has said outlives a loss of power: the last report can be made again.
    """
    for path in KEPT.glob("*.json"):
        with path.open("rb") as said:
            os.fsync(said.fileno())


def stages_now() -> dict[str, str]:
    """
    The stages of cloud-init that are over, with their errors as text.
    """
    status = (said_by_cloud_init("status.json") or {}).get("v1") or {}
    over = [name for name in STAGES if (status.get(name) or {}).get("finished")]
    return {name: "\n".join(str(one) for one in status[name].get("errors") or []) for name in over}


def report_of(plan: dict[str, Any]) -> dict[str, Any]:
    """
    What is known now; final once cloud-init says that it is done.
    """
    token = token_of(plan)
    known = read_json(HOME / "scripts.json") or {}
    checks = []
    try:
        lines = (HOME / "checks.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines[:500]:
        try:
            one = json.loads(line)
            checks.append({key: clean(str(one[key]), token)[:LONGEST_TAIL] for key in ("name", "result", "detail")})
        except (ValueError, KeyError, TypeError):
            checks.append({"name": "unreadable", "result": "failed", "detail": clean(line, token)[:200]})
    return {
        "boot_id": plan["boot_id"],
        "final": said_by_cloud_init("result.json") is not None,
        "stages": [{"name": name, "errors": clean(text, token)[:LONGEST_TAIL]} for name, text in stages_now().items()],
        "scripts": known.get("scripts", []) if known.get("boot_id") == plan["boot_id"] else [],
        "checks": checks,
    }


def send_console(line: Line, plan: dict[str, Any]) -> None:
    """
    What cloud-init has written since is at the other side. Raises Refused, Unheard.
    """
    state = read_json(MEMORY / "console.json") or {"read": 0, "next": None}
    try:
        with CONSOLE.open("rb") as log:
            if log.seek(0, os.SEEK_END) < state["read"]:
                state["read"] = 0
            log.seek(state["read"])
            raw = log.read(CHUNK_BYTES)
    except OSError:
        return
    whole = raw if len(raw) == CHUNK_BYTES else raw[: raw.rfind(b"\n") + 1]
    if not whole:
        return
    chunk = whole.replace(token_of(plan).encode(), b"[hidden]")
    where = "console" if state["next"] is None else f"console?offset={state['next']}"
    answer, _ = line.ask(where, chunk, "application/octet-stream")
    write_json(MEMORY / "console.json", {"read": state["read"] + len(whole), "next": (answer or {}).get("next")})


def send_outputs(line: Line) -> None:
    """
    Outputs that were whole when this began are at the other side, or are refused there for good; those that begin with a dot are neither
    sent nor touched. Raises Refused, Unheard.
    """
    try:
        ready = sorted(one for one in OUTPUTS.iterdir() if not one.name.startswith("."))
    except OSError:
        return
    for path in ready:
        try:
            line.ask(f"outputs/{path.name}", gzip.compress(path.read_bytes(), mtime=0), "application/gzip")
        except Refused as refusal:
            if str(refusal) not in {"404", "409", "413", "422"}:
                raise
            print(f"boot-agent: {path.name} is refused: {refusal}", file=sys.stderr)  # noqa: T201 - the journal
        path.replace(path.with_name(f".{path.name}.sent"))


def report_until_heard(line: Line, plan: dict[str, Any]) -> bool:
    """
    Everything was reported and accepted; False when the other side does not want it.
    """
    said: dict[str, Any] = {}
    pause_s, refusals = LOOK_S, 0
    while True:
        report = report_of(plan)
        try:
            send_outputs(line)  # before a final report, which is made above and tells of no output that is not whole by now
            for _ in range(MOST_CHUNKS if report["final"] else 1):  # so is the console: where a boot failed, power goes
                send_console(line, plan)
            if report != said:
                if report["final"]:
                    keep_what_was_said()
                line.ask("report", json.dumps(report).encode())
                said, pause_s, refusals = report, LOOK_S, 0
            if said.get("final"):
                return True
        except Refused as refusal:
            refusals += 1
            if str(refusal) in {"409", "413", "415", "422"} or refusals >= REFUSALS:
                print(f"boot-agent: the report is refused: {refusal}", file=sys.stderr)  # noqa: T201 - the journal
                return False
            pause_s = min(SLOWEST_S, pause_s * 2)
        except Unheard:
            pause_s = min(SLOWEST_S, pause_s * 2)
        time.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter


def follow_files(line: Line, plan: dict[str, Any]) -> None:
    """
    Never returns: files that are rewritten at the other side are rewritten here, and it is told which version stands.
    """
    applied = read_json(HOME / "applied.json") or {"version": plan["version"], "tag": "", "told": False, "failed": []}
    pause_s = float(plan["poll_s"])
    while True:
        try:
            answer, tag = line.ask("files", tag=applied["tag"])
            if answer is not None:
                changed, failed = lay_all(answer["files"])
                due = applied.get("due", [])
                due += [{"path": one["path"], "on_change": one["on_change"]} for one in changed if one.get("on_change")]
                applied = {"version": answer["version"], "tag": tag, "told": False, "failed": failed, "due": due}
                write_json(HOME / "applied.json", applied)
            if applied.get("due"):  # again where it failed: what the command speaks to may not have started yet
                before, applied["broken"] = applied.get("broken", []), run_changes(applied["due"])
                stuck = {one["on_change"] for one in applied["due"] if one["path"] in {each["path"] for each in applied["broken"]}}
                applied["due"] = [one for one in applied["due"] if one["on_change"] in stuck]
                applied["told"] = applied["told"] and applied["broken"] == before
                write_json(HOME / "applied.json", applied)
            if not applied["told"]:
                told = {"version": applied["version"], "failed": (applied["failed"] + applied.get("broken", []))[:100]}
                line.ask("applied", json.dumps(told).encode())
                applied["told"] = True
                write_json(HOME / "applied.json", applied)
            pause_s = float(plan["poll_s"])
        except (Refused, Unheard):
            pause_s = min(5 * SLOWEST_S, pause_s * 2)
        time.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter


def run_changes(changed: list[dict[str, Any]]) -> list[dict[str, str]]:
    """
    The commands of the changed files have run, each once; which failed.
    """
    failed = []
    wanted = {file["on_change"]: file["path"] for file in reversed(changed) if file.get("on_change")}
    for command, path in sorted(wanted.items(), key=lambda one: one[1]):
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False
            )
            words = f"on_change ended with {done.returncode}: {done.stderr.decode('utf-8', 'replace')[-500:]}"
            if done.returncode == 0:
                continue
        except subprocess.TimeoutExpired:
            words = "on_change was not over after 300 s"
        failed.append({"path": path, "detail": re.sub(r"[^\n\t -~]", "?", words)})
    return failed


def heard_before() -> bool:
    """
    This boot's last report was heard, and cloud-init is off for want of its seed: it may never again say that it is done.
    """
    return (CLOUD / "disabled").exists() and (HOME / "applied.json").exists()


def main(verb: str) -> None:
    """
    The verb is done.
    """
    plan = read_json(HOME / "plan.json")
    if plan is None:
        raise SystemExit("boot-agent: there is no plan")
    if verb == "install":
        install(plan)
    elif verb == "scripts":
        scripts(plan)
    elif verb == "run":
        line = Line(plan)
        if (heard_before() or report_until_heard(line, plan)) and plan["poll_s"]:
            follow_files(line, plan)
    else:
        raise SystemExit(f"boot-agent: what is {verb}?")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
