"""
Takes part in a fabric check: says what this machine has, asks what to run and with whom, runs it, and sends what the tool printed. It is
sent as it is and runs from memory on whatever Python 3 came with the operator's system (3.7 or later). Keys for SSH are made here, for
this boot alone, and only their public halves leave the machine.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

URL = os.environ.pop("BOOT_URL").rstrip("/").replace("/v1/boot/", "/v1/fabric-runs/")  # tools and their children are not told
SYS = Path(os.environ.get("FABRIC_SYS", "/sys/class/infiniband"))  # another place only where the program itself is tested
DEV = Path(os.environ.get("FABRIC_DEV", "/dev"))
PAUSE_S = float(os.environ.get("FABRIC_PAUSE_S", "1"))
TOOLS = ("all_reduce_perf", "ib_write_bw", "mpirun", "ssh", "sshd")
SSH_PORT = int(os.environ.get("FABRIC_SSH_PORT", "18522"))
RDMA_PORT = 18515
TRIES = 10
TIMEOUT_S = 15
LONGEST_BYTES = 2000000
LONGEST_WORDS = 400
LONGEST_PAUSE_S = 30.0


class Over(Exception):
    """
    The check is over, or this machine is not wanted in it any more.
    """


def ask(path: str, body: bytes, kind: str) -> Any:
    """
    The answer; None where this very thing is refused. Asked until somebody answers. Raises Over.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    pause_s = PAUSE_S
    while True:
        request = urllib.request.Request(URL + path, data=body, headers={"Content-Type": kind})  # noqa: S310 - the plan's own address
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    raise Over from None
                if error.code not in {408, 425, 429} and error.code < 500:
                    print("refused: %d %s" % (error.code, clean(error.read().decode("utf-8", "replace"))), flush=True)
                    return None
        except (OSError, ValueError) as error:
            print("not heard: %s" % type(error).__name__, flush=True)
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)


def clean(text: str) -> str:
    """
    The end of the text on one line, as it may be told.
    """
    plain = "".join(one if one.isprintable() else " " for one in text)
    return plain.replace(URL.rpartition("/")[2], "[hidden]").strip()[-LONGEST_WORDS:]


def own_address() -> str:
    """
    The address by which this machine reaches the control plane.
    """
    there = urllib.parse.urlsplit(URL)
    with socket.create_connection((there.hostname, there.port or 80), timeout=TIMEOUT_S) as line:
        return str(line.getsockname()[0])


def count_gpus() -> int:
    """
    GPUs that the driver shows.
    """
    return sum(one.name[6:].isdigit() for one in DEV.glob("nvidia*"))


def live_devices() -> list[str]:
    """
    RDMA devices with a port that is up.
    """
    states = {one: list(one.glob("ports/*/state")) for one in (sorted(SYS.iterdir()) if SYS.is_dir() else [])}
    return [one.name for one, ports in states.items() if any("ACTIVE" in port.read_text(encoding="utf-8") for port in ports)]


def make_key(folder: Path, name: str) -> str:
    """
    The public half of a new key; empty where the image has no tool for it.
    """
    if shutil.which("ssh-keygen") is None:
        return ""
    path = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)  # noqa: S603 - our own words
    return " ".join(path.with_suffix(".pub").read_text(encoding="utf-8").split()[:2])


def arrival(folder: Path) -> dict[str, Any]:
    """
    What this machine is and has.
    """
    return {
        "address": own_address(),
        "tools": [one for one in TOOLS if shutil.which(one)],
        "devices": live_devices(),
        "gpus": count_gpus(),
        "key": make_key(folder, "key"),
        "host_key": make_key(folder, "host"),
    }


class Tool:
    """
    One command in a session of its own, with what it prints; nothing of it is left behind the block.
    """

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self.output, self.errors = folder / (name + ".out"), folder / (name + ".err")
        with self.output.open("wb") as out, self.errors.open("wb") as err:
            self.child = subprocess.Popen(  # noqa: S603 - the tools' names are ours, their options the operator's
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    def __enter__(self) -> Tool:  # noqa: PYI034 - Python 3.7
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def said(self) -> str:
        """
        What it said last, of errors and else.
        """
        whole = self.errors.read_bytes()[-LONGEST_WORDS:] + b" " + self.output.read_bytes()[-LONGEST_WORDS:]
        return clean(whole.decode("utf-8", "replace"))

    def word(self, left_s: float, limit_s: float) -> dict[str, str]:
        """
        What it came to within what is left of the limit.
        """
        try:
            code = self.child.wait(max(0.1, left_s))
        except subprocess.TimeoutExpired:
            return failed("not over after %d s: %s" % (limit_s, self.said()))
        if code:
            return failed("exit code %d: %s" % (code, self.said()))
        if self.output.stat().st_size > LONGEST_BYTES:
            return failed("its output is longer than is taken")
        text = self.output.read_bytes().decode("utf-8", "replace")
        return {"result": "passed", "detail": "", "output": text} if text.strip() else failed("it printed nothing")


def failed(why: str) -> dict[str, str]:
    """
    The word of a part that failed.
    """
    return {"result": "failed", "detail": why[: 2 * LONGEST_WORDS], "output": ""}


def is_over(errand: dict[str, Any], me: dict[str, Any]) -> bool:
    """
    Whether the run is this machine's no more, looked at after a pause.
    """
    time.sleep(PAUSE_S)
    answer = ask("", json.dumps(me).encode(), "application/json")
    return answer is None or (answer["errand"] or {}).get("run") != errand["run"]


def run_server(errand: dict[str, Any], folder: Path, me: dict[str, Any]) -> dict[str, str] | None:
    """
    The end of a pair that listens, until its tool has ended, its time is up or the run is over; None for the last.
    """
    end_at = time.monotonic() + errand["limit_s"]
    with Tool(writes(errand), folder, "server") as tool:
        while tool.child.poll() is None and time.monotonic() < end_at:
            if is_over(errand, me):
                return None
        return tool.word(end_at - time.monotonic(), errand["limit_s"])


def writes(errand: dict[str, Any]) -> list[str]:
    """
    The command of both ends of a pair.
    """
    return ["ib_write_bw", "-d", errand["device"], "-p", str(RDMA_PORT), *errand["options"]]


def run_client(errand: dict[str, Any], folder: Path) -> dict[str, str]:
    """
    The end of a pair that measures: it asks again until it is heard, within its limit.
    """
    end_at = time.monotonic() + errand["limit_s"]
    word = failed("it was not tried")
    for _ in range(TRIES):
        with Tool([*writes(errand), errand["peers"][1]["address"]], folder, "client") as tool:
            word = tool.word(end_at - time.monotonic(), errand["limit_s"])
        if word["result"] == "passed" or time.monotonic() >= end_at:
            return word
        time.sleep(PAUSE_S)  # until the other end listens
    return word


def run_head(errand: dict[str, Any], folder: Path) -> dict[str, str]:
    """
    The collective over all machines of the run, started from here on each by SSH, one process for each GPU.
    """
    peers, each = errand["peers"], errand["gpus"]
    known = "".join("[%s]:%d %s\n" % (one["address"], SSH_PORT, one["host_key"]) for one in peers)
    (folder / "known").write_text(known, encoding="utf-8")
    (folder / "ssh").write_text(
        "Host *\nPort %d\nUser root\nBatchMode yes\nIdentitiesOnly yes\nIdentityFile %s\nStrictHostKeyChecking yes\n"
        "UserKnownHostsFile %s\nGlobalKnownHostsFile /dev/null\nConnectTimeout 10\nConnectionAttempts 20\n"
        % (SSH_PORT, folder / "key", folder / "known"),
        encoding="utf-8",
    )
    hosts = ",".join("%s:%d" % (one["address"], each) for one in peers)
    command = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", "ssh -F %s" % (folder / "ssh"), "--host", hosts]
    command += ["-np", str(each * len(peers)), *errand["launcher"]]
    if errand["device"]:
        command += ["-x", "NCCL_IB_HCA==" + errand["device"]]
    with Tool([*command, "all_reduce_perf", *errand["options"], "-g", "1"], folder, "head") as tool:
        return tool.word(errand["limit_s"], errand["limit_s"])


def serve_head(errand: dict[str, Any], folder: Path, me: dict[str, Any]) -> dict[str, str] | None:
    """
    The head, and it alone, may start its processes here until the run is over; what went wrong, None where nothing did.
    """
    head = errand["peers"][0]
    (folder / "authorized").write_text('from="%s",restrict %s\n' % (head["address"], head["key"]), encoding="utf-8")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    (folder / "sshd").write_text(
        "Port %d\nListenAddress %s\nHostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nAllowUsers root\nPidFile none\n"
        % (SSH_PORT, errand["peers"][errand["place"]]["address"], folder / "host", folder / "authorized"),
        encoding="utf-8",
    )
    with Tool([str(shutil.which("sshd")), "-D", "-e", "-f", str(folder / "sshd")], folder, "sshd") as tool:
        try:
            while tool.child.poll() is None:
                if is_over(errand, me):
                    return None
            return failed("sshd ended: %s" % tool.said())
        finally:
            end_children(tool.child.pid)


def end_children(parent: int) -> None:
    """
    What was started through the SSH server is ended with it: each connection is a session of its own.
    """
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    due = parents.get(parent, [])
    while due:
        one = due.pop()
        due += parents.get(one, [])
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)


def take_part(folder: Path) -> None:
    """
    Never returns by itself. Raises Over.
    """
    me, done = arrival(folder), set()
    print("has %s; %d GPUs; %s" % (" ".join(me["tools"]) or "no tool", me["gpus"], " ".join(me["devices"])), flush=True)
    while True:
        answer = ask("", json.dumps(me).encode(), "application/json")
        errand = None if answer is None else answer["errand"]
        if errand is None or errand["run"] in done:
            time.sleep(PAUSE_S if answer is None else min(LONGEST_PAUSE_S, answer["again_s"] * PAUSE_S))
            continue
        print("run %s: %s" % (errand["run"], errand["role"]), flush=True)
        try:
            if errand["role"] in {"all", "server"}:
                word = (serve_head if errand["role"] == "all" else run_server)(errand, folder, me)
            else:
                word = (run_head if errand["role"] == "head" else run_client)(errand, folder)
        except OSError as error:
            word = failed("it cannot be run: %s" % clean(str(error)))
        done.add(errand["run"])
        if word is not None:
            print("run %s: %s %s" % (errand["run"], word["result"], word["detail"]), flush=True)
            ask("/" + errand["run"], gzip.compress(json.dumps(word).encode(), mtime=0), "application/gzip")


def main() -> None:
    """
    The check is over for this machine.
    """
    if os.environ.get("BOOT_PURPOSE") != "fabric":
        raise SystemExit("this is not a boot for a fabric check")
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    folder = Path(tempfile.mkdtemp(prefix="fabric-"))
    try:
        take_part(folder)
    except Over:
        print("the check is over", flush=True)
    finally:
        shutil.rmtree(str(folder), ignore_errors=True)


if __name__ == "__main__":
    main()
