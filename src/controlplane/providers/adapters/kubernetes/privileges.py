"""
Who may do what in a namespace of others, and outside of it. Pure.

Source: rbac.authorization.k8s.io/v1: subjects of bindings; groups `system:serviceaccounts:<namespace>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controlplane.providers.adapters.kubernetes.words import few, placed
from controlplane.providers.adoption import Remark

Json = dict[str, Any]
ACCOUNTS = "system:serviceaccounts:"
SYSTEM = "system:"


def obstacles(namespace: str, parts: Mapping[str, Sequence[Json]]) -> list[Remark]:
    """
    Bindings by which its accounts, or its people, reach what is not in it.
    """
    wrong = []
    everywhere = parts.get("clusterrolebindings", ())
    reach = [one["metadata"]["name"] for one in everywhere if any(_is_account(each, namespace) for each in _subjects(one))]
    reach += [
        placed(one)
        for one in parts.get("rolebindings", ())
        if one["metadata"]["namespace"] != namespace and any(_is_account(each, namespace) for each in _subjects(one))
    ]
    if reach:
        words = f"{few(reach)}: give its pods' accounts rights outside of it, to nodes or to others' namespaces. Take them out."
        wrong.append(Remark("accounts_reach_out", words))
    mine = [one for one in parts.get("rolebindings", ()) if one["metadata"]["namespace"] == namespace]
    people = {_who(each) for one in mine for each in _subjects(one) if _is_person(each)}
    wide = [one["metadata"]["name"] for one in everywhere if any(_who(each) in people for each in _subjects(one))]
    if wide:
        words = f"{few(wide)}: give people of it rights in the whole Kubernetes, where other tenants are. Take them out."
        wrong.append(Remark("people_reach_out", words))
    return wrong


def insiders(bindings: Iterable[Json]) -> list[str]:
    """
    Whom the bindings name, each once.
    """
    return sorted({_who(each) for one in bindings for each in _subjects(one)})


def _subjects(binding: Json) -> list[Json]:
    return list(binding.get("subjects") or [])


def _is_account(subject: Json, namespace: str) -> bool:
    if subject.get("kind") == "ServiceAccount":
        return subject.get("namespace") == namespace
    name = str(subject.get("name", ""))
    return name == f"{ACCOUNTS}{namespace}" or name.startswith(f"system:serviceaccount:{namespace}:")


def _is_person(subject: Json) -> bool:
    return subject.get("kind") in {"User", "Group"} and not str(subject.get("name", "")).startswith(SYSTEM)


def _who(subject: Json) -> str:
    where = f"{subject['namespace']}/" if subject.get("namespace") else ""
    return f"{subject.get('kind', '')} {where}{subject.get('name', '')}"
