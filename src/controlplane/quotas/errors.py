"""
What can go wrong with quotas, beside `kit.errors.QuotaExceeded`.
"""

from controlplane.kit.errors import Conflict


class LimitAboveCeiling(Conflict):
    """
    A seller may not promise one customer more than it was given: fields `resource`, `gpu_model`, `site`, `limit`, `requested`.
    """

    code = "limit_above_ceiling"
    title = "The limit is above the seller's own"
