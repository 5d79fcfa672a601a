"""
What a watch told is kept by version: repeated, late and shuffled events leave what the last one said, and ended jobs take no more room.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from controlplane.providers.kube.work.memory import ENDED_KEPT, Memory
from controlplane.providers.kube.work.names import TOKEN

Json = dict[str, Any]
PHASES = ("Pending", "Running", "Succeeded")


def thing(token: str, version: int, *, name: str = "", uid: str = "", **rest: Any) -> Json:
    """A Job, or a pod of it."""
    meta = {"name": name or token, "namespace": "ns", "uid": uid or name or token, "resourceVersion": str(version)}
    return {"metadata": meta | {"labels": {TOKEN: token}}, "spec": {"completions": 1}, "status": {}} | rest


def over(token: str, version: int) -> Json:
    """A Job that has succeeded."""
    return thing(token, version, status={"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]})


@pytest.mark.parametrize("seed", range(20))
def test_any_order_and_any_repetition_tell_the_same(seed: int) -> None:
    """The last version of each object wins, removed ones stay removed."""
    draw = random.Random(seed)
    told: list[tuple[str, Json]] = []
    for number in range(8):
        told += [("MODIFIED", thing(f"j{number}", 10 * number + 100))]
        for step, phase in enumerate(PHASES):
            pod = thing(f"j{number}", 10 * number + 101 + step, name=f"p{number}", status={"phase": phase})
            told.append(("MODIFIED", pod))
        if number % 2:
            told.append(("DELETED", thing(f"j{number}", 10 * number + 105, name=f"p{number}", status={"phase": "Succeeded"})))
    memory = Memory()
    jobs = [one for one in told if one[1]["metadata"]["name"].startswith("j")]
    pods = [one for one in told if one not in jobs] * 2
    draw.shuffle(pods)
    for _, seen in jobs:
        memory.see("jobs", seen)
    for kind, seen in pods:
        (memory.lose if kind == "DELETED" else memory.see)("pods", seen)
    for number in range(8):
        kept = memory.recall("ns", f"j{number}")
        assert kept is not None
        assert [one["status"]["phase"] for one in kept[1]] == ([] if number % 2 else ["Succeeded"])


def test_a_list_after_a_gap_takes_back_what_it_does_not_show_and_all_certainty() -> None:
    """What was whole is not any more; an older version in the list is the truth after a restore."""
    memory = Memory()
    memory.learn(thing("kept", 50), (thing("kept", 51, name="pod"),))
    memory.learn(thing("lost", 52), ())
    assert memory.recall("ns", "kept")[2]  # type: ignore[index]
    memory.begin("jobs", [thing("kept", 7)])
    memory.begin("pods", [thing("kept", 8, name="pod")])
    kept = memory.recall("ns", "kept")
    assert kept is not None
    assert (kept[0]["metadata"]["resourceVersion"], len(kept[1]), kept[2]) == ("7", 1, False)
    assert memory.recall("ns", "lost") is None


def test_a_job_made_again_under_its_name_is_another_one() -> None:
    """Pods of the first are not the second's."""
    memory = Memory()
    memory.learn(thing("j", 1, uid="a"), (thing("j", 2, name="p"),))
    memory.see("jobs", thing("j", 9, uid="b"))
    memory.lose("jobs", thing("j", 8, uid="a"))
    kept = memory.recall("ns", "j")
    assert kept is not None
    assert (kept[0]["metadata"]["uid"], kept[1], kept[2]) == ("b", (), False)


def test_ended_jobs_are_forgotten_beyond_a_number() -> None:
    """Room and news do not grow with them, whatever is told of them afterwards."""
    memory = Memory()
    for number in range(ENDED_KEPT + 500):
        memory.learn(over(f"j{number}", 3 * number + 1), (thing(f"j{number}", 3 * number + 2, name=f"p{number}"),))
    assert len(memory) == 2 * ENDED_KEPT
    memory.see("pods", thing("j0", 10**6, name="p0", status={"phase": "Succeeded"}))
    assert len(memory) == 2 * ENDED_KEPT
    assert memory.recall("ns", "j0") is None
    assert len(memory.take_news()) == ENDED_KEPT
    assert memory.take_news() == frozenset()


def mpijob(token: str, version: int, *, over: bool = False) -> dict[str, Any]:
    """As its watch tells it."""
    ends = [{"type": "Succeeded", "status": "True"}] if over else []
    meta = {"name": token, "namespace": "ns", "uid": token, "resourceVersion": str(version), "labels": {TOKEN: token}}
    return {"metadata": meta, "spec": {"runPolicy": {"suspend": False}}, "status": {"conditions": ends}}


def test_lists_of_two_kinds_leave_each_other_alone() -> None:
    """A list of one kind takes back nothing of the other; of MPIJobs, whose lists hold ended ones, those are kept that were known."""
    memory = Memory()
    plain = {**mpijob("plain", 1), "spec": {"suspend": False, "completions": 1}}
    memory.begin("jobs", [plain])
    memory.begin("mpijobs", [mpijob("solve", 2), mpijob("ancient", 1, over=True)])
    assert [memory.recall("ns", one) is not None for one in ("plain", "solve", "ancient")] == [True, True, False]
    memory.begin("mpijobs", [mpijob("solve", 3, over=True)])
    memory.begin("jobs", [])
    assert [memory.recall("ns", one) is not None for one in ("plain", "solve", "ancient")] == [False, True, False]
    memory.begin("mpijobs", [])
    assert len(memory) == 0
