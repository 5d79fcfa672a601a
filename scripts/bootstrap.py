#!/usr/bin/env python3
"""
After this script has run, .venv holds exactly the locked packages and this project.

It needs Python 3.11 and its standard library only: no pip, no venv module. A pinned `uv` wheel is fetched from the
package index that the machine's pip configuration names, checked against the digest written here, and does the rest.
Nothing is done, and no network is used, when the lock, pyproject.toml and this script are as they were.

    python3 scripts/bootstrap.py runtime    # what `make up` needs
    python3 scripts/bootstrap.py dev        # what `make check` and `make test` need: a superset
"""

from __future__ import annotations

import argparse
import base64
import configparser
import hashlib
import html.parser
import json
import os
import platform
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
STAMP = VENV / "installed.json"
LOCKS = {"runtime": ROOT / "requirements.lock", "dev": ROOT / "requirements-dev.lock"}
DEFAULT_INDEX = "https://pypi.org/simple"
TIMEOUT_S = 60
ATTEMPTS = 3

UV_VERSION = "0.13.9"
# machine -> (wheel, SHA-256). Both come from the release's own file list; change them together with UV_VERSION.
UV_WHEELS = {
    "x86_64": (
        f"uv-{UV_VERSION}-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
    ),
    "aarch64": (
        f"uv-{UV_VERSION}-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
    ),
}


def main() -> None:
    """
    The virtual environment is up to date, or the script has ended with a message that says what to do.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("level", nargs="?", choices=sorted(LOCKS), default="runtime")
    parser.add_argument("--uv", action="store_true", help="only fetch uv and print its path")
    arguments = parser.parse_args()
    if arguments.uv:
        print(ensure_uv(pip_settings()))
        return
    wanted = fingerprints()
    installed = read_stamp()
    level = arguments.level
    # A development environment also serves `make up`: going back and forth between the two would reinstall each time.
    if any(installed.get(each) == wanted[each] for each in dict.fromkeys((level, "dev"))):
        return
    check_machine()
    if installed.get("dev") and level == "runtime":
        level = "dev"
    started = time.monotonic()
    print(f"Installing the {level} packages into .venv: once, and as fast as the network is", flush=True)
    settings = pip_settings()
    install(ensure_uv(settings), level, settings)
    STAMP.write_text(json.dumps({level: wanted[level]}), encoding="utf-8")
    print(f"Installed in {time.monotonic() - started:.1f} s", flush=True)


def fingerprints() -> dict[str, str]:
    """
    Answers, per level, a digest of all that decides what is installed.
    """
    digests = {}
    for level, lock in LOCKS.items():
        digest = hashlib.sha256(f"{sys.version_info[:2]} {sys.base_prefix} {ROOT}".encode())
        for path in (lock, ROOT / "pyproject.toml", Path(__file__)):
            if not path.is_file():
                raise Stop(f"{path.name} is missing from {ROOT}.", "Take a complete checkout of the repository.")
            digest.update(path.read_bytes())
        digests[level] = digest.hexdigest()
    return digests


def read_stamp() -> dict[str, str]:
    """
    Answers what an earlier run installed; empty when nothing usable is there.
    """
    if not (VENV / "bin" / "python").exists():
        return {}
    try:
        content = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def check_machine() -> None:
    """
    Returns only on a machine that the locked packages and servers are made for.
    """
    if sys.version_info < (3, 11):  # noqa: UP036 -- this line is what tells an older one so
        raise Stop(
            f"Python 3.11 or newer is needed; this is {platform.python_version()} ({sys.executable}).",
            "Install it (Debian 12: apt-get install python3) or name one: make PYTHON=/path/to/python3.11 up",
        )
    if sys.platform != "linux" or platform.machine() not in UV_WHEELS:
        raise Stop(
            f"The locked packages are for Linux on {' or '.join(UV_WHEELS)}; this is {sys.platform} on {platform.machine()}.",
            "Use such a machine, or the containers: docker compose up",
        )


class Stop(SystemExit):
    """
    Ends the script with what is wrong and what to do next.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"\nCannot go on: {problem}\n{remedy}")


class PipSettings:
    """
    What the machine's pip configuration says about where packages come from.
    """

    def __init__(self, indexes: list[str], certificates: str | None) -> None:
        self.indexes = indexes  # in the order to try them
        self.certificates = certificates  # path of a CA bundle, when one is named


def pip_settings() -> PipSettings:
    """
    Answers index addresses and CA bundle from environment variables first, pip's configuration files second.
    """
    found: dict[str, str] = {}
    for path in pip_configuration_files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise Stop(
                f"pip cannot read its configuration {path}: {error}", "Repair it, or name another in PIP_CONFIG_FILE."
            ) from error
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update(parser.items(section))
    index = first_of("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL") or found.get("index-url") or DEFAULT_INDEX
    extra = first_of("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL") or found.get("extra-index-url") or ""
    web = [each for each in extra.split() if each.startswith(("http://", "https://"))]
    certificates = first_of("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") or found.get("cert")
    return PipSettings([index.strip(), *web], certificates)


def pip_configuration_files() -> list[Path]:
    """
    Answers pip's configuration files, the strongest last, as pip itself orders them.
    """
    named = os.environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path.home()
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", config_home / "pip/pip.conf"]
    return [*files, Path(named)] if named else files


def first_of(*names: str) -> str | None:
    """
    Answers the first of these environment variables that is set to something.
    """
    return next((value for value in map(os.environ.get, names) if value), None)


def ensure_uv(settings: PipSettings) -> Path:
    """
    Answers the path of the pinned uv, fetched and checked if it was not there.
    """
    check_machine()
    uv = TOOLS / f"uv-{UV_VERSION}" / "uv"
    if uv.exists():
        return uv
    wheel, sha256 = UV_WHEELS[platform.machine()]
    content = download(wheel, sha256, settings)
    uv.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=uv.parent) as scratch:
        archive = Path(scratch) / wheel
        archive.write_bytes(content)
        with zipfile.ZipFile(archive) as opened:
            binary = opened.extract(f"uv-{UV_VERSION}.data/scripts/uv", scratch)
        Path(binary).chmod(0o755)
        Path(binary).replace(uv)
    return uv


def download(wheel: str, sha256: str, settings: PipSettings) -> bytes:
    """
    Answers the wheel's bytes from the first index that has it, with the right digest.
    """
    problems = []
    for index in settings.indexes:
        page = f"{index.rstrip('/')}/uv/"
        try:
            address = find_file(fetch(page, settings), page, wheel)
            if address is None:
                problems.append(f"{shown(page)} does not list {wheel}")
                continue
            content = fetch(address, settings)
        except (OSError, ValueError) as error:
            problems.append(f"{shown(page)}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == sha256:
            return content
        problems.append(f"{shown(address)} has another SHA-256 than the one pinned in scripts/bootstrap.py")
    raise Stop(
        "uv, the installer, could not be fetched:\n  " + "\n  ".join(problems),
        "Check that the host answers from here. Another index: set PIP_INDEX_URL (or index-url in pip.conf). "
        "A proxy: set HTTPS_PROXY. A private certificate authority: set SSL_CERT_FILE to its bundle.",
    )


def fetch(address: str, settings: PipSettings) -> bytes:
    """
    Answers what stands at an address; a connection that fails is tried again, an answer that refuses is not.
    """
    parts = urllib.parse.urlsplit(address)
    headers = {"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5, */*;q=0.1", "User-Agent": "controlplane"}
    if parts.username:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
        address = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 -- file: indexes are legitimate
    context = ssl.create_default_context(cafile=settings.certificates)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310 -- as above
                return bytes(answer.read())
        except urllib.error.HTTPError:
            raise
        except OSError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(attempt)
    raise AssertionError


def find_file(page: bytes, address: str, name: str) -> str | None:
    """
    Answers a file's address from an index page, in the JSON or the HTML form of the simple repository interface.
    """
    text = page.decode("utf-8")
    if text.lstrip().startswith("{"):
        links = {each["filename"]: each["url"] for each in json.loads(text)["files"]}
    else:
        reader = LinkReader()
        reader.feed(text)
        links = reader.links
    return urllib.parse.urljoin(address, links[name]) if name in links else None


class LinkReader(html.parser.HTMLParser):
    """
    Collects the links of an index page by file name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """
        Keeps the address of a link.
        """
        target = dict(attrs).get("href")
        if tag == "a" and target:
            self.links[urllib.parse.unquote(urllib.parse.urlsplit(target).path.rpartition("/")[2])] = target


def install(uv: Path, level: str, settings: PipSettings) -> None:
    """
    Leaves in .venv exactly the lock's packages, and this project as an editable install.
    """
    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}},
        "UV_DEFAULT_INDEX": settings.indexes[0],
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if len(settings.indexes) > 1:
        environment["UV_INDEX"] = " ".join(settings.indexes[1:])
    if settings.certificates:
        environment["SSL_CERT_FILE"] = settings.certificates
    STAMP.unlink(missing_ok=True)
    python = VENV / "bin" / "python"
    if not runs(python):
        shutil.rmtree(VENV, ignore_errors=True)
        run([uv, "venv", "--quiet", "--python", sys.executable, VENV], environment)
    lock = LOCKS[level]
    run([uv, "pip", "sync", "--quiet", "--require-hashes", "--python", python, lock], environment)
    run(
        [uv, "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--python", python, "--editable", ROOT],
        environment,
    )


def runs(python: Path) -> bool:
    """
    Tells whether an interpreter is there, starts and has this one's version.
    """
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", probe], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == wanted


def run(command: list[str | Path], environment: dict[str, str]) -> None:
    """
    Returns when the command has succeeded; otherwise the script ends.
    """
    done = subprocess.run(command, env=environment, check=False, cwd=ROOT)
    if done.returncode:
        raise Stop(
            f"`{' '.join(Path(command[0]).name if each == command[0] else str(each) for each in command)}` failed.",
            f"The message above says why. Packages come from {shown(environment['UV_DEFAULT_INDEX'])} "
            "(PIP_INDEX_URL changes it; HTTPS_PROXY and SSL_CERT_FILE are honoured).",
        )


def shown(address: str) -> str:
    """
    Answers an address without the password that it may carry.
    """
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


if __name__ == "__main__":
    main()
