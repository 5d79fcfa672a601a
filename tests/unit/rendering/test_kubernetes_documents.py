"""
Every document that is rendered, against whoever will read it: published schemas, documented types, the real cloud-init, a shell checker.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from controlplane.rendering.kubernetes.checking import OLDEST_MINOR
from controlplane.rendering.kubernetes.cloudinit import user_data
from controlplane.rendering.kubernetes.files import Bundle
from controlplane.rendering.kubernetes.manifests import manifests
from controlplane.rendering.kubernetes.plan import KubernetesPlan
from controlplane.rendering.kubernetes.roles import control_plane_bundle, worker_bundle
from tests.factories.kubernetes_plans import keys, light, plain, three
from tests.kits import unusable
from tests.unit.rendering.kubernetes_types import AGENT, DOCUMENTS, SERVER, VERSIONS, misfits

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
PLANS = {"three": three(), "plain": plain(), "light": light()}
OBJECTS = {
    f"{name}-{file}-{place}": (plan, one)
    for name, plan in PLANS.items()
    for file, objects in manifests(plan).items()
    for place, one in enumerate(objects)
}


def bundles(plan: KubernetesPlan) -> Iterator[Bundle]:
    """One of each kind of host."""
    yield control_plane_bundle(plan, keys())
    for shape in plan.shapes:
        yield worker_bundle(plan, keys(), shape.name)


BUNDLES = {f"{name}-{place}": one for name, plan in PLANS.items() for place, one in enumerate(bundles(plan))}


@pytest.mark.parametrize("name", OBJECTS)
def test_the_published_schema_knows_every_field(name: str) -> None:
    """Strictly, by the schema of the plan's own release."""
    plan, made = OBJECTS[name]
    release = f"1.{plan.minor}"
    assert kubernetes_validate.validate(made, release, strict=True).startswith(release)


def test_the_oldest_release_that_is_taken_knows_them() -> None:
    """All add-ons of the plan with most of them; later ones are held by the plans' own releases."""
    release = f"1.{OLDEST_MINOR}"
    for objects in manifests(plain()).values():
        for one in objects:
            assert kubernetes_validate.validate(one, release, strict=True).startswith(release)


def test_the_schemas_bite() -> None:
    """A misspelt field is found, so the tests above can fail."""
    wrong = json.loads(json.dumps(manifests(plain())["50-metrics"][-2]))
    wrong["spec"]["template"]["spec"]["containrs"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.36", strict=True)


def kubeadm_documents() -> Iterator[dict[str, Any]]:
    """All documents that kubeadm reads."""
    for plan in (three(), plain()):
        for bundle in bundles(plan):
            for file in bundle.files:
                if (
                    file.path.startswith("/etc/controlplane/kubernetes/")
                    and file.path.count("/") == 4
                    and file.path.endswith(".yaml")
                ):
                    yield from yaml.safe_load_all(file.content)


def test_kubeadm_knows_every_field() -> None:
    """By the documented types of v1beta4 and of kubelet's and kube-proxy's configuration; each kind occurs."""
    seen = set()
    for document in kubeadm_documents():
        kind = document["kind"]
        assert document["apiVersion"] == VERSIONS[kind]
        assert misfits(document, DOCUMENTS[kind], kind) == []
        seen.add(kind)
    assert seen == set(DOCUMENTS)


def test_the_types_bite() -> None:
    """An unknown field, a text instead of a number and an object instead of a list are found."""
    wrong = {"kind": "X", "apiServer": {"extraArgs": {"profiling": "false"}}, "clustrName": "x", "networking": {"podSubnet": 1}}
    found = misfits(wrong, DOCUMENTS["ClusterConfiguration"], "c")
    assert found == ["c.clustrName: unknown", "c.apiServer.extraArgs: not a list", "c.networking.podSubnet: int instead of str"]


def test_k3s_knows_every_flag() -> None:
    """Keys of config.yaml are documented flags of the server or the agent."""
    server, agent = (next(file for file in one.files if file.path == "/etc/rancher/k3s/config.yaml") for one in bundles(light()))
    assert misfits(yaml.safe_load(server.content), SERVER, "server") == []
    assert misfits(yaml.safe_load(agent.content), AGENT, "agent") == []


def test_scripts_and_programs_are_sound(tmp_path: Path) -> None:
    """A shell checker finds nothing in any of them."""
    scripts = {one.script.content for one in BUNDLES.values()}
    scripts |= {file.content for one in BUNDLES.values() for file in one.files if file.content.startswith("#!")}
    paths = [tmp_path / str(place) for place in range(len(scripts))]
    for path, script in zip(paths, sorted(scripts), strict=True):
        path.write_text(script, encoding="utf-8")
    done = subprocess.run([SHELLCHECK, *paths], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["three-0", "light-1"])
def test_the_real_cloud_init_takes_the_user_data(name: str, tmp_path: Path) -> None:
    """By its own schema, and every file arrives as it was rendered."""
    bundle = BUNDLES[name]
    text = user_data(bundle)
    file = tmp_path / "user-data"
    file.write_text(text, encoding="utf-8")
    try:
        done = subprocess.run(
            ["cloud-init", "schema", "--config-file", str(file)], capture_output=True, text=True, check=False, timeout=120
        )
    except OSError as error:
        unusable("cloud-init", f"cloud-init schema: {error}")
    assert done.returncode == 0, done.stdout + done.stderr
    told = yaml.safe_load(text)
    laid = {one["path"]: base64.b64decode(one["content"]).decode() for one in told["write_files"]}
    assert {one.path: one.content for one in bundle.files}.items() <= laid.items()
    assert bundle.script.content in laid.values()
    assert len(told["runcmd"]) == 1
