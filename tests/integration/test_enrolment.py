"""
Files of machines over HTTP: all or nothing, once, and only what may change does.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import event

from controlplane.bootstrap import open_password
from controlplane.nodes import service
from controlplane.nodes.files import Machine, Wiring, render_csv
from tests.conftest import Database
from tests.factories.nodes import SITE, TYPE, Fleet, make_fleet, new_provider
from tests.factories.serving import serving

CANARY = "s3cr3t-canary-51aa"
MACHINE = Machine("rack7-01", "bmc", SITE, "b7", "b7-l1", "r7", TYPE, unit=1, serial="0047A", tags=(("po", "1881"),))


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Fleet:
    """
    Three machines of a simulated provider, and a provider `bmc` and a fabric `net` without any.
    """
    made = make_fleet(database, tmp_path)
    for name, adapter in (("bmc", "redfish"), ("net", "frr-evpn")):
        new = new_provider(tmp_path, provider_id=f"prv_{name}", name=name, adapter=adapter, config={})
        made.do(lambda session, one=new: service.register_provider(session, one))
    return made


def send(fleet: Fleet, text: str, *, form: str = "text/csv", query: str = "", key: str = "") -> httpx.Response:
    """The answer to a file."""

    async def ask() -> httpx.Response:
        headers = {"Authorization": f"Bearer {key or fleet.tree.operator_key}", "Content-Type": form}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(fleet.app), base_url="http://testserver") as client:
            return await client.post(f"/v1/admin/enrolments{query}", content=text.encode(), headers=headers)

    return asyncio.run(ask())


def bare(number: int, **changes: object) -> Machine:
    """A machine with a controller and a port."""
    made = replace(
        MACHINE,
        name=f"rack7-{number:02}",
        unit=number,
        serial=f"0047{number}",
        controller_url=f"https://10.0.7.{number}",
        controller_username="root",
        controller_password=CANARY,
        address=f"10.1.7.{number}",
        ports=(Wiring("rail0", "net", "leaf7", f"swp{number}"),),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def state_of(fleet: Fleet) -> tuple[object, ...]:
    """How many rows there are of everything that a file can write."""
    tables = ("nodes", "node_ports", "events", "state_history", "audit_entries")
    return tuple(fleet.one(f"SELECT count(*) FROM {table}") for table in tables)


def test_a_rack_is_enrolled_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """New machines are nodes with all that the file says; the same file changes nothing; no answer, log or audit holds the password."""
    text = render_csv([bare(1), bare(2)])
    with caplog.at_level(logging.DEBUG):
        dry = send(fleet, text, query="?dry_run=true")
        before = state_of(fleet)
        first = send(fleet, text)
        again = send(fleet, text)
    assert (dry.status_code, dry.json()["created"]) == (200, 2)
    assert fleet.one("SELECT count(*) FROM nodes WHERE id = ANY(:ids)", ids=[one["node_id"] for one in dry.json()["new"]]) == 0
    assert before[:2] == (3, 0)
    assert (first.status_code, first.json()["created"]) == (202, 2)
    assert [(one["line"], one["name"]) for one in first.json()["new"]] == [(2, "rack7-01"), (3, "rack7-02")]
    assert {name: again.json()[name] for name in ("created", "changed", "unchanged")} == {
        "created": 0,
        "changed": 0,
        "unchanged": 2,
    }
    node = fleet.call()("GET", f"/v1/admin/nodes/{first.json()['new'][0]['node_id']}").json()
    assert (node["serial"], node["unit"], node["labels"], node["status"]["state"]) == ("00471", 1, {"po": "1881"}, "enrolled")
    sealed = fleet.one("SELECT sealed FROM nodes WHERE id = :id", id=node["id"])
    assert open_password(fleet.sealer, node["id"], sealed) == CANARY
    assert fleet.one("SELECT count(*) FROM node_ports WHERE provider_id = 'prv_net'") == 2
    audits = fleet.do(lambda session: session.connection().exec_driver_sql("SELECT body FROM audit_entries").scalars().all())
    said = f"{dry.text}{first.text}{again.text}{caplog.text}{node}{b''.join(bytes(one) for one in audits)!r}"
    assert CANARY not in said


@pytest.mark.parametrize(
    ("change", "column", "code"),
    [
        ({"provider": "nobody"}, "provider", "unknown_provider"),
        ({"site": "elsewhere"}, "site", "other_site"),
        ({"instance_type": "none"}, "instance_type", "unknown_instance_type"),
        ({"ports": (Wiring("rail0", "nonet", "leaf7", "swp9"),)}, "ports", "unknown_provider"),
        ({"serial": "00471"}, "serial", "doubled_serial"),
    ],
)
def test_one_bad_line_leaves_nothing_done(fleet: Fleet, change: dict[str, object], column: str, code: str) -> None:
    """A file with one bad line is refused with that line, and not even its good lines are written."""
    before = state_of(fleet)
    answer = send(fleet, render_csv([bare(1), bare(2, **change)]))
    assert (answer.status_code, answer.json()["code"], answer.json()["lines"]) == (422, "file_refused", 1)
    (error,) = answer.json()["errors"]
    assert (error["field"], error["code"]) == (f"body.line.3.{column}", code)
    assert error["message"].startswith("Line 3: ")
    assert state_of(fleet) == before


def test_all_bad_lines_are_told_with_those_of_the_form(fleet: Fleet) -> None:
    """What the file gets wrong and what does not exist here come in one answer, in the order of lines."""
    rows = render_csv([bare(1), bare(2, provider="nobody"), bare(3, instance_type="none")]).splitlines()
    answer = send(fleet, "\n".join([*rows, "a,b"]))
    assert [one["field"] for one in answer.json()["errors"]] == [
        "body.line.3.provider",
        "body.line.4.instance_type",
        "body.line.5",
    ]


def test_a_changed_file_changes_what_it_says(fleet: Fleet) -> None:
    """Every changed value is told with what it was; what the file leaves out stays; the password is changed and not shown."""
    node_id = send(fleet, render_csv([bare(1)])).json()["new"][0]["node_id"]
    version = fleet.one("SELECT version FROM nodes WHERE id = :id", id=node_id)
    wanted = bare(
        1,
        rack="r8",
        unit=None,
        controller_password="another",
        controller_username=None,
        ports=(Wiring("rail1", "net", "leaf8", "swp1"),),
        tags=(("owner", "hpc"),),
    )
    answer = send(fleet, render_csv([wanted])).json()
    assert (answer["created"], answer["changed"], answer["unchanged"]) == (0, 1, 0)
    (change,) = answer["changes"]
    assert {one["column"]: (one["before"], one["after"]) for one in change["differences"]} == {
        "rack": ("r7", "r8"),
        "controller_password": ("", ""),
        "ports": ("rail0=prv_net|leaf7|swp1", "rail1=prv_net|leaf8|swp1"),
        "tags": ("", "owner=hpc"),
    }
    row = fleet.do(
        lambda s: (
            s.connection()
            .exec_driver_sql("SELECT rack, unit, labels, access, sealed, version, serial FROM nodes WHERE id = %s", (node_id,))
            .one()
        )
    )
    assert (row.rack, row.unit, row.labels, row.serial) == ("r8", 1, {"po": "1881", "owner": "hpc"}, "00471")
    assert row.access == {"url": "https://10.0.7.1", "system": "", "username": "root"}
    assert (open_password(fleet.sealer, node_id, row.sealed), row.version) == ("another", version + 1)
    assert fleet.one("SELECT string_agg(name, ',') FROM node_ports WHERE node_id = :id", id=node_id) == "rail1"
    assert send(fleet, render_csv([wanted])).json()["unchanged"] == 1


def test_what_the_present_state_does_not_allow_is_told(fleet: Fleet) -> None:
    """A machine in use, another serial number, and what another node has: 409 with every line, and nothing is changed."""
    ids = [one["node_id"] for one in send(fleet, render_csv([bare(1), bare(2), bare(3), bare(4)])).json()["new"]]
    fleet.sql("UPDATE nodes SET state = 'inspecting' WHERE id = :id", id=ids[0])
    fleet.sql("UPDATE nodes SET allocation_id = 'alc_1' WHERE id = :id", id=ids[2])
    before = state_of(fleet)
    answer = send(
        fleet,
        render_csv(
            [
                bare(1, controller_url="https://10.0.7.99"),
                bare(2, serial="00479"),
                bare(3, leaf="b7-l9"),
                bare(5, serial="00474", controller_url="https://10.0.7.4", ports=(Wiring("a", "net", "leaf7", "swp4"),)),
            ]
        ),
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "enrolment_conflict")
    assert [(one["field"], one["code"]) for one in answer.json()["errors"]] == [
        ("body.line.2.controller_url", "node_in_use"),
        ("body.line.3.serial", "other_serial"),
        ("body.line.4.leaf", "node_held"),
        ("body.line.5.serial", "serial_taken"),
        ("body.line.5.controller_url", "controller_taken"),
        ("body.line.5.ports", "port_taken"),
    ]
    assert state_of(fleet) == before
    moved = send(fleet, render_csv([bare(3, rack="r9", unit=7)]))
    assert moved.json()["changed"] == 1, "a record of where it stands may be put right at any time"


def test_yaml_says_the_same(fleet: Fleet) -> None:
    """A YAML file with defaults enrolls, and the CSV of the same machines finds nothing to change."""
    text = f"""
defaults: {{provider: bmc, site: {SITE}, block: b7, leaf: b7-l1, rack: r7, instance_type: {TYPE}}}
machines:
- name: rack7-01
  unit: 1
  serial: 0047A
  tags: {{po: 1881}}
"""
    assert send(fleet, text, form="application/yaml; charset=utf-8").json()["created"] == 1
    assert send(fleet, render_csv([MACHINE])).json()["unchanged"] == 1


def test_a_key_repeats_the_answer_and_only_operators_enroll(fleet: Fleet) -> None:
    """Tenants are refused; a body that is neither form is refused before it is read."""
    assert send(fleet, render_csv([MACHINE]), key=fleet.tree.left.owner_key).status_code == 403
    assert send(fleet, "{}", form="application/json").status_code == 422
    assert fleet.one("SELECT count(*) FROM nodes") == 3


def test_the_edge_takes_files_there_and_nowhere_else(database: Database) -> None:
    """A file larger than any JSON body passes the edge at its place; other types, and files elsewhere, are refused."""
    with serving(database) as served, served.client("none") as client:
        large = "x" * 2_000_000
        taken = client.post("/v1/admin/enrolments", content=large, headers={"Content-Type": "text/csv"})
        other = client.post("/v1/admin/enrolments", content="{}", headers={"Content-Type": "application/json"})
        elsewhere = client.post("/v1/admin/nodes", content="a", headers={"Content-Type": "text/csv"})
        huge = client.post("/v1/admin/enrolments", content="x" * 9_000_000, headers={"Content-Type": "text/csv"})
    assert [one.status_code for one in (taken, other, elsewhere, huge)] == [401, 415, 415, 413]


def test_statements_do_not_grow_with_the_file(fleet: Fleet) -> None:
    """Ten times the machines take a few statements more, for larger batches, not ten times as many."""
    counted: list[int] = []

    def count(*_: object) -> None:
        counted[-1] += 1

    event.listen(fleet.engine, "before_cursor_execute", count)
    try:
        for begin, size in ((1, 10), (20, 200)):
            rows = [replace(bare(n), unit=None) for n in range(begin, begin + size)]
            counted.append(0)
            assert send(fleet, render_csv(rows)).json()["created"] == size
            counted.append(0)
            assert send(fleet, render_csv([replace(one, rack="r9") for one in rows])).json()["changed"] == size
    finally:
        event.remove(fleet.engine, "before_cursor_execute", count)
    assert counted[2] <= counted[0] + 3, counted
    assert counted[3] <= counted[1] + 1, counted
