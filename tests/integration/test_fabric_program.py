"""
The program that takes part in fabric checks, as a machine runs it, with tools that print what the real ones printed, hang or break.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from controlplane.fabric_checks.wire import ArrivalIn, WordIn
from controlplane.measurements.nccl import parse_nccl
from controlplane.measurements.perftest import parse_write_bandwidth
from tests.factories.burning import fit_out, prints, tool
from tests.factories.qualification import nccl, write_bw

PROGRAM = (files("controlplane.boots") / "scripts" / "fabric.py").read_text(encoding="utf-8")
TOKEN = "bot_01k5x7p3r8w2v6t9q4n0m1c2d3." + "x" * 43
PEERS = [{"address": f"127.0.0.{n}", "key": f"ssh-ed25519 K{n}", "host_key": f"ssh-ed25519 H{n}"} for n in (1, 2)]
ERRAND = {
    "run": "0-0",
    "tool": "ib_write_bw",
    "role": "client",
    "place": 0,
    "peers": PEERS,
    "device": "mlx5_0",
    "gpus": 2,
    "limit_s": 20,
    "options": ["-F", "--report_gbits"],
    "launcher": [],
}


class Desk:
    """
    The other side as far as the program sees it: one errand, until there is a word on it or it was asked for so often; then it is over.
    """

    def __init__(self, errand: dict[str, Any] | None, asks: int) -> None:
        self.errand, self.asks = errand, asks
        self.arrivals: list[ArrivalIn] = []
        self.words: list[WordIn] = []

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == f"/v1/fabric-runs/{TOKEN}/0-0":
            self.words.append(WordIn.model_validate_json(gzip.decompress(body)))
            return 200, {"taken": True}
        assert path == f"/v1/fabric-runs/{TOKEN}"
        self.arrivals.append(ArrivalIn.model_validate_json(body))
        if self.words or len(self.arrivals) > self.asks:
            return 404, {}
        return 200, {"errand": self.errand, "again_s": 1.0}


@contextmanager
def listening(desk: Desk) -> Iterator[str]:
    """The desk's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, told = desk.answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/boot/{TOKEN}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A machine of two GPUs with every tool; its keys are made by a stand-in, and its SSH server only waits."""
    fit_out(tmp_path)
    for number in range(2):
        (tmp_path / "dev" / f"nvidia{number}").mkdir(parents=True)
    (tmp_path / "dev" / "nvidiactl").mkdir()
    prints(tmp_path / "tools", "ib_write_bw", write_bw(391.5))
    tool(
        tmp_path / "tools",
        "mpirun",
        f'printf "%s\\n" "$@" >{tmp_path}/mpirun.told; cat "${{4#ssh -F }}" >{tmp_path}/ssh.conf; cat {tmp_path}/nccl',
    )
    (tmp_path / "nccl").write_text(nccl(460.0))
    tool(tmp_path / "tools", "sshd", f'cp "$4" {tmp_path}/sshd.conf; echo $$ >{tmp_path}/sshd.pid; exec tail -f /dev/null')
    tool(tmp_path / "tools", "ssh", "exit 1")
    return tmp_path


def test_old_machines_can_read_it() -> None:
    """Its syntax is that of Python 3.7."""
    assert ast.parse(PROGRAM, feature_version=(3, 7))


def take_part(home: Path, errand: dict[str, Any] | None, *, asks: int = 50) -> Desk:
    """What the other side heard until the check was over."""
    desk = Desk(errand, asks)
    with listening(desk) as url:
        env = {
            "BOOT_URL": url,
            "BOOT_PURPOSE": "fabric",
            "PATH": f"{home}/tools:{os.environ['PATH']}",
            "FABRIC_SYS": str(home / "sys"),
            "FABRIC_DEV": str(home / "dev"),
            "FABRIC_PAUSE_S": "0.05",
            "TMPDIR": str(home),
        }
        done = subprocess.run(
            [sys.executable, "-"], input=PROGRAM, env=env, capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert not list(home.glob("fabric-*"))
    return desk


def test_a_machine_says_what_it_has(home: Path) -> None:
    """Tools, GPUs, ports that are up, its address, and the public halves of keys made for this boot; the same each time it asks."""
    (home / "sys/mlx5_1/ports/1/state").write_text("1: DOWN\n")
    (home / "tools/mpirun").unlink()
    desk = take_part(home, None, asks=3)
    assert (desk.words, len({one.model_dump_json() for one in desk.arrivals})) == ([], 1)
    told = desk.arrivals[0]
    assert {"ib_write_bw", "all_reduce_perf", "sshd"} <= set(told.tools)
    assert (told.devices, told.gpus, told.address) == (["mlx5_0"], 2, "127.0.0.1")
    assert told.key != told.host_key


def test_the_client_is_heard_once_the_other_end_listens(home: Path) -> None:
    """It asks again until then; what it sends is read by the ledger's own parser, and its tools know nothing of the token."""
    tool(
        home / "tools",
        "ib_write_bw",
        f'echo "$@" >>{home}/told; env >>{home}/env; [ $(wc -l <{home}/told) -gt 2 ] || exit 1; cat {home}/tools/ib_write_bw.text',
    )
    (word,) = take_part(home, ERRAND).words
    assert word.result == "passed"
    assert parse_write_bandwidth(word.output)
    assert (home / "told").read_text().splitlines() == ["-d mlx5_0 -p 18515 -F --report_gbits 127.0.0.2"] * 3
    assert TOKEN not in (home / "env").read_text()


def test_the_server_listens_for_nobody_in_particular(home: Path) -> None:
    """Its tool is given no address."""
    tool(home / "tools", "ib_write_bw", f'echo "$@" >{home}/told; echo x')
    (word,) = take_part(home, {**ERRAND, "role": "server", "place": 1}).words
    assert (word.result, (home / "told").read_text()) == ("passed", "-d mlx5_0 -p 18515 -F --report_gbits\n")


def test_the_server_stops_when_the_run_is_over(home: Path) -> None:
    """Nobody was heard, and the run was recorded without it: it is free for the next one, and says nothing."""
    tool(home / "tools", "ib_write_bw", f"echo $$ >{home}/pid; exec tail -f /dev/null")
    assert take_part(home, {**ERRAND, "role": "server", "place": 1, "limit_s": 600}, asks=3).words == []
    assert not (Path("/proc") / (home / "pid").read_text().strip()).exists()


def test_a_tool_that_hangs_breaks_or_says_nothing_has_failed(home: Path) -> None:
    """Ended with its children at its limit, without half an output; a bad end is told in its words, without the token."""
    server = {**ERRAND, "role": "server", "place": 1, "limit_s": 1}
    tool(home / "tools", "ib_write_bw", f"echo half; tail -f /dev/null & echo $! >{home}/child; wait")
    (word,) = take_part(home, server).words
    assert (word.result, word.detail, word.output) == ("failed", "not over after 1 s: half", "")
    stat = Path("/proc") / (home / "child").read_text().strip() / "stat"
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    tool(home / "tools", "ib_write_bw", f"echo half; echo 'no route {TOKEN}' >&2; exit 3")
    (word,) = take_part(home, server).words
    assert (word.result, word.detail, word.output) == ("failed", "exit code 3: no route [hidden]  half", "")
    tool(home / "tools", "ib_write_bw", "exit 0")
    assert take_part(home, server).words[0].detail == "it printed nothing"
    (home / "tools/ib_write_bw").unlink()
    assert take_part(home, server).words[0].detail.startswith("it cannot be run")


def test_the_head_starts_a_process_for_each_gpu_of_all(home: Path) -> None:
    """By mpirun over SSH that trusts the run's machines alone, on the rail's device; its output is the collective's."""
    head = {**ERRAND, "role": "head", "options": ["-b", "8"], "launcher": ["--tag-output"], "device": "mlx5_0"}
    (word,) = take_part(home, head).words
    assert word.result == "passed"
    assert parse_nccl(word.output, "all_reduce")
    told = (home / "mpirun.told").read_text().splitlines()
    assert told[:3] == ["--allow-run-as-root", "--mca", "plm_rsh_agent"]
    started = "--host 127.0.0.1:2,127.0.0.2:2 -np 4 --tag-output -x NCCL_IB_HCA==mlx5_0 all_reduce_perf -b 8 -g 1"
    assert " ".join(told[4:]) == started
    assert {"StrictHostKeyChecking yes", "BatchMode yes", "Port 18522"} <= set((home / "ssh.conf").read_text().splitlines())


def test_the_others_let_the_head_in_until_the_run_is_over(home: Path) -> None:
    """Only its key, only from its address; they say nothing, and their SSH server is gone with the run."""
    desk = take_part(home, {**ERRAND, "role": "all", "place": 1}, asks=3)
    assert desk.words == []
    settings = (home / "sshd.conf").read_text().splitlines()
    assert {"ListenAddress 127.0.0.2", "PasswordAuthentication no", "AllowUsers root"} <= set(settings)
    assert not (Path("/proc") / (home / "sshd.pid").read_text().strip()).exists()


def test_a_boot_for_something_else_takes_no_part(home: Path) -> None:
    """The program refuses it."""
    env = {"BOOT_URL": "http://127.0.0.1:1/v1/boot/x/", "BOOT_PURPOSE": "wipe", "PATH": f"{home}/tools"}
    done = subprocess.run([sys.executable, "-"], input=PROGRAM, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
