"""
Add-ons as files of control planes, and the program that applies them.
"""

from __future__ import annotations

from collections.abc import Iterator

from controlplane.rendering.kubernetes import layout
from controlplane.rendering.kubernetes.charts import KNOWN, values_of
from controlplane.rendering.kubernetes.files import RenderedFile, text_file, yaml_text
from controlplane.rendering.kubernetes.manifests import manifests, manifests_after
from controlplane.rendering.kubernetes.plan import KubernetesPlan

MANAGER = "controlplane-addons"
"""Field manager of what is applied: an owner's own fields on the same objects stay."""


def addon_files(plan: KubernetesPlan) -> tuple[RenderedFile, ...]:
    """
    Manifests, values of charts, and the program; a change of any of them is followed by the program.
    """
    files = [text_file(layout.APPLY, ["#!/bin/sh", *_program(plan)], mode=0o755)]
    files += [
        RenderedFile(f"{layout.ADDONS}/{name}.yaml", yaml_text(*objects), 0o600, on_change=layout.APPLY)
        for name, objects in manifests(plan).items()
    ]
    files += [
        RenderedFile(f"{layout.AFTER}/{name}.yaml", yaml_text(*objects), 0o600, on_change=layout.APPLY)
        for name, objects in manifests_after(plan).items()
    ]
    files += [
        RenderedFile(f"{layout.CHARTS}/{name}.yaml", yaml_text(values_of(plan, name)), 0o600, on_change=layout.APPLY)
        for name in sorted(plan.addons.charts)
    ]
    return tuple(files)


def _program(plan: KubernetesPlan) -> Iterator[str]:
    yield "# Applies the add-ons of this cluster. Safe to run again, on several control planes at once too."
    yield "set -eu"
    yield from _apply(plan, layout.ADDONS)
    for name, chart in sorted(plan.addons.charts.items()):
        yield (
            f"{layout.helm(plan)} upgrade --install {name} {chart.source} --version {chart.version}"
            f" --namespace {KNOWN[name].namespace} --create-namespace --values {layout.CHARTS}/{name}.yaml </dev/null"
        )
    if manifests_after(plan):
        yield from _apply(plan, layout.AFTER)


def _apply(plan: KubernetesPlan, folder: str) -> Iterator[str]:
    yield f"for file in {folder}/*.yaml; do"
    # not validated once more: the schemas have been asked before, and a server that has just begun may not tell its own yet
    yield f"  {layout.kubectl(plan)} apply --server-side --force-conflicts --validate=false --field-manager={MANAGER} \\"
    yield '    -f "$file" </dev/null'
    yield "done"
