"""
Files of expected machines: what is written is what is read, and every wrong line is named.
"""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.nodes.files import COLUMNS, MOST_MACHINES, Machine, Wiring, read_file, render_csv

HEAD = "name,provider,site,block,leaf,rack,instance_type"
GOOD = "n1,bmc,ams1,b1,l1,r1,hgx-h100-8"
WORDS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=20)
PARTS = WORDS.filter(lambda one: not set(one) & set(";|="))
KEYS = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,10}[a-zA-Z0-9])?", fullmatch=True)
HOSTS = st.from_regex(r"https?://[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?(:[0-9]{2,4})?", fullmatch=True)
SECRETS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=30)


@st.composite
def machines(draw: st.DrawFn) -> list[Machine]:
    """Machines that differ in everything that only one of them may have."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        has_controller = draw(st.booleans())
        names = draw(st.lists(PARTS, max_size=3, unique=True))
        controller = {
            "controller_url": f"{draw(HOSTS)}{number}",
            "controller_system": draw(st.none() | WORDS),
            "controller_username": draw(st.none() | WORDS),
            "controller_password": draw(st.none() | SECRETS),
        }
        made.append(
            Machine(
                name=f"{draw(WORDS)}{number}",
                **{name: draw(WORDS) for name in ("provider", "site", "block", "leaf", "rack", "instance_type")},
                unit=draw(st.none() | st.just(number + 1)),
                serial=draw(st.none() | st.just(f"S{number}")),
                gpus=draw(st.none() | st.integers(1, 1024)),
                nvlink_domain=draw(st.none() | WORDS),
                address=draw(st.none() | st.just(f"10.0.0.{number}")),
                ports=tuple(Wiring(name, draw(PARTS), draw(PARTS), f"p{number}{place}") for place, name in enumerate(names)),
                tags=tuple(sorted(draw(st.dictionaries(KEYS, PARTS, max_size=3)).items())),
                **(controller if has_controller else {}),
            )
        )
    return made


def as_yaml(some: list[Machine]) -> str:
    """The machines as an operator could write them in YAML; JSON is YAML too."""
    rows = []
    for one in some:
        row = {name: value for name, value in asdict(one).items() if value is not None and value != ()}
        if one.tags:
            row["tags"] = dict(one.tags)
        rows.append(row)
    return "machines:\n" + "".join(f"- {json.dumps(row, ensure_ascii=False)}\n" for row in rows)


@settings(max_examples=40, deadline=None)
@given(machines())
def test_what_is_written_is_read(some: list[Machine]) -> None:
    """Rendered machines read as themselves, in both forms."""
    for text, form in ((render_csv(some), "csv"), (as_yaml(some), "yaml")):
        reading = read_file(text.encode(), form)  # type: ignore[arg-type]
        assert reading.refusals == ()
        assert [one.machine for one in reading.entries] == some


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode), st.sampled_from(["csv", "yaml"]))
def test_nothing_that_is_sent_breaks_the_reader(data: bytes, form: str) -> None:
    """Any bytes are a good file or have a named line; nothing is raised."""
    reading = read_file(data, form)  # type: ignore[arg-type]
    assert reading.entries or reading.refusals
    assert all(one.line >= 1 and one.code and one.message for one in reading.refusals)


@pytest.mark.parametrize(
    ("change", "column", "code"),
    [
        ({"unit": "0"}, "unit", "invalid_number"),
        ({"unit": "1e3"}, "unit", "invalid_number"),
        ({"gpus": "8.0"}, "gpus", "invalid_number"),
        ({"controller_url": "ftp://x"}, "controller_url", "invalid_url"),
        ({"controller_url": "https://x/redfish"}, "controller_url", "invalid_url"),
        ({"controller_username": "root"}, "controller_username", "controller_missing"),
        ({"ports": "p1=f|s"}, "ports", "invalid_ports"),
        ({"ports": "p1=f|s|1;p1=f|s|2"}, "ports", "doubled_port"),
        ({"tags": "a"}, "tags", "invalid_tags"),
        ({"tags": "a b=c"}, "tags", "invalid_tags"),
        ({"name": ""}, "name", "missing"),
        ({"rack": "x" * 121}, "rack", "too_long"),
        ({"serial": "a\tb"}, "serial", "invalid_text"),
    ],
)
def test_a_bad_value_names_its_line(change: dict[str, str], column: str, code: str) -> None:
    """Line, column and code of the one value that cannot be used, in both forms."""
    row = dict(zip(HEAD.split(","), GOOD.split(","), strict=True)) | {"name": "n2"} | change
    csv = f"{HEAD},{','.join(set(row) - set(HEAD.split(',')))}".rstrip(",")
    names = csv.split(",")
    good = dict(zip(HEAD.split(","), GOOD.split(","), strict=True))
    text = "\n".join([csv, ",".join(good.get(name, "") for name in names), ",".join(row[name] for name in names)])
    found = [(one.line, one.column, one.code) for one in read_file(text.encode(), "csv").refusals]
    assert found == [(3, column, code)]
    yaml = f"machines:\n- {json.dumps(good)}\n- {json.dumps(row)}\n"
    assert [(one.line, one.column, one.code) for one in read_file(yaml.encode(), "yaml").refusals] == [(3, column, code)]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    """One answer names every line: unknown columns, values, and whatever only one machine may have."""
    head = f"{HEAD},serial,unit,controller_url,controller_system,ports,colour"
    rows = [
        f"{GOOD},S1,7,https://10.0.0.1,,p=f|s|1,red",
        f"{GOOD},s1,7,https://10.0.0.1/,,q=f|s|1,red",
        "n2,bmc,ams1,b1,l1,r1",
        f"{GOOD.replace('n1', 'n3')},,x,,,,red",
    ]
    found = {(one.line, one.column, one.code) for one in read_file("\n".join([head, *rows]).encode(), "csv").refusals}
    assert found == {
        (1, "colour", "unknown_column"),
        (3, "name", "doubled_name"),
        (3, "serial", "doubled_serial"),
        (3, "unit", "doubled_unit"),
        (3, "controller_url", "doubled_controller"),
        (3, "ports", "doubled_port"),
        (4, "", "wrong_number_of_values"),
        (5, "unit", "invalid_number"),
    }


def test_yaml_is_text() -> None:
    """Names are not taken for booleans or numbers, null is nothing, defaults hold where a machine says nothing."""
    text = """
defaults: {provider: no, site: 1e3, block: 0012, leaf: l1, rack: 2026-01-01, instance_type: on}
machines:
- {name: yes, serial: null}
- {name: "null", rack: r2}
"""
    first, second = (one.machine for one in read_file(text.encode(), "yaml").entries)
    assert (first.name, first.provider, first.site, first.block, first.rack) == ("yes", "no", "1e3", "0012", "2026-01-01")
    assert (first.serial, second.name, second.rack) == (None, "null", "r2")


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("machines:\n- &a {name: x}\n- *a", 2, "anchor"),
        ("machines:\n- !!python/object:os.system x", 2, "tag"),
        ("[" * 100_000, 1, "invalid_yaml"),
        ("machines: [[[[[[[x]]]]]]]", 1, "too_deep"),
        ("machines: []\n---\nmachines: []", 2, "several_documents"),
        ("machines:\n- {name: a, name: b}", 2, "doubled_column"),
        ("machines: 7", 1, "missing_column"),
        ("- a", 1, "wrong_kind"),
        ("machines:\n- x", 2, "wrong_kind"),
        ("machines:\n- {name: [a]}", 2, "wrong_kind"),
        ("machines: [}", 1, "invalid_yaml"),
        ("", 1, "wrong_kind"),
    ],
)
def test_what_yaml_can_do_beyond_lists_is_refused(text: str, line: int, code: str) -> None:
    """Anchors, tags, depth, several documents and doubled keys are refused at their line."""
    refusals = read_file(text.encode(), "yaml").refusals
    assert (line, code) in {(one.line, one.code) for one in refusals}, refusals


def test_csv_is_read_strictly() -> None:
    """A missing or doubled column, an open quote, other encodings and empty files are refused; blank lines are not."""
    assert [one.code for one in read_file(b"name,site\na,b\n", "csv").refusals] == ["missing_column"] * 5
    assert [one.code for one in read_file(f"{HEAD},name\n".encode(), "csv").refusals] == ["doubled_column"]
    assert [one.code for one in read_file(f'{HEAD}\n"n1'.encode(), "csv").refusals] == ["invalid_csv"]
    (wrong,) = read_file(f"{HEAD}\n{GOOD}\n".encode() + b"\xff", "csv").refusals
    assert (wrong.line, wrong.code) == (3, "invalid_utf8")
    assert [one.code for one in read_file(b"", "csv").refusals] == ["no_machines"]
    (entry,) = read_file(f"\ufeff{HEAD}\r\n\r\n{GOOD}\r\n".encode(), "csv").entries
    assert (entry.line, entry.machine.name) == (3, "n1")


def test_a_value_over_several_lines_keeps_the_count() -> None:
    """Lines are counted as an editor counts them."""
    rows = f'{HEAD},controller_url,controller_password\n{GOOD},https://x,"a\nb"\n,,,,,,,,\n'
    assert {one.line for one in read_file(rows.encode(), "csv").refusals} == set()
    wrong = read_file((rows + ",bmc,ams1,b1,l1,r1,x,,").encode(), "csv").refusals
    assert [(one.line, one.column) for one in wrong] == [(5, "name")]


def test_secrets_stay_out_of_words() -> None:
    """A refused password is not repeated, nor is any shown by a machine."""
    canary = "canary-31c7" * 400
    text = f"{HEAD},controller_url,controller_password\n{GOOD},https://x,{canary}\n"
    reading = read_file(text.encode(), "csv")
    assert [one.code for one in reading.refusals] == ["invalid_secret"]
    assert "canary" not in repr(reading)
    text = f"{HEAD},controller_url,controller_password\n{GOOD},https://x,canary-31c7\n"
    assert "canary" not in repr(read_file(text.encode(), "csv"))


def test_a_file_has_an_end() -> None:
    """More machines than a file may hold are refused."""
    rows = "\n".join(f"n{number},bmc,ams1,b1,l1,r1,x" for number in range(MOST_MACHINES + 1))
    (wrong,) = read_file(f"{HEAD}\n{rows}\n".encode(), "csv").refusals
    assert (wrong.code, wrong.line) == ("too_many_machines", MOST_MACHINES + 2)


def test_the_columns_are_these() -> None:
    """Renaming a column breaks operators' files: it is done on purpose or not at all."""
    assert set(COLUMNS) == {
        *("name", "provider", "site", "block", "leaf", "rack", "unit", "serial", "instance_type", "gpus", "nvlink_domain"),
        *("controller_url", "controller_system", "controller_username", "controller_password", "address", "ports", "tags"),
    }
