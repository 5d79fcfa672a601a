"""
A Kubernetes of its owner's own: hosts fetch their files by themselves, so a change is told by files, and seen by what its own API shows.
"""

from collections.abc import Mapping
from dataclasses import replace

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
from controlplane.clusters.steps import changing, running, verifying
from controlplane.clusters.steps.changing import DRAIN_POLL_S, EMPTY, POLL_S, RENEWED, Product, hosts_behind, look, workers_of
from controlplane.clusters.steps.wanted import staying
from controlplane.health.classes import SICK
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.providers.errors import NotSent, ProviderError, Unknown
from controlplane.providers.toolbox import Toolbox
from controlplane.rendering.kubernetes.laws import may_part

PARTING, PARTED, UNHEARD = "parting", "parted", "unheard"
SILENT = "The cluster's own API does not answer, so nothing is known of its nodes. Restart control planes that are off."


def bootstrap(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Every host holds the files of all members, and the cluster's API shows a Node for each.
    """
    behind = hosts_behind(cluster)
    if behind is not None:
        return behind
    hosts = staying(cluster)
    there = {one.ref for one in look(cluster, tools).members}
    missing = [one for one in hosts if one.ref not in there]
    if missing:
        return Wait(f"{len(missing)} of {len(hosts)} hosts have not joined yet.", POLL_S)
    return Advance("verifying", f"The control plane and all {len(workers_of(cluster))} workers have joined.")


def verify(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster runs, and is billed, once its API calls every host ready and every worker gives pods all its GPUs.
    """
    return verifying.verify(_counted(cluster), tools)


def watch(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    As for clusters of other kinds: degraded while hosts were not ready twice in a row; while the API does not answer nothing is known, and
    that is told in words. So is a control plane that is sick and cannot be replaced.
    """
    outcome = listen(_counted(cluster), tools)
    leads = [one for one in staying(cluster) if one.role == "control_plane"]
    sick = [one for one in leads if one.node_health in SICK]
    if not sick or not isinstance(outcome, (Advance, Wait)) or may_part(len(leads), len(leads) - len(sick)):
        return outcome
    words = (
        f"{len(sick)} of {len(leads)} control planes are not healthy: replacing one would cost the quorum. Restart the instances."
    )
    facts = outcome.facts if isinstance(outcome.facts, ClusterFacts) else ClusterFacts()
    issues = (*(facts.issues or ()), {"code": "quorum_at_risk", "message": words})
    return replace(outcome, facts=replace(facts, issues=issues))


def listen(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    What comes of a look at a cluster that runs, or that its API is silent.
    """
    try:
        return running.watch(cluster, tools)
    except (NotSent, Unknown) as error:
        return _unheard(cluster, error)


def _unheard(cluster: ClusterSnapshot, error: ProviderError) -> Outcome:
    """
    The API is the cluster's own: where it is silent twice in a row its owner can do something about it.
    """
    if cluster.step != UNHEARD:  # the next look may reach another control plane
        return Wait(SILENT, running.SECOND_LOOK_S, step=UNHEARD, detail=error.detail)
    facts = ClusterFacts(issues=({"code": "api_silent", "message": SILENT},))
    return Wait(SILENT, cluster.observe_interval_s, facts=facts, detail=error.detail)


def change(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Hosts that leave are emptied as far as disruption budgets allow before the API forgets them. A control plane has left, etcd too, before
    the one in its place is chosen: a member that is dead would keep the new one from joining.
    """
    parting = [one for one in cluster.members if one.role == "control_plane" and one.allocation_id in cluster.leaving]
    if not parting:
        return changing.change(cluster, tools, KUBERNETES)
    if cluster.step in {"", PARTING, PARTED}:
        return _part(cluster, tools, parting)
    if cluster.lacking > 0 or any(one.state == "held" for one in cluster.members):
        return Wait("Another control plane is being chosen.", 0.0, step="placing")
    if cluster.step != RENEWED:
        return Wait("The control planes are told of the new one.", 0.0, step=RENEWED, facts=ClusterFacts(renew="final"))
    return changing.change(cluster, tools, KUBERNETES)


def _part(cluster: ClusterSnapshot, tools: Toolbox, parting: list[MemberSnapshot]) -> Outcome:
    """
    One part of a control plane's way out; it ends with its Node, which goes after its member of etcd.
    """
    behind = None if cluster.step == "" else hosts_behind(cluster)
    if behind is not None:
        return behind
    states = {one.ref: one.state for one in look(cluster, tools).members}
    if all(one.ref not in states for one in parting):
        return Wait("It has left etcd and the API; another control plane is being chosen.", 0.0, step="placing")
    leads = [one for one in staying(cluster) if one.role == "control_plane"]
    ready = sum(1 for one in leads if states.get(one.ref) == "up")
    if cluster.step != PARTED and not may_part(len(leads) + len(parting), ready):
        words = f"{ready} of {len(leads)} other control planes are ready: they could not go on without the one that leaves."
        return Fail("quorum_at_risk", words)
    return _leave(cluster, states, parting)


def _leave(cluster: ClusterSnapshot, states: Mapping[str, str], parting: list[MemberSnapshot]) -> Outcome:
    if cluster.step == "":
        return Wait("The control plane that leaves is emptied.", 0.0, step=PARTING, facts=ClusterFacts(renew="drain"))
    words = "The control plane that leaves is taken out of etcd."
    if cluster.step == PARTED:  # etcd itself refuses what would cost its quorum
        return Wait(words, POLL_S)
    if any(states.get(one.ref, "absent") not in EMPTY for one in parting):
        return Wait("Waits for pods on the control plane that leaves.", DRAIN_POLL_S)
    return Wait(words, POLL_S, step=PARTED, facts=ClusterFacts(renew="final"))


def _counted(cluster: ClusterSnapshot) -> ClusterSnapshot:
    """
    The cluster as its API counts it: pods never get a control plane's GPUs.
    """
    return replace(cluster, members=tuple(replace(one, gpus=0) if one.role == "control_plane" else one for one in cluster.members))


KUBERNETES = Product(leader="control plane", work="pods", known=_counted)
