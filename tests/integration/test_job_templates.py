"""
Templates of jobs: written in versions, filled in when a job is made from one, and what the job was made of is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Database
from tests.factories.jobs import JobApi, JobWorld, job_api, job_world

GUIDE = (ROOT / "docs" / "guides" / "job-arrays.md").read_text(encoding="utf-8")
TELLS = '#!/bin/bash\necho rate "$RATE"\n'


@dataclass
class Setting:
    """
    Two tenants and the API of the first one's project.
    """

    world: JobWorld
    """Everything below."""
    api: JobApi
    """The first customer's key is `one`, the second's `two`."""

    def call(self, method: str, path: str, body: Any = None, *, key: str = "one") -> tuple[int, Any]:
        """
        Status and body of an answer below the first customer's project.
        """
        answer = self.api.call(key, method, f"/v1/projects/{self.world.customer.project}{path}", body)
        return answer.status_code, answer.json() if answer.content else None

    def template(self, **changes: Any) -> dict[str, Any]:
        """
        A template with a number, a word and a flag.
        """
        spec = {
            "cluster_id": self.world.customer.cluster,
            "nodes": "{{ nodes }}",
            "script": TELLS,
            "env": {"RATE": "{{ rate }}", "NOTE": "on {{nodes}} nodes, {{ fast }}"},
        }
        parameters = [
            {"name": "nodes", "kind": "integer", "default": 2, "choices": [1, 2]},
            {"name": "rate"},
            {"name": "fast", "kind": "boolean", "default": False},
        ]
        return {"parameters": parameters, "labels": {"team": "vision"}, "spec": {**spec, **changes}}


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """
    Two tenants with a cluster each.
    """
    with job_world(database, tmp_path) as world:
        world.add_customer(world.spare_refs[:1])
        api = job_api(database.engine)
        for key, customer in zip(("one", "two"), world.customers, strict=True):
            api.keys.known[key] = customer.principal()
        yield Setting(world, api)


def test_a_job_is_made_from_a_template_and_keeps_what_it_was_made_of(setting: Setting) -> None:
    """Numbers stay numbers, overrides replace whole fields, and a later version or a removal changes nothing of the job."""
    status, first = setting.call("PUT", "/job-templates/train", setting.template())
    assert (status, first["version"], first["latest_version"]) == (200, 1, 1)
    ask = {"name": "run-3", "labels": {"run": "3"}, "parameters": {"rate": "3e-4; $(id)"}, "overrides": {"time_limit_s": 600}}
    status, made = setting.call("POST", "/job-templates/train/jobs", ask)
    assert (status, made["name"], made["labels"]) == (202, "run-3", {"team": "vision", "run": "3"}), made
    assert (made["spec"]["nodes"], made["spec"]["time_limit_s"]) == (2, 600)
    assert made["spec"]["env"] == {"RATE": "3e-4; $(id)", "NOTE": "on 2 nodes, false"}
    assert made["template"] == {
        "name": "train",
        "version": 1,
        "parameters": {"nodes": 2, "rate": "3e-4; $(id)", "fast": False},
        "overrides": ["time_limit_s"],
    }
    assert setting.call("PUT", "/job-templates/train", setting.template(nodes=1))[1]["version"] == 2
    assert setting.call("DELETE", "/job-templates/train")[0] == 204
    setting.world.until_state(made["id"], "succeeded")
    assert setting.world.output(made["id"]) == "rate 3e-4; $(id)\n"
    kept = setting.call("GET", f"/jobs/{made['id']}")[1]
    assert (kept["template"], kept["spec"]) == (made["template"], made["spec"])


def test_versions_stay_and_can_be_used(setting: Setting) -> None:
    """The same again makes none; every one can be read and filled in; the newest is the usual one."""
    for nodes in ("{{ nodes }}", "{{ nodes }}", 1):
        setting.call("PUT", "/job-templates/train", setting.template(nodes=nodes))
    (listed,) = setting.call("GET", "/job-templates")[1]["items"]
    assert (listed["name"], listed["version"], listed["spec"]["nodes"]) == ("train", 2, 1)
    old = setting.call("GET", "/job-templates/train?version=1")[1]
    assert (old["version"], old["latest_version"], old["spec"]["nodes"]) == (1, 2, "{{ nodes }}")
    assert setting.call("GET", "/job-templates/train?version=3")[0] == 404
    ask = {"parameters": {"rate": "1"}}
    assert setting.call("POST", "/job-templates/train/jobs", {**ask, "version": 1})[1]["spec"]["nodes"] == 2
    made = setting.call("POST", "/job-templates/train/jobs", ask)[1]
    assert (made["spec"]["nodes"], made["name"], made["template"]["version"]) == (1, "train", 2)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "body.parameters.rate"),
        ({"rate": 3}, "body.parameters.rate"),
        ({"rate": "1", "nodes": 3}, "body.parameters.nodes"),
        ({"rate": "1", "nodes": True}, "body.parameters.nodes"),
        ({"rate": "1", "fast": "yes"}, "body.parameters.fast"),
        ({"rate": "1", "other": "x"}, "body.parameters.other"),
        ({"rate": "a\nb"}, "spec.env.RATE"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(setting: Setting, parameters: dict[str, Any], field: str) -> None:
    """422 with the field, and no job."""
    setting.call("PUT", "/job-templates/train", setting.template())
    status, problem = setting.call("POST", "/job-templates/train/jobs", {"parameters": parameters})
    assert (status, problem["errors"][0]["field"]) == (422, field)
    assert setting.call("GET", "/jobs")[1]["items"] == []


@pytest.mark.parametrize(
    "spec",
    [
        {"script": "#!/bin/bash\necho {{ rate }}\n"},
        {"script": None, "launch": {"kind": "torchrun", "command": ["a"], "setup": "x={{ rate }}"}},
        {"env": {"RATE": "{{ nothing }}"}},
        {"nodes": "{{ rate }}"},
        {"sudo": True},
        {"image": 3},
    ],
)
def test_what_can_make_no_job_is_no_template(setting: Setting, spec: dict[str, Any]) -> None:
    """Places where a shell reads, unknown names, values of another kind, unknown fields: 422, and nothing is stored."""
    assert setting.call("PUT", "/job-templates/train", setting.template(**spec))[0] == 422
    assert setting.call("GET", "/job-templates")[1]["items"] == []


@pytest.mark.parametrize(
    "parameters",
    [
        [{"name": "rate"}, {"name": "rate"}],
        [{"name": "rate", "kind": "integer", "default": "1"}],
        [{"name": "rate", "choices": [1]}],
        [{"name": "rate", "choices": ["a"], "default": "b"}],
        [{"name": "Rate-1"}],
    ],
)
def test_parameters_that_contradict_themselves_are_refused(setting: Setting, parameters: list[Any]) -> None:
    """Twice the same name, defaults and choices of another kind, names that no place can hold."""
    body = {**setting.template(nodes=1, env={"RATE": "{{ rate }}"}), "parameters": parameters}
    assert setting.call("PUT", "/job-templates/train", body)[0] == 422


def test_an_override_is_checked_like_the_rest(setting: Setting) -> None:
    """A field that is none and a value that is wrong are refused; another tenant's cluster is none."""
    setting.call("PUT", "/job-templates/train", setting.template())
    for overrides, field in (({"sudo": 1}, "spec.sudo"), ({"nodes": 0}, "spec.nodes"), ({"script": None}, "spec")):
        ask = {"parameters": {"rate": "1"}, "overrides": overrides}
        status, problem = setting.call("POST", "/job-templates/train/jobs", ask)
        assert (status, problem["errors"][0]["field"]) == (422, field)
    ask = {"parameters": {"rate": "1"}, "overrides": {"cluster_id": setting.world.customers[1].cluster}}
    assert setting.call("POST", "/job-templates/train/jobs", ask)[0] == 404


def test_another_tenants_templates_are_as_if_they_were_not(setting: Setting) -> None:
    """On every route; of the same name each has its own."""
    setting.call("PUT", "/job-templates/train", setting.template())
    for method, path, body in (
        ("GET", "/job-templates", None),
        ("GET", "/job-templates/train", None),
        ("PUT", "/job-templates/train", setting.template()),
        ("DELETE", "/job-templates/train", None),
        ("POST", "/job-templates/train/jobs", {"parameters": {"rate": "1"}}),
        ("POST", "/job-templates/train/job-arrays", {"parameters": {"rate": "1"}, "array": {"last": 1}}),
    ):
        assert setting.call(method, path, body, key="two")[0] == 404, (method, path)
    own = f"/v1/projects/{setting.world.customers[1].project}/job-templates/train"
    assert setting.api.call("two", "GET", own).status_code == 404
    assert setting.api.call("two", "PUT", own, setting.template()).status_code == 404  # it names the first one's cluster
    named = setting.template(cluster_id=setting.world.customers[1].cluster)
    assert setting.api.call("two", "PUT", own, named).json()["version"] == 1
    assert setting.call("GET", "/job-templates/train")[1]["version"] == 1


def array_template(setting: Setting, **changes: Any) -> dict[str, Any]:
    """A template of arrays whose tasks tell their rate."""
    body = setting.template(nodes=1, env={"RATE": "{{ rate }}"}, script='#!/bin/bash\necho rate "$RATE" of $ARRAY_INDEX\n')
    parameters = [{"name": "rate"}, {"name": "last", "kind": "integer"}]
    return {**body, "parameters": parameters, "array": {"first": 2, "last": "{{ last }}", "max_parallel": 1}, **changes}


def test_an_array_is_made_from_a_template(setting: Setting) -> None:
    """Its range and bound are the template's with values, each task knows its index, and where it came from is kept."""
    status, written = setting.call("PUT", "/job-templates/sweep", array_template(setting))
    assert (status, written["array"]) == (200, {"first": 2, "last": "{{ last }}", "max_parallel": 1}), written
    ask = {"labels": {"run": "3"}, "parameters": {"rate": "1", "last": 3}, "overrides": {"time_limit_s": 600}}
    status, made = setting.call("POST", "/job-templates/sweep/job-arrays", ask)
    assert (status, made["array"]) == (202, {"first": 2, "last": 3, "step": 1, "max_parallel": 1}), made
    assert made["template"] == {
        "name": "sweep",
        "version": 1,
        "parameters": {"rate": "1", "last": 3},
        "overrides": ["time_limit_s"],
    }
    tasks = setting.call("GET", f"/jobs?array_id={made['id']}")[1]["items"]
    for one in tasks:
        setting.world.until_state(one["id"], "succeeded")
    assert [setting.world.output(one["id"]) for one in tasks] == ["rate 1 of 2\n", "rate 1 of 3\n"]
    assert {(one["template"]["name"], one["labels"]["run"], one["spec"]["time_limit_s"]) for one in tasks} == {("sweep", "3", 600)}


def test_the_range_of_an_order_takes_the_templates_place(setting: Setting) -> None:
    """As a whole, also where the template has none; without any there is no array."""
    setting.call("PUT", "/job-templates/sweep", array_template(setting))
    ask = {"parameters": {"rate": "1", "last": 9}, "array": {"first": 7, "last": 7}}
    made = setting.call("POST", "/job-templates/sweep/job-arrays", ask)[1]
    assert made["array"] == {"first": 7, "last": 7, "step": 1, "max_parallel": None}
    setting.call("PUT", "/job-templates/train", setting.template())
    ask = {"parameters": {"rate": "1"}, "array": {"last": 1}}
    assert setting.call("POST", "/job-templates/train/job-arrays", ask)[1]["status"]["total"] == 2
    status, problem = setting.call("POST", "/job-templates/train/job-arrays", {"parameters": {"rate": "1"}})
    assert (status, problem["errors"][0]["field"]) == (422, "body.array")


def test_a_template_of_arrays_makes_no_single_job(setting: Setting) -> None:
    """It would look for its index in vain: refused with the way to order one."""
    setting.call("PUT", "/job-templates/sweep", array_template(setting))
    status, problem = setting.call("POST", "/job-templates/sweep/jobs", {"parameters": {"rate": "1", "last": 3}})
    assert (status, problem["code"]) == (409, "job_template_of_arrays")
    assert "/job-templates/sweep/job-arrays" in problem["hint"]
    assert setting.call("GET", "/jobs")[1]["items"] == []


@pytest.mark.parametrize(
    "array", [{"last": "{{ rate }}"}, {"last": "{{ nothing }}"}, {"first": 3, "last": 2}, {"last": 2, "most": 1}, {"first": 0}]
)
def test_ranges_that_can_make_no_array_are_no_template(setting: Setting, array: dict[str, Any]) -> None:
    """Words, unknown places, empty ranges, unknown fields and no end: 422, and nothing is stored."""
    assert setting.call("PUT", "/job-templates/sweep", array_template(setting, array=array))[0] == 422
    assert setting.call("GET", "/job-templates")[1]["items"] == []


def test_values_that_make_no_range_are_refused(setting: Setting) -> None:
    """Which only the order can know."""
    setting.call("PUT", "/job-templates/sweep", array_template(setting))
    for last in (1, 5000):
        status, problem = setting.call("POST", "/job-templates/sweep/job-arrays", {"parameters": {"rate": "1", "last": last}})
        assert (status, problem["errors"][0]["field"]) == (422, "array"), problem
    assert setting.call("GET", "/job-arrays")[1]["items"] == []


def test_the_guides_example_works(setting: Setting) -> None:
    """What the guide tells tenants to send is taken as it stands, but for the cluster's id."""
    part = GUIDE.partition("## Templates")[2].partition("\n## ")[0]
    template, ask, arrays, ask_array = (json.loads(one) for one in re.findall(r"```json\n(.*?)```", part, re.DOTALL))
    template["spec"]["cluster_id"] = setting.world.customer.cluster
    assert setting.call("PUT", "/job-templates/train-7b", template)[0] == 200
    status, made = setting.call("POST", "/job-templates/train-7b/jobs", ask)
    assert (status, made["spec"]["nodes"], made["spec"]["env"]["RATE"]) == (202, 2, "3e-4"), made
    arrays["spec"]["cluster_id"] = setting.world.customer.cluster
    assert setting.call("PUT", "/job-templates/evaluate", arrays)[0] == 200
    status, made = setting.call("POST", "/job-templates/evaluate/job-arrays", ask_array)
    assert (status, made["status"]["total"], made["array"]["max_parallel"]) == (202, 200, 8), made
