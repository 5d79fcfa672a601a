"""
What can go wrong with measurements, baselines and policies, beside `kit.errors`.
"""

from controlplane.kit.errors import Conflict, Invalid


class UnreadableMeasurement(Invalid):
    """
    The output is not a whole output of the named tool; field `line` where one line is to blame.
    """

    code = "unreadable_output"
    title = "The tool's output cannot be read"


class RunRecorded(Conflict):
    """
    The run is recorded for this subject and tool already, from another output; field `run_id`.
    """

    code = "run_recorded"
    title = "The run is recorded already"


class BaselineExists(Conflict):
    """
    There is a baseline for this figure of these subjects already; field `baseline_id`.
    """

    code = "baseline_exists"
    title = "There is such a baseline already"


class BaselineWithdrawn(Conflict):
    """
    The baseline is withdrawn: it has no further versions until it is set anew.
    """

    code = "baseline_withdrawn"
    title = "The baseline is withdrawn"
