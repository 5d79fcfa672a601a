"""
The parts of an upgrade that are not workers: the head gets Slurm's new release before them, logins after them, both in place, by a
program among their files. What daemons say of themselves decides whether it is there.
"""

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, Roll
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.providers.clusters import ClusterView
from controlplane.rendering.slurm.releases import RELEASES

POLL_S = 5.0
HEAD, EVERYBODY = "head", "everybody"
SET_BACK = -1.0
"""Instead of a moment: the time of this part counts from the next look."""
IN_PLACE_LIMIT_S = 3 * 3600.0
"""A history of years is converted before a new slurmdbd answers; then a person is asked, and the host goes on trying."""
WRONG_LIMIT_S = 300.0
"""How long a host that is done may say that it has another release: the head tells of a worker's old daemon until its new one registers."""


def release_of(version: str) -> str:
    """
    The release that a version belongs to: `22.05` for `22.05.8`; empty for what is not known.
    """
    return ".".join(version.split(".")[:2])


def tell_head(cluster: ClusterSnapshot, plan: Roll) -> Outcome:
    """
    The head has the program that brings it to the release.
    """
    assert plan.install is not None
    facts = ClusterFacts(follow="head", renew="members", roll={"began_s": cluster.state_for_s})
    return Wait(f"The head is brought to Slurm {plan.install['release']}; running jobs go on.", POLL_S, step=HEAD, facts=facts)


def await_head(cluster: ClusterSnapshot, plan: Roll, see: ClusterView | None) -> Outcome:
    """
    The head has said that it is done, and its Slurm says the release. `see` is looked at only then; None before.
    """
    assert plan.install is not None
    release = plan.install["release"]
    behind = _behind(cluster, "head")
    if behind or see is None:
        return _patience(
            cluster, plan, behind, f"The head is brought to Slurm {release}; running jobs go on.", "upgrade_head_failed"
        )
    if release_of(see.version) != release:
        words = f"The head says that it has Slurm {see.version or 'of an unknown release'} and not {release}."
        return _patience(cluster, plan, [], words, "upgrade_head_release", WRONG_LIMIT_S)
    return Wait(f"The head has Slurm {see.version}.", 0.0, step="", facts=ClusterFacts(roll={"head_done": True}))


def tell_everybody(cluster: ClusterSnapshot, plan: Roll, see: ClusterView) -> Outcome:
    """
    With all workers at the release, logins follow, and from now on files say what only it understands. With others there, they cannot.
    """
    assert plan.install is not None
    release = plan.install["release"]
    workers = [one for one in staying(cluster) if one.role == "worker"]
    versions = {one.ref: one.version for one in see.members}
    older = [one for one in workers if release_of(versions.get(one.ref, "")) != release]
    if older:
        words = (
            f"{len(plan.done)} workers are upgraded; {len(older)} others do not have Slurm {release} yet, and logins follow them."
        )
        return Advance("running", words, facts=ClusterFacts())
    facts = ClusterFacts(follow="all", renew="members", roll={"began_s": cluster.state_for_s})
    return Wait(f"All {len(workers)} workers have Slurm {release}; logins follow.", POLL_S, step=EVERYBODY, facts=facts)


def await_everybody(cluster: ClusterSnapshot, plan: Roll) -> Outcome:
    """
    Heads and logins hold their files, and with them the release.
    """
    assert plan.install is not None
    behind = _behind(cluster, "head", "login")
    if behind:
        return _patience(cluster, plan, behind, "Logins are upgraded, and the head is told.", "upgrade_login_failed")
    return Advance("running", f"All hosts have Slurm {plan.install['release']}.", facts=ClusterFacts())


def odd_workers(
    cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot], see: ClusterView
) -> list[tuple[MemberSnapshot, str]]:
    """
    Workers of the batch whose daemons are not of the release that they should be, or that the head cannot serve; with what they say.
    """
    wanted = {plan.install["release"]} if plan.install else _served(cluster.release)
    versions = {one.ref: one.version for one in see.members}
    said = [(one, versions.get(one.ref, "")) for one in batch]
    return [(one, version) for one, version in said if release_of(version) not in wanted]


def await_release(cluster: ClusterSnapshot, plan: Roll, odd: list[tuple[MemberSnapshot, str]]) -> Outcome:
    """
    Some time passes; then the upgrade stops, and what is odd is installed once more when a person lets it go on.
    """
    wanted = plan.install["release"] if plan.install else " or ".join(sorted(_served(cluster.release)))
    said = ", ".join(f"{one.instance_id} ({version or 'not known'})" for one, version in odd)
    if cluster.state_for_s - plan.began_s < WRONG_LIMIT_S:
        return Wait(f"{len(odd)} workers do not say yet that they have Slurm {wanted}.", POLL_S)
    again = {one.allocation_id for one, _ in odd}
    left = [one for one in plan.started if one not in again]
    words = f"{said} came back without Slurm {wanted}; the upgrade has stopped."
    return Fail("upgrade_worker_release", words, facts=ClusterFacts(roll={"started": left, "began_s": SET_BACK}))


def _served(release: str) -> set[str]:
    """
    Releases of workers that a head of this release understands; a head's own alone where nothing is known of it.
    """
    known = next((one for one in RELEASES.values() if one.name == release), None)
    return {release, *(known.upgrades_from if known else ())}


def _behind(cluster: ClusterSnapshot, *roles: str) -> list[MemberSnapshot]:
    return [one for one in staying(cluster) if one.role in roles and not one.current]


def _patience(
    cluster: ClusterSnapshot, plan: Roll, behind: list[MemberSnapshot], words: str, code: str, limit_s: float = IN_PLACE_LIMIT_S
) -> Outcome:
    trouble = "; ".join(f"{one.instance_id}: {one.trouble}" for one in behind if one.trouble)[:2000]
    if cluster.state_for_s - plan.began_s < limit_s:
        return Wait(words, POLL_S, detail=trouble)
    facts = ClusterFacts(roll={"began_s": SET_BACK})
    return Fail(code, f"{words} It takes too long; the upgrade has stopped.", facts=facts, detail=trouble)
