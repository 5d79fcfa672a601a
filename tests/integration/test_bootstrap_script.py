"""
The installer's first step: uv from whatever index the machine names, and advice when that fails.
"""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import io
import json
import platform
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bootstrap.py"
UV = b"#!/bin/sh\necho uv\n"


def load() -> Any:
    """The script as a module of its own, whose constants a test may change without anybody else seeing it."""
    found = importlib.util.spec_from_file_location("bootstrap_script", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """The script with a folder of its own for tools, and a small wheel pinned instead of uv's."""
    module = load()
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"uv-{module.UV_VERSION}.data/scripts/uv", UV)
    module.WHEEL = wheel.getvalue()
    name = module.UV_WHEELS[platform.machine()][0]
    module.UV_WHEELS = {platform.machine(): (name, hashlib.sha256(module.WHEEL).hexdigest())}
    module.TOOLS = tmp_path / "tools"
    return module


@pytest.fixture
def index(script: Any) -> Iterator[http.server.HTTPServer]:
    """A package index on loopback; a test says in `pages` what it answers."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = self.server.pages.get(self.path)  # type: ignore[attr-defined]
            self.send_response(200 if page is not None else 404)
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.pages = {"/files/uv.whl": script.WHEEL}  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def address(server: http.server.HTTPServer) -> str:
    """Where the index is."""
    return f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("form", ["json", "html"])
def test_uv_comes_from_an_index_in_either_form(script: Any, index: http.server.HTTPServer, form: str) -> None:
    """Both forms of the simple interface are understood, relative links included."""
    name = script.UV_WHEELS[platform.machine()][0]
    page = {
        "json": json.dumps({"files": [{"filename": name, "url": "../../files/uv.whl"}]}),
        "html": f'<!DOCTYPE html><a href="../../files/{name}#sha256=0">{name}</a>',
    }[form]
    index.pages |= {"/simple/uv/": page.encode(), f"/files/{name}": script.WHEEL}  # type: ignore[attr-defined]
    uv = script.ensure_uv(script.PipSettings([f"{address(index)}/simple"], None))
    assert uv.read_bytes() == UV
    assert uv.stat().st_mode & 0o111
    assert script.ensure_uv(script.PipSettings(["http://127.0.0.1:9/none"], None)) == uv


def test_another_index_is_tried(script: Any, index: http.server.HTTPServer) -> None:
    """An index without the wheel does not end the search."""
    name = script.UV_WHEELS[platform.machine()][0]
    page = json.dumps({"files": [{"filename": name, "url": f"{address(index)}/files/uv.whl"}]})
    index.pages["/second/uv/"] = page.encode()  # type: ignore[attr-defined]
    settings = script.PipSettings([f"{address(index)}/first", f"{address(index)}/second"], None)
    assert script.ensure_uv(settings).read_bytes() == UV


def test_wheel_with_another_digest_is_refused(script: Any, index: http.server.HTTPServer) -> None:
    """What was not pinned is not installed, wherever it comes from."""
    name = script.UV_WHEELS[platform.machine()][0]
    page = json.dumps({"files": [{"filename": name, "url": "/files/uv.whl"}]}).encode()
    index.pages |= {"/simple/uv/": page, "/files/uv.whl": script.WHEEL + b"more"}  # type: ignore[attr-defined]
    with pytest.raises(SystemExit, match="another SHA-256"):
        script.ensure_uv(script.PipSettings([f"{address(index)}/simple"], None))
    assert not list(script.TOOLS.rglob("uv"))


def test_no_network_leads_to_advice_without_passwords(tmp_path: Path) -> None:
    """The message names host and variables; a password in the address is not shown."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_INDEX_URL": "http://me:hunter2@127.0.0.1:9/simple"}
    copy = tmp_path / "scripts" / "bootstrap.py"
    copy.parent.mkdir()
    copy.write_text(SCRIPT.read_text())
    done = subprocess.run(
        [sys.executable, str(copy), "--uv"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_pip_configuration_is_honoured_and_the_environment_wins(tmp_path: Path) -> None:
    """The index is the one that pip would use."""
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://index.example/simple\ncert = /some/ca.pem\n")
    program = f"""
import importlib.util, json
found = importlib.util.spec_from_file_location("b", {str(SCRIPT)!r})
module = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
settings = module.pip_settings()
print(json.dumps([settings.indexes, settings.certificates]))
"""

    def settings(**more: str) -> list[object]:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), **more}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        assert isinstance(answer, list)
        return answer

    assert settings() == [["https://index.example/simple"], "/some/ca.pem"]
    assert settings(PIP_INDEX_URL="https://other.example/simple", SSL_CERT_FILE="/mine.pem") == [
        ["https://other.example/simple"],
        "/mine.pem",
    ]
