"""
Boots over the whole application: what a machine is handed, what it says, and what becomes of it.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from controlplane.boots import service
from controlplane.boots.states import Facts, NewBoot, NodeFile
from controlplane.kit.db import Wall, raise_wall
from controlplane.kit.errors import Invalid, NotFound
from controlplane.kit.logging import configure
from controlplane.kit.paging import PageAsk
from controlplane.web.limits import Buckets
from tests.conftest import Database, VirtualClock
from tests.factories.boots import BLUEPRINT, KEY, OCTETS, URL, Booting, ask, booting


@pytest.fixture
def ground(database: Database, tmp_path: Path) -> Iterator[Booting]:
    """Three machines and the application."""
    with booting(database, tmp_path) as one:
        yield one


@pytest.fixture
def clock(database: Database) -> Iterator[VirtualClock]:
    """The database's clock in the test's hand."""
    one = database.virtual_clock()
    yield one
    one.stop()


def test_a_machine_comes_up_and_is_ready_by_its_own_report(ground: Booting) -> None:
    """Seed, phone-home and report lead to ready, each step is seen, and the node is looked at after each."""
    machine = ground.begin()
    node = ground.fleet.put("deploying", due_at="2099-01-01T00:00:00Z")
    assert json.loads(machine.get("meta-data").body)["instance-id"] == machine.boot_id
    assert ground.view(machine.boot_id).state == "made"
    parts = list(message_from_bytes(machine.get("user-data").body).walk())[1:]
    assert [one.get_filename() for one in parts] == ["boot-agent", "user-data", "login", "settings"]
    assert "munge-canary" in parts[0].get_payload()
    assert machine.get("vendor-data").status == 200
    assert machine.get("network-config").status == 404
    assert ground.view(machine.boot_id).state == "fetched"
    assert machine.report(final=False, stages=[{"name": "init", "errors": ""}], scripts=[]).json() == {"state": "reporting"}
    assert machine.phone_home().status == 200
    assert machine.report().json() == {"state": "ready"}
    view = ground.view(machine.boot_id)
    assert (view.state, view.failure_code, view.ready_at is not None) == ("ready", "", True)
    assert [one.name for one in view.stages][:2] == ["init-local", "init"]
    assert view.host_keys == {"pub_key_ed25519": KEY}
    assert ground.fleet.one("SELECT wakes FROM nodes WHERE id = :id", id=node) == 3
    assert ground.fleet.one("SELECT due_at <= cp_clock() FROM nodes WHERE id = :id", id=node)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"stages": [{"name": "modules-final", "errors": "('scripts-user', RuntimeError())"}]}, "cloud_init_failed"),
        ({"stages": [{"name": "init", "errors": ""}]}, "cloud_init_incomplete"),
        ({"scripts": []}, "script_not_run"),
        ({"scripts": [{"name": "munge", "ok": False, "exit_code": 1, "line": 3, "output": "no such unit"}]}, "script_failed"),
        ({"scripts": [{"name": "files", "ok": False, "exit_code": None, "line": None, "output": "x"}]}, "script_failed"),
    ],
)
def test_a_machine_that_phones_home_is_not_ready_for_that(ground: Booting, changes: dict[str, Any], code: str) -> None:
    """Whatever went wrong in the middle decides, though the machine phoned home; the failure names it."""
    machine = ground.begin()
    assert machine.phone_home().status == 200
    assert machine.report(**changes).json() == {"state": "failed"}
    view = ground.view(machine.boot_id)
    assert (view.state, view.failure_code) == ("failed", code)
    assert view.ready_at is None
    shown = ground.operator(f"/v1/admin/nodes/{view.node_id}/boots").json()["items"][0]
    assert (shown["failure_code"], shown["failure"] != "") == (code, True)
    if "line" in str(changes):
        assert any("no such unit" in one["detail"] or not one["ok"] for one in shown["stages"])


def test_a_report_without_a_phone_home_is_not_enough(ground: Booting) -> None:
    """Everything well but no phone-home is a failure of its own."""
    machine = ground.begin()
    assert machine.report().json() == {"state": "failed"}
    assert ground.view(machine.boot_id).failure_code == "phone_home_missing"


def test_what_is_said_twice_changes_nothing(ground: Booting) -> None:
    """A second phone-home and a second report are welcome, do not wake the node, and a contradiction is refused."""
    machine = ground.begin()
    ground.fleet.put("deploying", due_at="2099-01-01T00:00:00Z")
    machine.phone_home()
    phoned = ground.view(machine.boot_id).phoned_at
    assert machine.phone_home(pub_key_ed25519=KEY.replace("OMqq", "EVIL")).status == 200
    assert (ground.view(machine.boot_id).phoned_at, ground.view(machine.boot_id).host_keys["pub_key_ed25519"]) == (phoned, KEY)
    machine.report()
    before = ground.view(machine.boot_id)
    wakes = ground.fleet.one("SELECT wakes FROM nodes WHERE id = :id", id=before.node_id)
    assert machine.report().json() == {"state": "ready"}
    refused = machine.report(scripts=[])
    assert (refused.status, refused.json()["code"]) == (409, "boot_settled")
    assert ground.view(machine.boot_id) == before
    assert ground.fleet.one("SELECT wakes FROM nodes WHERE id = :id", id=before.node_id) == wakes


def test_another_machines_token_moves_neither(ground: Booting) -> None:
    """A machine that speaks under another's token is refused by the ids it names, and both boots stand as before."""
    one, other = ground.begin(0), ground.begin(1)
    thief = replace(one, token=other.token)
    assert thief.phone_home().json()["code"] == "wrong_machine"
    assert thief.report().json()["code"] == "wrong_machine"
    for machine in (one, other):
        view = ground.view(machine.boot_id)
        assert (view.state, view.phoned_at, view.stages) == ("made", None, ())


def test_after_the_deadline_nothing_counts(ground: Booting, clock: VirtualClock) -> None:
    """A boot whose time is up has failed by its last sign of life; its token opens nothing, as if it had never been."""
    machines = [ground.begin(node) for node in range(3)]
    machines[1].get("user-data")
    machines[2].phone_home()
    clock.advance(900)
    words = [ground.view(one.boot_id).failure for one in machines]
    assert {ground.view(one.boot_id).failure_code for one in machines} == {"boot_overdue"}
    assert len(set(words)) == 3
    unknown = replace(machines[0], token=ground.links.token("bot_00000000000000000000000000")).get("meta-data")
    for late in (machines[2].phone_home(), machines[2].report(), machines[1].get("user-data"), machines[0].get("seed.iso")):
        assert (late.status, _told(late)) == (404, _told(unknown))
    assert ground.view(machines[2].boot_id).stages == ()


def test_a_new_boot_and_an_end_close_the_old_one(ground: Booting) -> None:
    """A node has one open boot; the token of an ended one answers like an unknown one, for a ready machine too."""
    old = ground.begin()
    new = ground.begin()
    assert old.get("meta-data").status == 404
    new.phone_home()
    new.report()
    assert new.get("files").status == 200
    ground.do(lambda session: service.end(session, [new.boot_id, new.boot_id]))
    assert [new.get(name).status for name in ("files", "user-data")] == [404, 404]
    assert new.report().status == 404
    shown = ground.operator(f"/v1/admin/nodes/{ground.fleet.node_ids[0]}/boots").json()["items"]
    assert [one["state"] for one in shown] == ["ended", "ended"]


def test_many_are_begun_in_two_statements(ground: Booting) -> None:
    """A batch of boots costs as many statements as one."""
    blueprint_id = ground.blueprint(tenant_id=None)
    boots = [
        NewBoot(one, "wipe", Facts(f"n{number}"), 60, blueprint_id=blueprint_id) for number, one in enumerate(ground.fleet.node_ids)
    ]
    seen: list[str] = []
    event.listen(ground.fleet.engine, "after_cursor_execute", lambda *given: seen.append(given[2]))
    ids = ground.do(lambda session: service.begin_many(session, boots))
    assert len([one for one in seen if "boots" in one]) == 2
    assert set(ids) == set(ground.fleet.node_ids)
    found = ground.do(lambda session: service.views(session, [*ids.values(), "bot_unknown"]))
    assert {one.purpose for one in found.values()} == {"wipe"}
    with pytest.raises(Invalid):
        ground.do(lambda session: service.begin_many(session, [boots[0], boots[0]]))


def test_no_machine_boots_by_another_tenants_blueprint(ground: Booting) -> None:
    """A blueprint of another tenant, of a tenant for a boot of our own, or of nobody is refused, and the node's boot goes on."""
    mine, theirs = ground.begin(), ground.blueprint(tenant_id=ground.fleet.tree.right.tenant_id)
    for changes in ({"blueprint_id": theirs}, {"tenant_id": None}, {"blueprint_id": "bpr_none"}):
        with pytest.raises(Invalid):
            ground.begin(0, **changes)
    assert mine.get("user-data").status == 200
    assert ground.view(ground.begin(0, blueprint_id=ground.blueprint(tenant_id=None)).boot_id).state == "made"


def test_checks_of_a_wipe_are_kept(ground: Booting) -> None:
    """What a wipe found is in the view, whatever the outcome."""
    machine = ground.begin(purpose="wipe", tenant_id=None, blueprint_id=ground.blueprint(tenant_id=None))
    machine.phone_home()
    found = [{"name": "nvme0", "result": "passed", "detail": "erased"}, {"name": "bmc", "result": "not_measured", "detail": ""}]
    assert machine.report(checks=found).json() == {"state": "ready"}
    assert [dict(one) for one in ground.view(machine.boot_id).checks] == found
    assert machine.report(checks=[{"name": "x", "result": "fine", "detail": ""}]).status == 422


def test_files_are_rewritten_while_machines_run(ground: Booting) -> None:
    """A version rises with a change only; a machine is told what changed by its ETag, and tells what it has."""
    blueprint_id = ground.blueprint()
    machine = ground.begin(blueprint_id=blueprint_id)
    machine.phone_home()
    machine.report()
    first = machine.get("files")
    assert [one["path"] for one in first.json()["files"]] == ["/etc/demo.conf"]
    assert machine.get("files", If_None_Match=first.headers["etag"]).status == 304
    same = ground.do(lambda session: service.rewrite_files(session, blueprint_id, BLUEPRINT.files))
    changed = ground.do(lambda session: service.rewrite_files(session, blueprint_id, [NodeFile("/etc/demo.conf", "a = 2\n")]))
    assert (same, changed) == (1, 2)
    second = machine.get("files", If_None_Match=first.headers["etag"])
    assert (second.status, second.json()["version"], second.json()["files"][0]["content"]) == (200, 2, "a = 2\n")
    told = {"version": 2, "failed": [{"path": "/etc/demo.conf", "detail": "read-only"}]}
    assert machine.post("applied", json.dumps(told).encode(), "application/json").status == 200
    view = ground.view(machine.boot_id)
    assert (view.version, view.applied_version, view.apply_failure) == (2, 2, "/etc/demo.conf: read-only")
    with pytest.raises(NotFound):
        ground.do(lambda session: service.rewrite_files(session, "bpr_none", []))


def test_the_console_is_kept_to_a_limit_and_tokens_are_not(ground: Booting) -> None:
    """Output is appended once however often it is sent, the oldest goes first, and a token in it is hidden."""
    machine = ground.begin()
    assert machine.post("console", b"one\n", OCTETS).json() == {"next": 4}
    assert machine.post("console?offset=4", b"two\n", OCTETS).json() == {"next": 8}
    assert machine.post("console?offset=4", b"two\nthree\n", OCTETS).json() == {"next": 14}
    shown = ground.operator(f"/v1/admin/boots/{machine.boot_id}/console?after=4").json()
    assert (shown["offset"], shown["text"], shown["next_offset"]) == (4, "two\nthree\n", 14)
    machine.post("console", f"GET {URL}/v1/boot/{machine.token}/files\n".encode(), OCTETS)
    text_ = ground.operator(f"/v1/admin/boots/{machine.boot_id}/console").json()["text"]
    assert machine.token not in text_
    assert "[hidden]" in text_
    for _ in range(18):
        ground.do(lambda session: service.append_console(session, machine.boot_id, b"x" * 65_536))
    kept = ground.fleet.one("SELECT sum(octet_length(data)) FROM boot_console WHERE boot_id = :id", id=machine.boot_id)
    assert kept <= service.MOST_CONSOLE_BYTES
    later = ground.operator(f"/v1/admin/boots/{machine.boot_id}/console").json()
    assert later["offset"] > 0
    assert later["size"] > service.MOST_CONSOLE_BYTES
    assert ground.operator("/v1/admin/boots/bot_00000000000000000000000000/console").status == 404
    assert ground.operator("/v1/admin/nodes/nod_00000000000000000000000000/boots").status == 404


def test_the_image_is_read_in_ranges(ground: Booting) -> None:
    """Ranges of the image put together are the image; what lies beyond it is refused."""
    machine = ground.begin(facts=Facts("n1", network={"version": 2, "ethernets": {}}))
    whole = machine.get("seed.iso")
    assert (whole.status, whole.headers["accept-ranges"]) == (200, "bytes")
    size = len(whole.body)
    pieces = [machine.get("seed.iso", Range=f"bytes={at}-{at + 40_000 - 1}") for at in range(0, size, 40_000)]
    assert {one.status for one in pieces} == {206}
    assert b"".join(one.body for one in pieces) == whole.body
    assert machine.get("seed.iso", Range="bytes=-10").body == whole.body[-10:]
    assert machine.get("seed.iso", Range=f"bytes={size}-").status == 416
    assert machine.get("seed.iso", Range="bytes=1-2,5-6").status == 200
    assert ground.view(machine.boot_id).state == "fetched"


def test_what_is_malformed_is_refused(ground: Booting) -> None:
    """Wrong types, forms, sizes and values are a 4xx, and nothing of them is kept."""
    machine = ground.begin()
    assert machine.post("report", b"{}", "application/json").status == 422
    assert machine.post("report", b"{}", OCTETS).status == 415
    assert machine.post("report", b"x", "text/plain").status == 415
    assert machine.post("phone-home", b"\xff\xfe", "application/x-www-form-urlencoded").status == 422
    assert machine.post("phone-home", b"", "application/x-www-form-urlencoded").status == 409
    assert machine.post("console", b"x" * 600_000, OCTETS).status == 413
    assert machine.post("console?offset=x", b"x", OCTETS).status == 422
    assert machine.report(stages=[{"name": "init", "errors": "\x1b[31m"}]).status == 422
    assert machine.report(scripts=[{"name": "a b", "ok": True, "exit_code": 0, "line": None, "output": ""}]).status == 422
    assert machine.phone_home(pub_key_ed25519="x\0y").status == 200
    view = ground.view(machine.boot_id)
    assert (view.state, view.stages, dict(view.host_keys)) == ("made", (), {})


def test_no_token_and_no_secret_is_logged_or_audited(ground: Booting) -> None:
    """Neither log lines nor audit entries have a token or what it opens, failures included."""
    stream = io.StringIO()
    configure("DEBUG", stream)
    machine = ground.begin()
    for name in ("user-data", "meta-data", "nothing", "files"):
        machine.get(name)
    machine.post("report", b"{", "application/json")
    machine.phone_home()
    machine.report()
    ground.fleet.sql("UPDATE blueprints SET sealed = 'broken'")
    assert machine.get("user-data").status == 500
    logging.getLogger("x").error("asked for /v1/boot/%s/files", machine.token)
    lines = stream.getvalue()
    assert "/v1/boot/{token}/user-data" in lines
    assert "failed" in lines
    secret = machine.token.partition(".")[2]
    assert secret not in lines
    assert "munge-canary" not in lines
    assert ground.fleet.one("SELECT count(*) FROM audit_entries WHERE position(convert_to('bot_', 'UTF8') in body) > 0") == 0


def test_one_machine_cannot_use_up_everybodys_time(ground: Booting) -> None:
    """A machine that asks without pause is told to wait, and others are served meanwhile."""
    noisy, quiet = ground.begin(0), ground.begin(1)
    ground.app.state.boots = replace(ground.app.state.boots, budget=Buckets(0.001, 20, clock=lambda: 0.0))

    async def flood() -> list[int]:
        path = f"/v1/boot/{noisy.token}/files"
        return [(await ask(ground.app, "GET", path)).status for _ in range(25)]

    assert asyncio.run(flood()) == [200] * 20 + [429] * 5
    assert quiet.get("files").status == 200


def test_the_walls_hold_for_boots(ground: Booting, database: Database) -> None:
    """A tenant's transaction sees its own boots, blueprints and consoles and no others; without a wall nothing is seen."""
    machine = ground.begin()
    ground.begin(1, tenant_id=None, blueprint_id=ground.blueprint(tenant_id=None))
    machine.post("console", b"secret\n", OCTETS)
    left, right = ground.fleet.tree.left, ground.fleet.tree.right
    counts = {}
    for name, wall in {"own": Wall(tenant_id=left.tenant_id), "other": Wall(tenant_id=right.tenant_id), "none": Wall()}.items():
        with Session(database.engine) as session:
            raise_wall(session, wall)
            counts[name] = [session.execute(text(f"SELECT count(*) FROM {one}")).scalar() for one in ("boots", "boot_console")]
    assert counts == {"own": [1, 1], "other": [0, 0], "none": [0, 0]}
    page = ground.do(lambda session: service.list_boots(session, ground.fleet.node_ids[0], PageAsk(1)))
    assert [one.id for one in page.items] == [machine.boot_id]


def _told(answer: Any) -> Any:
    return {name: value for name, value in answer.json().items() if name != "request_id"}
