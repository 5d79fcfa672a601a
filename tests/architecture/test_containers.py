"""
The container files say what the code says: same commands, same settings, no secrets, nothing that runs as root.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.cli import app
from controlplane.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: each for name, each in SERVICES.items() if "build" in each}
COMMANDS = {each.name or getattr(each.callback, "__name__", "") for each in app.registered_commands}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service_is_confined(name: str) -> None:
    """Every container has a read-only root, no capabilities, no way to gain any, and limits."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "cpus", "pids_limit"} <= service.keys()


@pytest.mark.parametrize("name", sorted(OURS))
def test_service_runs_a_command_that_exists(name: str) -> None:
    """The image's entry point is the product's command, and each service uses one of its words."""
    words = OURS[name].get("command") or _json_instruction("CMD")
    assert words[0] in COMMANDS


@pytest.mark.parametrize("name", sorted(OURS))
def test_settings_are_ones_that_are_read(name: str) -> None:
    """A misspelt variable would be ignored in silence."""
    known = {f"CONTROLPLANE_{field.upper()}" for field in Settings.model_fields}
    assert set(OURS[name]["environment"]) <= known


def test_only_migrate_knows_the_owner() -> None:
    """API and worker can do nothing that row-level security forbids, whatever is read out of them."""
    knowing = {name for name, each in OURS.items() if "OWNER_PASSWORD" in str(each)}
    assert knowing == {"migrate"}


def test_every_secret_comes_from_outside_and_is_demanded() -> None:
    """No password stands in the file, and a missing one stops the start instead of being empty."""
    names = set(re.findall(r"\$\{(\w+)", COMPOSE_TEXT))
    assert names == {"OWNER_PASSWORD", "APP_PASSWORD", "BROKER_PASSWORD", "MASTER_KEY", "PORT"}
    for name in names - {"PORT"}:
        assert set(re.findall(rf"\$\{{{name}([^}}]*)", COMPOSE_TEXT)) == {":?"}
    for service in SERVICES.values():
        for key, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|KEY|AUTH|URL", key):
                assert "${" in value, f"{key} is written out"


def test_only_the_api_is_reachable_and_only_from_this_host() -> None:
    """Database and broker have no port on the host and no way out; the API is on loopback until someone decides otherwise."""
    assert {name for name, each in SERVICES.items() if "ports" in each} == {"api"}
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["api"]["ports"])
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert SERVICES["postgres"]["networks"] == SERVICES["valkey"]["networks"] == ["inside"]


def test_image_ends_as_an_unprivileged_user() -> None:
    """The last USER is a number, so that a cluster can check that it is not root."""
    users = re.findall(r"^USER (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_packages_in_the_image_are_checked_against_the_lock() -> None:
    """Nothing is installed that the lock does not pin by digest."""
    installs = [line for line in DOCKERFILE.replace("\\\n", " ").split("&&") if "pip install" in line]
    assert installs
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)


def test_copied_files_exist_and_reach_the_build() -> None:
    """What the image is built from is in the checkout and not left out by .dockerignore."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    copied = {
        source for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, flags=re.MULTILINE) for source in line.split()[:-1]
    }
    assert {each.removeprefix("./") for each in copied} == let_through
    for each in let_through:
        assert (ROOT / each).exists(), each


def _json_instruction(name: str) -> list[str]:
    found = re.findall(rf"^{name} (\[.*\])$", DOCKERFILE, flags=re.MULTILINE)
    words = yaml.safe_load(found[-1])
    assert isinstance(words, list)
    return words
