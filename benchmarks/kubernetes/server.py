"""
The kit's API emulator as a process of its own, with what it lacks for these figures: logs, a memory of all requests, and finished jobs.

Run by the benchmark: `python benchmarks/kubernetes/server.py <port> <nodes> <job seconds> <finished jobs> [<seconds between turns>]`.
"""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

KIT = Path(__file__).resolve().parents[3] / "shared" / "kits" / "kubernetes" / "kube_emulator.py"
MENDED = (
    ("                for ev in list(self.hist):\n", "                past = list(self.hist)\n                for ev in past:\n"),
    ("self.hist[-1][0] if self.hist else start", "past[-1][0] if past else start"),
    (
        '            if marks and not initial and int(q.get("timeoutSeconds")',
        (
            "            while not queue.empty():\n"
            "                ev = queue.get_nowait()\n"
            "                if ev and ev[0] > start and ev[1] == res.key and translate(ev, hit, res):\n"
            "                    await send(translate(ev, hit, res))\n"
            '            if marks and not initial and int(q.get("timeoutSeconds")'
        ),
    ),
)
"""
A watch of the kit that opens or ends while much happens goes on behind events that it has not sent, which no API server does: what came
while it caught up, and what still waited when it named its last version.
"""
LOGS = "/log"
LEASES = "/kube-node-lease/leases/"


def kit() -> ModuleType:
    """
    The kit's module, with the selector `status.successful` over `status.succeeded` as a server has it, and watches that lose nothing.
    """
    text = KIT.read_text(encoding="utf-8")
    for was, is_now in MENDED:
        assert text.count(was) == 1, f"the kit has changed: {was}"
        text = text.replace(was, is_now)
    module = ModuleType("kube_emulator")
    sys.modules["kube_emulator"] = module
    exec(compile(text, str(KIT), "exec"), module.__dict__)
    literally = module.dig

    def dig(thing: Any, path: str) -> Any:
        return str((thing.get("status") or {}).get("succeeded") or 0) if path == "status.successful" else literally(thing, path)

    module.dig = dig  # type: ignore[attr-defined]
    return module


def equip(emulator: Any, module: ModuleType, finished: int) -> None:
    """
    Requests are remembered, logs told, kubelets alive, and lists show so many finished jobs with their pods once a first job has ended.
    """
    emulator.log = []
    route, listed, past = emulator.route, emulator.list, {}
    _index_pods(emulator)

    async def routed(request: Any) -> Any:
        if request.path.endswith(LOGS):
            await asyncio.sleep(0)
            return module.web.Response(body=b"done\n")
        if LEASES in request.path and request.method == "GET":
            renewed = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
            return module.reply({"metadata": {"name": request.path.rpartition("/")[2]}, "spec": {"renewTime": renewed}})
        return await route(request)

    def lists(res: Any, namespace: Any, query: Any) -> Any:
        if not past and finished:
            past.update(_past(emulator, finished))
        kept = emulator.data[res.key]
        try:
            emulator.data[res.key] = {**past.get(res.plural, {}), **kept}
            return listed(res, namespace, query)
        finally:
            emulator.data[res.key] = kept

    emulator.route, emulator.list = routed, lists


def _index_pods(emulator: Any) -> None:
    """
    A Job's pods are found by their owner. The kit looks through all pods for each Job at every turn, which with a thousand of each is all
    that it does.
    """
    commit, kids = emulator.commit, emulator.kids
    owned: defaultdict[str, dict[str, Any]] = defaultdict(dict)

    def committed(typ: str, res: Any, thing: Any, prev: Any = None) -> Any:
        made = commit(typ, res, thing, prev)
        for one in (thing["metadata"].get("ownerReferences") or []) if res.plural == "pods" else ():
            if typ == "DELETED":
                owned[one["uid"]].pop(thing["metadata"]["name"], None)
            else:
                owned[one["uid"]][thing["metadata"]["name"]] = made
        return made

    def found(plural: str, owner: Any, group: str = "") -> list[Any]:
        return list(owned[owner["metadata"]["uid"]].values()) if plural == "pods" else list(kids(plural, owner, group))

    emulator.commit, emulator.kids = committed, found


def _past(emulator: Any, count: int) -> dict[str, dict[tuple[str, str], Any]]:
    found: dict[str, dict[tuple[str, str], Any]] = {"jobs": {}, "pods": {}}
    for plural, group in (("jobs", "batch"), ("pods", "")):
        ended = [one for one in emulator.items(plural, group) if _is_over(one)]
        for number in range(count if ended else 0):
            name = f"past-{number}"
            kept = ended[0]["metadata"]
            labels = {**kept["labels"], "controlplane.internal/token": name}
            # spec and status are shared: nothing changes them, and a whole copy of each would keep the first list waiting for a minute
            found[plural][(kept["namespace"], name)] = {
                **ended[0],
                "metadata": {**kept, "name": name, "uid": name, "labels": labels},
            }
    return found if found["jobs"] else {}


def _is_over(thing: Any) -> bool:
    status = thing.get("status") or {}
    return status.get("phase") == "Succeeded" or bool(status.get("completionTime"))


def main(port: str, nodes: str, job_s: str, finished: str, turn_s: str = "0.02") -> None:
    """
    Serves until it is ended.
    """
    module = kit()
    emulator = module.Emulator(int(nodes), 8, 200_000, None, 0.01, float(job_s), tick=float(turn_s))
    equip(emulator, module, int(finished))
    module.web.run_app(emulator.app(), host="127.0.0.1", port=int(port), access_log=None, print=None, shutdown_timeout=0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
