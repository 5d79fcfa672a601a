"""
What is rendered for three real shapes, byte for byte. `python -m tests.unit.rendering.test_golden` renews the files; review the difference.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.rendering.slurm.files import Bundle
from controlplane.rendering.slurm.plan import SlurmPlan
from controlplane.rendering.slurm.roles import head_bundle, login_bundle, worker_bundle
from controlplane.rendering.slurm.settings import adapter_settings
from tests.factories.slurm_plans import KEYS, leaf_spine, nvl_rack, with_accounting

FOLDER = Path(__file__).parents[2] / "fixtures" / "slurm_rendered"
PLANS: dict[str, Callable[[], SlurmPlan]] = {"leaf_spine": leaf_spine, "nvl_rack": nvl_rack, "with_accounting": with_accounting}


def bundles(plan: SlurmPlan) -> Iterator[Bundle]:
    """
    The first host of each role; other hosts of a role differ in names only.
    """
    yield head_bundle(plan, KEYS)
    if plan.logins:
        yield login_bundle(plan, KEYS, plan.logins[0].name)
    yield worker_bundle(plan, KEYS, plan.ordered[0].name)


def rendered(plan: SlurmPlan) -> dict[str, str]:
    """
    All of it as text by a path below the plan's folder; a key is shown by its digest.
    """
    settings = adapter_settings(plan, command_prefix=("ssh", "head"), output_dir="/home/{user}")
    texts = {"adapter.json": json.dumps(dict(settings.config), indent=2, sort_keys=True) + "\n"}
    for bundle in bundles(plan):
        listed = []
        for file in bundle.files:
            listed.append(f"{file.mode:04o} {file.owner:<14} {file.on_change:<12} {file.path}\n")
            content = f"secret, sha256 {file.digest}\n" if file.secret else file.content.decode()
            texts[f"{bundle.role}{file.path}"] = content
        texts[f"{bundle.role}/LIST"] = "".join(listed)
        texts |= {f"{bundle.role}/{script.name}.sh": script.content for script in bundle.scripts}
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
