"""
Changing calls by name, from what travels: the same for a call that is answered, one that comes twice and one that comes late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.providers.adapters.simulated import batch, checks, fabric, groups, hosting, metal, queue, standing
from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adoption import Adoption
from controlplane.providers.checks import FabricRun
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.fabrics import NetworkSpec, PortRef
from controlplane.providers.machines import Deployment


def bring_about(act: Act, operation: str, payload: Mapping[str, Any]) -> Any:
    """
    The operation has taken effect; what it answers is returned. Raises what the port allows.
    """
    answer = _EFFECTS[operation](act, payload)
    if act.fault == "node_dies":
        for ref in _refs_of(payload):
            kill(act, ref)
            break
    return answer


def kill(act: Act, ref: str) -> None:
    """
    The machine will be dead for the fault's time.
    """
    dies = act.now + act.wait_us("after_s")
    act.db.execute(
        "INSERT INTO outages (ref, from_at, until_at, cause) VALUES (?, ?, ?, 'node fault (simulated)')",
        (ref, dies, dies + act.wait_us("for_s")),
    )
    metal.wake(act.db, ref, act.now)


def _refs_of(payload: Mapping[str, Any]) -> list[str]:
    if "ref" in payload:
        return [payload["ref"]]
    return [one["ref"] for one in payload.get("members", ())]


def _deploy(act: Act, given: Mapping[str, Any]) -> None:
    checks.refuse_checked(act, given["ref"])
    standing.refuse_used(act, given["ref"])
    metal.deploy(act, Deployment(**given))


def _wipe(act: Act, given: Mapping[str, Any]) -> None:
    standing.refuse_used(act, given["ref"])
    metal.wipe(act, given["ref"], given["token"])


def _delete(act: Act, given: Mapping[str, Any]) -> None:
    groups.delete(act, given["cluster_id"])
    standing.forget(act, given["cluster_id"])


def _adopt(act: Act, given: Mapping[str, Any]) -> None:
    members = tuple(Member(**one) for one in given["spec"]["members"])
    standing.adopt(act, Adoption(given["ref"], given["uid"], ClusterSpec(**{**given["spec"], "members": members})))


def _begin_checks(act: Act, given: Mapping[str, Any]) -> None:
    checks.begin(act, given["token"], tuple(FabricRun(**{**one, "refs": tuple(one["refs"])}) for one in given["runs"]))


def _apply(act: Act, given: Mapping[str, Any]) -> None:
    members = tuple(Member(**one) for one in given["members"])
    groups.apply(act, ClusterSpec(**{**given, "members": members}))


def _submit(act: Act, given: Mapping[str, Any]) -> str:
    return batch.submit(act, queue.spec_from(given))


def _attach(act: Act, given: Mapping[str, Any]) -> None:
    fabric.attach(act, PortRef(**given["port"]), NetworkSpec(**given["network"]), turn=given["turn"])


def _detach(act: Act, given: Mapping[str, Any]) -> None:
    fabric.detach(act, PortRef(**given["port"]), only=given["only"], turn=given["turn"])


_EFFECTS: Mapping[str, Callable[[Act, Mapping[str, Any]], Any]] = {
    "inspect": lambda act, given: metal.survey(act, "inspect", given["ref"], given["token"]),
    "qualify": lambda act, given: metal.survey(act, "qualify", given["ref"], given["token"]),
    "deploy": _deploy,
    "release": lambda act, given: metal.release(act, given["ref"], given["token"], given["accepted_at"]),
    "wipe": _wipe,
    "power": lambda act, given: metal.power(act, given["ref"], given["token"], turn_on=given["turn_on"]),
    "apply_cluster": _apply,
    "delete_cluster": _delete,
    "adopt_cluster": _adopt,
    "let_go": lambda act, given: standing.let_go(act, given["cluster_id"]),
    "drain": lambda act, given: groups.drain(act, given["cluster_id"], tuple(given["refs"]), given["reason"]),
    "undrain": lambda act, given: groups.undrain(act, given["cluster_id"], tuple(given["refs"])),
    "submit": _submit,
    "attach": _attach,
    "detach": _detach,
    "prepare_checks": lambda act, given: checks.prepare(act, given["token"], tuple(given["refs"])),
    "begin_checks": _begin_checks,
    "end_checks": lambda act, given: checks.end(act, given["token"]),
    "apply_service": lambda act, given: hosting.apply(act, hosting.spec_from(given)),
    "delete_service": lambda act, given: hosting.delete(act, given["cluster_id"], given["service_id"]),
    "cancel": lambda act, given: batch.cancel(act, given["cluster_id"], given["token"]),
}
