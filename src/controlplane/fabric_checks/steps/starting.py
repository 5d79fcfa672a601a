"""
A check's nodes are made ready for tools.
"""

from controlplane.fabric_checks.states import CheckFacts, CheckSnapshot, Ran
from controlplane.fabric_checks.steps.meeting import call_together
from controlplane.fabric_checks.steps.stopping import stop_of
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.checks import SupportsFabricChecks
from controlplane.providers.errors import NotFound, Unsupported
from controlplane.providers.toolbox import Toolbox

LOOK_S = 5.0
CANNOT = "The provider has no tools between its nodes."


def make_ready(check: CheckSnapshot, tools: Toolbox) -> Outcome:
    """
    On to the tools once all machines are ready for them; where a provider has none, nothing is measured and the ledger says so.
    """
    if check.meeting is not None:
        return call_together(check, check.meeting)
    stop = stop_of(check)
    if stop is not None:
        return stop
    try:
        return _prepared(check, tools.fabric_checks(check.provider))
    except Unsupported:
        none = tuple(Ran(run, "not_measured", detail=CANNOT) for some in check.rounds for run in some)
        return Advance("judging", CANNOT, CheckFacts(none))


def _prepared(check: CheckSnapshot, peer: SupportsFabricChecks) -> Outcome:
    try:
        view = peer.observe_checks(check.id)
    except NotFound:
        peer.prepare_checks(check.id, check.refs)
        return Wait(f"{len(check.refs)} nodes are being made ready for tools.", LOOK_S)
    if view.ready:
        return Advance("running", f"{len(check.refs)} nodes are ready.")
    return Wait(f"{len(check.refs)} nodes are being made ready for tools.", LOOK_S)
