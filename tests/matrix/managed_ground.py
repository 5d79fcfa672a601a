"""
A management cluster whose API server, line and controllers go wrong as the case says, and a fleet of its hosts in our rows.

Every request of ours goes through here: the step that runs says whose it is, so many cases are played side by side on one server.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from controlplane import bootstrap, seeding
from controlplane.clusters.states import ClusterSnapshot
from controlplane.kit.ids import new_id
from controlplane.kit.outcome import Outcome
from controlplane.nodes import service as nodes
from controlplane.nodes.states import NodeSnapshot
from controlplane.providers.toolbox import Toolbox
from controlplane.quotas import service as quotas
from controlplane.settings import Settings
from tests.capi_kit import CONFIG, NODE_OF, CapiKit, capi_kit
from tests.conftest import Database
from tests.factories.world import MASTER_KEY, SharedClock, World, owner_of, second_tenant
from tests.kubernetes_kit import emulator_module, kubeconfig
from tests.matrix.cases import Case
from tests.matrix.driven import PLENTY, forget_silence
from tests.matrix.managed_cases import LOST, STATUS, WORLD, Plan, plan
from tests.matrix.managed_ledger import Ledger
from tests.tls_door import tls_door
from workers.sweeps import check_providers

SITE, TYPE = "site-one", "hgx-h100-8"
LONGEST_S = 0.8
"""A request that gets no answer is given up after it, by the adapter's settings."""
HANGS_AT_MOST = 2
"""Silence takes real time; afterwards the same fault is a reset."""
UNUSED = ("nodes", "quota", "deployments", "jobs", "scheduler", "kubelet")
"""The server's own controllers that have nothing to do here: no pod runs, and Nodes are made by whoever plays Cluster API."""
PAGE = 40
"""Objects in an answer: what many clusters have comes in several."""
LATE_S = 50.0
"""How much later a request is carried out that nobody waits for any more; an API server drops it after 60 s."""
TENANTS = re.compile(r"/tenants/([^/]+)(/.*)")
ADMIN = "an-administrators-canary-"
PLACES = (
    (re.compile(r"/baremetalhosts/[^/]+"), "host"),
    (re.compile(r"/baremetalhosts$"), "hosts"),
    (re.compile(r"/clusters/[^/]+"), "cluster"),
    (re.compile(r"/machines/[^/]+"), "machine"),
    (re.compile(r"/(machines|nodes|secrets|serviceaccounts|clusters)\b"), ""),
)


def call_of(method: str, path: str) -> str:
    """
    Which request it is, in the words of the cases.
    """
    verb = {"GET": "get", "PATCH": "patch", "DELETE": "delete", "POST": "post"}[method]
    for place, name in PLACES:
        found = place.search(path)
        if found is not None:
            listed = name == "hosts" or (not name and found[1] in {"machines", "nodes", "clusters"})
            return f"{name or found[1]}:{'list' if listed and verb == 'get' else verb}"
    return f"other:{verb}"


@dataclass
class Part:
    """
    A case and how often it was played.
    """

    case: Case
    """Which."""
    plan: Plan
    """Its numbers."""
    cluster: str = ""
    """The Cluster that it befalls, by name."""
    hosts: list[str] = field(default_factory=list)
    """The hosts that something is wrong with."""
    over: bool = False
    """Whether it is healed."""
    met: int = 0
    """Requests that fitted."""
    played: int = 0
    """Times it was played."""
    begun: bool = False
    """Whether what goes wrong behind the server has begun to."""


@dataclass
class Director:
    """
    Says which fault is played on a request.
    """

    clock: Callable[[], datetime]
    """The one clock."""
    parts: dict[str, Part] = field(default_factory=dict)
    """By node or cluster id."""
    last_of: dict[str, str] = field(default_factory=dict)
    """Node id to the cluster that had it last."""
    now: Part | None = None
    """Whose step runs."""
    state: str = ""
    """The state of what the step is about."""
    ref: str = ""
    """The host that it is about; empty for a cluster."""
    late: list[tuple[datetime, Callable[[], Awaitable[Any]]]] = field(default_factory=list)
    """Requests that are carried out later."""

    def enter(self, snapshot: Any) -> None:
        """A step of it is about to run."""
        self.state, self.ref, cluster_id = snapshot.state, getattr(snapshot, "ref", ""), ""
        if isinstance(snapshot, NodeSnapshot):
            if snapshot.tenancy is not None:
                self.last_of[snapshot.id] = snapshot.tenancy.cluster_id
            cluster_id = self.last_of.get(snapshot.id, "")
        elif isinstance(snapshot, ClusterSnapshot):
            cluster_id = snapshot.id
        found = self.parts.get(snapshot.id) or self.parts.get(cluster_id)
        self.now = found if found is not None and not found.over and self.state in found.plan.states else None

    def leave(self) -> None:
        """No step runs."""
        self.now, self.state, self.ref = None, "", ""

    def draw(self, call: str) -> str:
        """The fault to be played on this request; empty for none."""
        part = self.now
        if part is None or part.case.fault in WORLD or part.plan.call not in {"", call}:
            return ""
        part.met += 1
        if part.met <= part.plan.skip or (part.plan.count is not None and part.played >= part.plan.count):
            return ""
        part.played += 1
        if "silence" in part.case.fault and part.played > HANGS_AT_MOST:
            return part.case.fault.replace("silence", "reset")
        return part.case.fault


class ManagedTools(Toolbox):
    """
    A toolbox that tells the director whose step runs.
    """

    ground: ManagedGround

    def run(self, step: Any, snapshot: Any, *, attempt: int) -> tuple[Outcome, bool]:
        """See `Toolbox.run`."""
        self.ground.director.enter(snapshot)
        self.ground.befall()
        self.forget()  # of the cases beside it: circuits count real seconds, and here all steps are at one moment
        try:
            return super().run(step, snapshot, attempt=attempt)
        finally:
            self.ground.director.leave()

    def forget(self) -> None:
        """
        No circuit is open, the provider's nor a cluster's.
        """
        forget_silence(self)
        for _, adapter in self._adapters.values():
            for circuit in adapter.unguarded._tenants._circuits.values():
                circuit.closed_again_at = 0.0


class ManagedGround:
    """
    A fleet of so many hosts at one management cluster, free once they have been looked at.
    """

    adapter = "clusterapi"

    def __init__(self, database: Database, folder: Path, count: int) -> None:
        self._held = ExitStack()
        keys = seeding.sow_people(database.engine, "USD", site=SITE)
        self.clock = SharedClock(database)
        settings = Settings(
            database_url=database.app_url,  # type: ignore[arg-type]
            owner_database_url=database.owner_url,  # type: ignore[arg-type]
            data_dir=folder,
            master_key=MASTER_KEY,  # type: ignore[arg-type]
        )
        owner = owner_of(database, keys)
        people = ((owner, keys.project_id), second_tenant(database, keys))
        self.director = Director(self.clock)
        self.kit: CapiKit = self._held.enter_context(capi_kit(hosts=count))
        self._door = self._held.enter_context(tls_door(self.kit.kit.handle.port, folder))
        region = seeding.Region(folder / "none.sqlite")
        drivers = dict(bootstrap.drivers(database.engine, settings))
        self.world = World(database, settings, keys, owner, drivers, self._tools(), region, self.clock, people)
        self._admins: dict[str, int] = {}
        self._pairs: dict[str, int] = {}
        self.ledger = Ledger(self.kit, self.clock)
        self._install()
        self.world.do(self._raise_limits)
        self.ids: list[str] = self.world.do(lambda s: self._enrol(s, count))
        check_providers(self.world.engine, self.world.tools)

    def _tools(self) -> ManagedTools:
        tools = ManagedTools(
            deployment="cp", now=self.clock, open_secrets=lambda _provider, _sealed: {"kubeconfig": self.kit.kit.kubeconfig}
        )
        tools.ground = self
        return tools

    def _raise_limits(self, session: Any) -> None:
        for scope_id in (self.world.keys.tenant_id, *(project for _, project in self.world.people)):
            scope = quotas.find_scope(session, scope_id)
            if scope is not None:
                for resource in ("gpus", "clusters", "operations"):
                    quotas.set_limit(session, scope, resource, PLENTY)  # type: ignore[arg-type]
        session.connection().exec_driver_sql(f"UPDATE quotas SET ceiling = {PLENTY} WHERE ceiling IS NOT NULL")

    def _enrol(self, session: Any, count: int) -> list[str]:
        told = {"machine_classes": {TYPE: "h100"}, "page_size": PAGE, "timeout_s": LONGEST_S, "cluster_timeout_s": LONGEST_S}
        new = nodes.NewProvider(
            name="capi",
            adapter="clusterapi",
            site=SITE,
            config={**CONFIG, **told},
            sealed=None,
            capabilities={},
            shared=True,
            provider_id=new_id("prv"),
        )
        nodes.register_provider(session, new)
        rows = [nodes.NewNode(f"metal-{number:02d}", "b0", "l0", "r0", None, TYPE, 8) for number in range(count)]
        return nodes.enroll_from(session, new.provider_id, rows)

    # Behind the server

    def befall(self) -> None:
        """
        What goes wrong behind the server for the step that is about to run has begun to.
        """
        part = self.director.now
        if part is None or part.case.fault not in WORLD or part.begun:
            return
        hosts = [self.director.ref] if self.director.ref else self.ledger.hosts_of(part.cluster)
        if not hosts:
            return
        part.hosts = hosts
        part.begun = self.at_the_peer(lambda: self._begin(part, hosts))
        part.played += part.begun

    def at_the_peer(self, act: Callable[[], Any]) -> Any:
        """
        It was done where the server's objects are.
        """

        async def once() -> Any:
            return act()

        loop = self.kit.emulator.task.get_loop()
        return asyncio.run_coroutine_threadsafe(once(), loop).result(timeout=30)

    def _begin(self, part: Part, hosts: list[str]) -> bool:
        controllers, fault, name = self.kit.controllers, part.case.fault, part.cluster
        if fault in {"controllers_stand_still", "finalizer_hangs"}:
            (controllers.still if fault == "controllers_stand_still" else controllers.held).add(name)
        elif fault == "kubeconfig_renewed":
            self._admins[name] = self._admins.get(name, 0) + 1
            self._write_kubeconfig(name)
        elif fault == "kubeconfig_revoked":
            self._admins[name] = self._admins.get(name, 0) + 1
        elif fault == "kubeconfig_garbled":
            return self.ledger.edit_secret(name, base64.b64encode(b"{").decode())
        elif fault in {"metal3_stands_still", "host_in_trouble"}:
            controllers.stuck.update(hosts)
            if fault == "host_in_trouble":
                self.ledger.trouble(hosts, "power management error: the BMC does not answer")
        elif fault in {"budget_holds", "never_joins"}:
            (controllers.budgets if fault == "budget_holds" else controllers.deaf).update(hosts)
        elif fault == "machine_deleted":
            return self.ledger.delete_machine(name)
        else:
            return self.ledger.touch_nodes(name, silent=fault == "node_silent")
        return True

    def heal(self, *cases: Case) -> None:
        """
        Of these cases, or of all, nothing goes wrong any more, what was late has come, and who worked is a new process.
        """
        chosen = [one for one in self.director.parts.values() if not one.over and (not cases or one.case in cases)]
        for part in chosen:
            part.over = True
        self.pass_time(everything=True)
        for part in chosen:
            self.at_the_peer(lambda one=part: self._mend(one))  # type: ignore[misc]
        self.restart()

    def restart(self) -> None:
        """
        Who works is a new process.
        """
        self.world.tools.close()
        self.world.tools = self._tools()

    def _mend(self, part: Part) -> None:
        controllers, name = self.kit.controllers, part.cluster
        hosts = part.hosts
        if part.case.fault not in WORLD or not part.begun:
            return
        for some in (controllers.still, controllers.held):
            some.discard(name)
        for some in (controllers.stuck, controllers.deaf, controllers.budgets):
            some.difference_update(hosts)
        self.ledger.trouble(hosts, "")
        self.ledger.touch_nodes(name, silent=None)
        if part.case.fault in {"kubeconfig_revoked", "kubeconfig_garbled"}:
            self._write_kubeconfig(name)

    def _write_kubeconfig(self, name: str) -> None:
        ca = base64.b64encode(self._door.ca_pem.encode()).decode()
        token = f"{ADMIN}{name}-{self._admins.get(name, 0)}"
        text = kubeconfig(f"{self._door.url}/tenants/{name}", {"token": token}, **{"certificate-authority-data": ca})
        self.ledger.edit_secret(name, base64.b64encode(text.encode()).decode())

    # The server and the line to it

    def _install(self) -> None:
        emulator, step = self.kit.emulator, self.kit.controllers.step
        inner = emulator.route
        self.kit.controllers.clock = lambda: self.clock().timestamp()

        def stepped() -> None:
            known = set(self.ledger.clusters())
            step()
            for name in self.ledger.clusters():
                if name not in self._pairs and self.ledger.has_secret(name):
                    self._pairs[name] = 1
                    self._write_kubeconfig(name)
            for name in known - set(self.ledger.clusters()):
                self._pairs.pop(name, None)
            self.ledger.look()

        async def route(request: Any) -> Any:
            if request.path.startswith("/_emu") or request.headers.get("User-Agent", "").startswith("admin"):
                return await inner(request)
            module = emulator_module()
            try:
                answer = await self._serve(request, inner)
            except module.Fail as wrong:
                answer = module.reply(wrong.body, status=wrong.code, headers=wrong.headers)
            answer.headers["Date"] = format_datetime(self.clock(), usegmt=True)
            return answer

        def install() -> None:
            self.kit.controllers.step = stepped  # type: ignore[method-assign]
            emulator.c_pdb = lambda: None  # controllers have their turn between ours, so that a seed's course is always the same
            emulator.route = route
            emulator.paused.update(dict.fromkeys(UNUSED, True))

        self.at_the_peer(install)

    async def _serve(self, request: Any, inner: Any) -> Any:
        module, transport = emulator_module(), request.transport
        asked = TENANTS.match(request.path_qs)
        if asked is not None:
            shown = request.headers.get("Authorization", "")
            headers = {key: value for key, value in request.headers.items() if key != "Authorization"}
            path = asked[2]
            if call_of(request.method, path.partition("?")[0]) == "nodes:list":  # one server stands for all: each shows its own
                path += f"{'&' if '?' in path else '?'}labelSelector={NODE_OF}%3D{asked[1]}"
            request = request.clone(rel_url=path, headers=headers)
            if shown != f"Bearer {ADMIN}{asked[1]}-{self._admins.get(asked[1], 0)}":
                raise module.Fail(401, "Unauthorized", "Unauthorized")
        await request.read()
        fault = self.director.draw(call_of(request.method, request.path))
        if not fault:
            return await inner(request)
        return await self._wrong(fault, request, inner, transport)

    async def _wrong(self, fault: str, request: Any, inner: Any, transport: Any) -> Any:
        module = emulator_module()
        if fault in STATUS:
            status, reason, message = STATUS[fault]
            headers = {"Retry-After": "7"} if fault.endswith("retry_after") else None
            raise module.Fail(status, reason, message, headers=headers)
        if fault == "late":
            self.director.late.append((self.clock() + timedelta(seconds=LATE_S), lambda: inner(request)))
        answer: Any = await inner(request) if fault in {*LOST, "twice", "truncated"} else None
        if fault == "twice":
            return await inner(request)
        if fault in {"silence", "effect_then_silence"}:
            await asyncio.sleep(LONGEST_S * 1.5)
        if fault in {"silence", "effect_then_silence", "reset", "effect_then_reset", "away", "late"}:
            transport.abort()
            return module.web.Response()
        if fault == "effect_then_500":
            raise module.Fail(500, "InternalError", "etcdserver: request timed out, possibly due to previous leader failure")
        texts = {"page_404": "404 page not found", "html": "<html>Welcome</html>", "a_list": "[1, 2]", "effect_then_garbage": "{"}
        if fault == "truncated":
            return module.web.Response(text=answer.text[: len(answer.text) // 2], content_type="application/json")
        return module.web.Response(status=404 if fault == "page_404" else 200, text=texts[fault])

    def pass_time(self, *, everything: bool = False) -> None:
        """
        Requests whose time has come have been carried out.
        """
        now = self.clock()
        due = [one for one in self.director.late if everything or one[0] <= now]
        self.director.late = [one for one in self.director.late if one not in due]
        loop = self.kit.emulator.task.get_loop()
        for _, carry_out in due:
            asyncio.run_coroutine_threadsafe(self._late(carry_out), loop).result(timeout=30)

    async def _late(self, carry_out: Callable[[], Awaitable[Any]]) -> None:
        try:
            await carry_out()
        except emulator_module().Fail:
            return  # the server refused it, and nobody hears that

    # What the matrix asks

    def cast(self, one: str, case: Case) -> None:
        """
        The case is played on the node, or cluster, of this id.
        """
        cluster = f"cp-{one}".replace("_", "-") if one not in self.ids else ""
        self.director.parts[one] = Part(case, plan(case), cluster)

    def live(self) -> int:
        """
        Everybody behind the server has done what can be done now.
        """
        self.world.tools.forget()
        self.pass_time()
        before = self.kit.emulator.rv
        self.kit.settle()
        return int(self.kit.emulator.rv != before)

    def plan_of(self, case: Case) -> Plan:
        """
        The case's numbers.
        """
        return plan(case)

    @contextmanager
    def asking(self, cluster_id: str) -> Iterator[None]:
        """
        Within the block somebody asks for a way into the cluster.
        """
        part = self.director.parts.get(cluster_id)
        self.director.now = part if part is not None and not part.over and "asked" in part.plan.states else None
        self.befall()
        try:
            yield
        finally:
            self.director.leave()

    def close(self) -> None:
        """
        Nothing is held.
        """
        self.world.tools.close()
        self._held.close()
        self.clock.stop()
