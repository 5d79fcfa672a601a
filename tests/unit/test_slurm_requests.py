"""
Submits are spelled for each dialect; what reaches a command line or a mark is checked.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.slurm import marks, scrub
from controlplane.providers.adapters.slurm.adapter import build
from controlplane.providers.adapters.slurm.cli import Cli
from controlplane.providers.adapters.slurm.config import CliConfig
from controlplane.providers.adapters.slurm.marks import ForeignMark, Mark
from controlplane.providers.adapters.slurm.names import Names
from controlplane.providers.adapters.slurm.requests import Submit, body, minutes
from controlplane.providers.adapters.slurm.tokens import Tokens, mint
from controlplane.providers.deadline import one_call, time_left_s
from controlplane.providers.errors import AuthFailed, NotSent, Permanent, Refused, Transient, Unknown, Unsupported
from controlplane.providers.registry import AdapterInput

NOW = datetime(2026, 11, 28, tzinfo=UTC)
SUBMIT = Submit(
    name="job_1-1",
    comment="dep:clu_1",
    script="#!/bin/bash\ntrue\n",
    output="/srv/out/job_1-1.out",
    nodes=4,
    tasks_per_node=8,
    minutes=10,
    gpus=8,
    gpu_type="h100",
    reservation="dep:clu_1",
    partition="tenants",
    env={"A": "b c"},
    only=("n1", "n2"),
)


def test_the_first_dialect_is_spelled_as_22_05_reads_it() -> None:
    """A number of nodes, gres, an object of variables, the script outside."""
    told = body(SUBMIT, 38)
    job = told["job"]
    assert told["script"] == SUBMIT.script
    assert (job["nodes"], job["gres"], job["time_limit"], job["nodelist"]) == (4, "gpu:h100:8", 10, "n[1-2]")
    assert job["environment"]["A"] == "b c"
    assert not {"tres_per_node", "required_nodes", "account", "hold", "exclusive"} & set(job)


@pytest.mark.parametrize("version", [40, 41, 42, 45])
def test_the_second_dialect_never_says_gres(version: int) -> None:
    """It would be dropped with a mere warning, and the job would run without GPUs."""
    told = body(SUBMIT, version)
    job = told["job"]
    assert ("script" in job, "script" in told) == (version >= 41, version < 41)
    assert "gres" not in job
    assert (job["nodes"], job["tres_per_node"], job["tasks"]) == ("4", "gres/gpu:h100:8", 32)
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 10}
    assert "A=b c" in job["environment"]


@pytest.mark.parametrize("version", [38, 42])
def test_output_and_environment_are_always_told(version: int) -> None:
    """Slurm's defaults fail: 0:53 for the output, a refusal for an empty environment."""
    bare = Submit(name="x", comment="", script="#!/bin/sh\n", output="/dev/null", nodes=1, tasks_per_node=1, minutes=1)
    job = body(bare, version)["job"]
    assert job["standard_output"] == "/dev/null"
    assert "PATH" in str(job["environment"])


@pytest.mark.parametrize(("version", "spelled"), [(38, "append"), (40, ["APPEND"]), (41, ["APPEND"]), (42, ["APPEND"])])
def test_every_run_appends_to_the_output(version: int, spelled: object) -> None:
    """A word in the first dialect, flags in the second; Slurm's default empties the file at a requeue."""
    assert body(SUBMIT, version)["job"]["open_mode"] == spelled


@pytest.mark.parametrize("version", [38, 40, 42])
def test_whether_it_may_run_twice_is_always_told(version: int) -> None:
    """In the first dialect `requeue` is true even when it says false, so the refusal has a name of its own."""
    once = body(replace(SUBMIT, requeue=False), version)["job"]
    again = body(SUBMIT, version)["job"]
    assert again["requeue"] is True
    assert "no_requeue" not in again
    refusal = {"no_requeue": True} if version == 38 else {"requeue": False}
    assert {name: once[name] for name in ("requeue", "no_requeue") if name in once} == refusal


def test_22_05_cannot_exclude_in_a_submit() -> None:
    """Said, not dropped."""
    with pytest.raises(Unsupported):
        body(Submit(**{**{name: getattr(SUBMIT, name) for name in Submit.__slots__}, "exclude": ("n3",)}), 38)


@pytest.mark.parametrize(("seconds", "limit"), [(1, 1), (60, 1), (61, 2), (3600, 60)])
def test_a_limit_is_never_shorter_than_asked(seconds: int, limit: int) -> None:
    """Slurm counts minutes."""
    assert minutes(seconds) == limit


WORD = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@given(st.builds(Mark, alloc=WORD, phase=st.sampled_from(["", "deployed", "released"]), cluster=WORD, users=WORD, wipe=WORD), WORD)
def test_a_mark_reads_back(mark: Mark, deployment: str) -> None:
    """And is foreign to every other installation."""
    written = mark.text(deployment)
    assert marks.read(written, deployment) == mark
    with pytest.raises(ForeignMark):
        marks.read(written, f"{deployment}x")
    with pytest.raises(ForeignMark):
        marks.read(mark.text(f"{deployment}x"), deployment)


@given(WORD, WORD, WORD, WORD)
def test_no_two_clusters_share_a_wall(one: str, other: str, cluster: str, another: str) -> None:
    """Names are one to one, and read back only by their own installation."""
    names, others = Names(one, "controlplane"), Names(other, "controlplane")
    wall = names.reservation(cluster)
    assert names.cluster_id(wall) == cluster
    assert (wall == others.reservation(another)) == ((one, cluster) == (other, another))
    assert (others.cluster_id(wall) is None) == (one != other)


@pytest.mark.parametrize("bad", ["", "-x", "a b", "a;b", "a,b", "a=b", "$(x)", "a\nb", "a:b", "../x", "x" * 200])
def test_what_is_no_plain_name_never_reaches_slurm(bad: str) -> None:
    """Refused before anything is sent."""
    names = Names("dep", "controlplane")
    with pytest.raises(Refused):
        names.reservation(bad)
    with pytest.raises(Refused):
        names.scrub_job(bad)


def test_a_reason_is_one_harmless_line() -> None:
    """Whatever an operator wrote; and only ours are ours."""
    names = Names("dep", "controlplane")
    reason = names.reason('x" state=resume\nupdate nodename=n2 $(reboot) `id`')
    assert names.is_our_reason(reason)
    assert not set(reason.removeprefix("controlplane(dep):")) & set('"\n$()`=;')
    assert not names.is_our_reason("controlplane(other): x")
    assert not names.is_our_reason("bad disk, controlplane(dep): x")


def test_a_minted_token_is_what_scontrol_makes() -> None:
    """Head and claims sun, iat, exp; that Slurm takes the signature is seen by the contract suite."""
    token = mint(b"0123456789abcdef0123456789abcdef", user="root", issued_at_s=1000, lifetime_s=300)
    assert token.split(".")[:2] == ["eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9", "eyJleHAiOjEzMDAsImlhdCI6MTAwMCwic3VuIjoicm9vdCJ9"]
    assert len(token.split(".")[2]) == 43


def test_an_expired_token_is_found_out_before_it_is_sent() -> None:
    """AuthFailed, not a wordless 500 after 9 s."""
    old = mint(b"k" * 32, user="root", issued_at_s=1000, lifetime_s=300)
    with pytest.raises(AuthFailed):
        Tokens({"token": old}, lambda: NOW).for_user("root")
    assert Tokens({"token": "opaque"}, lambda: NOW).for_user("root") == "opaque"


@pytest.mark.parametrize(
    "secrets", [{}, {"token": "a", "jwt_key": "a2V5a2V5a2V5a2V5a2V5"}, {"jwt_key": "%%"}, {"jwt_key": "c2hvcnQ="}]
)
def test_the_secret_must_be_one_of_two(secrets: dict[str, str]) -> None:
    """And its value is in no message."""
    with pytest.raises(Permanent) as caught:
        Tokens(secrets, lambda: NOW)
    assert not any(value in str(caught.value) for value in secrets.values() if len(value) > 1)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"url": "ftp://x"},
        {"url": "http://user:secret@x"},
        {"url": "http://x", "nope": 1},
        {"url": "http://x", "timeout_s": 60},
        {"url": "http://x", "api_versions": [39]},
        {"url": "http://x", "partition": "a b"},
        {"url": "http://x", "output_dir": "/srv/../etc"},
        {"url": "http://x", "scrub": {"enabled": True}},
        {"url": "http://x", "node_gres": {"H100": "h100;x"}},
    ],
)
def test_a_wrong_config_is_refused(config: dict[str, Any]) -> None:
    """Permanent, naming the field and never the value."""
    with pytest.raises(Permanent) as caught:
        build(AdapterInput("prv_1", config, {"token": "x"}, "dep", lambda: NOW))
    assert "secret@" not in str(caught.value)


def test_commands_are_bounded_and_checked() -> None:
    """A program that is not there was not sent; one that hangs is unknown; odd arguments are refused."""
    with pytest.raises(NotSent):
        Cli(CliConfig(argv_prefix=["/no/such/program"])).scontrol("ping")
    with pytest.raises(Unknown):
        Cli(CliConfig(argv_prefix=["sh", "-c", "exec tail -f /dev/null"], timeout_s=0.05)).scontrol("ping")
    with pytest.raises(Refused):
        Cli(CliConfig(argv_prefix=["true"])).scontrol("update", "nodename=n1;reboot$(x)")
    with pytest.raises(Refused):
        Cli(CliConfig(argv_prefix=["true"])).scontrol_lines(["update nodename=n1\nupdate nodename=n2"])


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Requested reservation is in use", "Busy"),
        ("Requested reservation overlaps with another reservation", "Busy"),
        ("Invalid node name specified", "NotFound"),
        ("Access/permission denied", "AuthFailed"),
        ("Unable to contact slurm controller (connect failure)", "Unknown"),
        ("Invalid user", "Refused"),
    ],
)
def test_words_of_scontrol_become_errors(said: str, kind: str) -> None:
    """It has no numbers."""
    cli = Cli(CliConfig(argv_prefix=["sh", "-c", f"echo 'error: {said}' >&2; exit 1"]))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is what is compared
        cli.scontrol("update")
    assert type(caught.value).__name__ == kind


def test_quoting_keeps_arguments_whole_behind_a_shell() -> None:
    """As behind ssh, which hands its arguments to one."""
    cli = Cli(CliConfig(argv_prefix=["sh", "-c", 'eval "$*"', "sh", "printf '<%s>'"], quote=True))
    assert cli.scontrol("a b", "n[1-2];x") == "<scontrol><a b><n[1-2];x>"


def test_one_call_has_one_deadline() -> None:
    """An inner call cannot make it later; used-up time starts nothing more."""
    with one_call(0.0), pytest.raises(Transient):
        time_left_s(5.0)
    with one_call(100.0), one_call(1.0):
        assert time_left_s(50.0) <= 1.0
    assert time_left_s(50.0) == 50.0


GOOD = (
    b'SCRUB-REPORT {"v":1,"token":"wip_1","node":"n1","started":10,"finished":12,"checks":{'
    b'"processes":{"result":"passed","detail":"0 left"},"tenant_files":{"result":"passed"},'
    b'"shared_memory":{"result":"passed"},"gpu_memory":{"result":"not_measured"}}}\nSCRUB-END wip_1\n'
)


def test_a_whole_report_proves_a_wipe() -> None:
    """With the checks that Slurm cannot make shown as not measured."""
    verdict = scrub.verify(GOOD, token="wip_1", node="n1")
    assert verdict.failure == ""
    assert verdict.report is not None
    results = {check.name: check.result for check in verdict.report.checks}
    assert results["processes"] == "passed"
    assert results["gpu_memory"] == results["firmware_baseline"] == "not_measured"


@given(st.integers(min_value=0, max_value=len(GOOD) - 2))
def test_a_report_cut_anywhere_proves_nothing(length: int) -> None:
    """BR-031, BR-032: short is a failure."""
    verdict = scrub.verify(GOOD[:length], token="wip_1", node="n1")
    assert verdict.failure
    assert verdict.report is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"processes":{"result":"passed","detail":"0 left"},', b""),
        (b'"passed","detail":"0 left"', b'"failed","detail":"2 left"'),
        (b'"passed","detail":"0 left"', b'"not_measured"'),
        (b'"passed","detail":"0 left"', b'"perfect"'),
        (b'"token":"wip_1"', b'"token":"wip_0"'),
        (b'"node":"n1"', b'"node":"n2"'),
        (b'"v":1', b'"v":2'),
        (b'"finished":12', b'"finished":9'),
        (b'"checks":{', b'"checks":[{'),
        (b"SCRUB-END wip_1", b"SCRUB-END wip_2"),
        (b"SCRUB-END", b"SCRUB-REPORT {}\nSCRUB-END"),
    ],
)
def test_a_report_that_is_odd_anywhere_is_a_failure(old: bytes, new: bytes) -> None:
    """Missing checks, failed ones, another wipe's, another node's, two at once."""
    assert old in GOOD
    assert scrub.verify(GOOD.replace(old, new), token="wip_1", node="n1").failure
