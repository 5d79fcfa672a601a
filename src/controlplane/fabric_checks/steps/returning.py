"""
A check lets go of its nodes.
"""

from controlplane.fabric_checks.states import CheckSnapshot
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.checks import SupportsFabricChecks
from controlplane.providers.errors import NotFound, Unsupported
from controlplane.providers.toolbox import Toolbox

GAP_S = 2.0
"""Between two looks that both must find nothing: one may be old."""
HOME_S = 5.0
WORDS = "Tools are ended; the nodes are free once nothing of the check is on them."


def let_go(check: CheckSnapshot, tools: Toolbox) -> Outcome:
    """
    Everything under the check's token is ended, and the provider was seen without it twice; only then is the check over. Machines that
    boot through us were seen without power, each after its boot was ended.
    """
    if check.meeting is not None:
        out = [one.node_id for one in check.meeting.guests.values() if not one.home]
        return Wait(f"{len(out)} machines are not yet switched off.", HOME_S) if out else Advance(check.end)
    try:
        return _given_up(check, tools.fabric_checks(check.provider))
    except Unsupported:
        return Advance(check.end)


def _given_up(check: CheckSnapshot, peer: SupportsFabricChecks) -> Outcome:
    if check.step not in {"ended", "absent"}:
        peer.end_checks(check.id)
        return Wait(WORDS, GAP_S, step="ended")
    try:
        peer.observe_checks(check.id)
    except NotFound:
        return Advance(check.end) if check.step == "absent" else Wait(WORDS, GAP_S, step="absent")
    return Wait(WORDS, GAP_S, step="")
