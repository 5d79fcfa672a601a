"""
The doctor against real servers and real faults.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from controlplane import migrations
from controlplane.local.addresses import with_credentials
from controlplane.local.doctor import Verdict, examine, findings
from controlplane.local.postgres import throwaway_postgres

ROLE = "controlplane_app"
PASSWORD = "50%:@/ "
MASTER_KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture(scope="module")
def owner_url() -> Iterator[str]:
    """The owner's way into a migrated database."""
    with throwaway_postgres() as url:
        migrations.upgrade(url)
        migrations.ensure_app_role(url, ROLE, PASSWORD)
        yield url


@pytest.fixture
def healthy(owner_url: str, tmp_path: Path) -> dict[str, str]:
    """An environment that nothing is wrong with, but for the broker, which is optional."""
    return {
        "CONTROLPLANE_DATABASE_URL": with_credentials(owner_url, ROLE, PASSWORD),
        "CONTROLPLANE_MASTER_KEY": MASTER_KEY,
        "CONTROLPLANE_DATA_DIR": str(tmp_path),
    }


def failures(environment: dict[str, str]) -> set[str]:
    """What the doctor calls a failure."""
    found = list(findings(environment))
    assert all(each.remedy for each in found if each.verdict is not Verdict.OK), "a finding without advice"
    return {each.subject for each in found if each.verdict is Verdict.FAIL}


def test_healthy_deployment_has_no_failure(healthy: dict[str, str]) -> None:
    """A migrated database and the application's role pass; the report ends with exit code 0."""
    lines: list[str] = []
    assert failures(healthy) == set()
    assert examine(healthy, lines.append) == 0
    assert any("bypasses nothing" in line for line in lines)


def test_owner_as_application_role_is_a_failure(healthy: dict[str, str], owner_url: str) -> None:
    """A role that row-level security does not hold is found."""
    assert failures(healthy | {"CONTROLPLANE_DATABASE_URL": owner_url}) == {"role"}


def test_missing_wall_is_a_failure(healthy: dict[str, str], owner_url: str) -> None:
    """A table of tenants' data whose row-level security was switched off is named."""
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute("ALTER TABLE clusters NO FORCE ROW LEVEL SECURITY")
        try:
            assert failures(healthy) == {"walls"}
        finally:
            connection.execute("ALTER TABLE clusters FORCE ROW LEVEL SECURITY")


def test_schema_of_another_version_is_a_failure(healthy: dict[str, str], owner_url: str) -> None:
    """A database at another revision than the code's is told apart."""
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'elsewhere'")
        try:
            assert failures(healthy) == {"schema"}
        finally:
            connection.execute("UPDATE alembic_version SET version_num = %s", [migrations.head()])


def test_wrong_password_is_a_failure_without_the_password(healthy: dict[str, str], owner_url: str) -> None:
    """The database's refusal is shown; what was tried is not."""
    lines: list[str] = []
    wrong = healthy | {"CONTROLPLANE_DATABASE_URL": with_credentials(owner_url, ROLE, "not-this-one")}
    assert examine(wrong, lines.append) == 1
    assert "not-this-one" not in "\n".join(lines)


@pytest.mark.parametrize("key", ["", "short", base64.b64encode(bytes(16)).decode()])
def test_bad_master_key_is_a_failure(healthy: dict[str, str], key: str) -> None:
    """A key that cannot wrap data keys is found before anything is written with it."""
    assert failures(healthy | {"CONTROLPLANE_MASTER_KEY": key}) == {"master key"}


def test_readable_secrets_are_a_failure(healthy: dict[str, str], tmp_path: Path) -> None:
    """A file with secrets that others can read is named."""
    path = tmp_path / "secrets.json"
    path.write_text("{}")
    path.chmod(0o644)
    assert failures(healthy) == {"secrets"}


def test_before_the_first_start_the_machine_is_looked_at(tmp_path: Path) -> None:
    """With nothing running the doctor says whether it could run, and does not fail."""
    lines: list[str] = []
    assert examine({"DATA_DIR": str(tmp_path), "PORT": "0"}, lines.append) == 0
    assert any("nothing runs here" in line for line in lines)
