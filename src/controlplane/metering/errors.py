"""
What can go wrong with prices and usage.
"""

from controlplane.kit.errors import Conflict


class PriceInPast(Conflict):
    """
    A list that others have been billed by is not changed afterwards: a new version holds from now on at the earliest.
    """

    code = "price_in_past"
    title = "A price version cannot start in the past"
