"""
What is rendered for three clusters, byte for byte. `python -m tests.unit.rendering.test_kubernetes_golden` renews the files; review the
difference. Keys differ in every run, so their words stand for them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.rendering.kubernetes.files import Bundle
from controlplane.rendering.kubernetes.plan import KubernetesPlan
from controlplane.rendering.kubernetes.roles import control_plane_bundle, worker_bundle
from tests.factories.kubernetes_plans import keys, light, plain, three

FOLDER = Path(__file__).parents[2] / "fixtures" / "kubernetes_rendered"
PLANS: dict[str, Callable[[], KubernetesPlan]] = {"kubeadm_three": three, "kubeadm_plain": plain, "k3s": light}


def redacted(text: str) -> str:
    """The text with names for keys: whole ones are not shown, tokens and digests are replaced."""
    if text.startswith("-----BEGIN"):
        return f"{text.splitlines()[0]}\n"
    mine = keys()
    words = {
        mine.bootstrap: "BOOTSTRAP",
        mine.servers: "SERVERS",
        mine.agents: "AGENTS",
        mine.cluster.pin: "sha256:PIN",
        mine.cluster.digest: "DIGEST",
    }
    for word, name in words.items():
        text = text.replace(word, name)
    return text


def rendered(plan: KubernetesPlan) -> dict[str, str]:
    """All of it as text by a path below the plan's folder."""
    bundles: dict[str, Bundle] = {"control-plane": control_plane_bundle(plan, keys())}
    bundles |= {f"worker-{one.name}": worker_bundle(plan, keys(), one.name) for one in plan.shapes}
    texts = {}
    for name, bundle in bundles.items():
        listed = []
        for file in bundle.files:
            kept = "secret" if file.secret else "plain"
            listed.append(f"{file.mode:04o} {file.owner} {kept:<6} {file.path} [{file.on_change}]\n")
            texts[f"{name}{file.path}"] = redacted(file.content)
        texts[f"{name}/LIST"] = "".join(listed)
        texts[f"{name}/{bundle.script.name}.sh"] = bundle.script.content
    return texts


@pytest.mark.parametrize("name", PLANS)
def test_every_file_is_as_it_was_reviewed(name: str) -> None:
    """No file is missing, added or other than the one in the repository."""
    folder = FOLDER / name
    kept = {str(path.relative_to(folder)): path.read_text("utf-8") for path in sorted(folder.rglob("*")) if path.is_file()}
    assert rendered(PLANS[name]()) == kept


def renew() -> None:
    """
    The repository's files are what is rendered now.
    """
    for name, plan in PLANS.items():
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        for path, text in rendered(plan()).items():
            target = FOLDER / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf-8")


if __name__ == "__main__":
    renew()
