"""
What can go wrong here, beside `kit.errors` and what calculators refuse themselves.
"""

from controlplane.kit.errors import Invalid


class UnknownCalculator(Invalid):
    """
    There is no calculator of this name.
    """

    code = "unknown_calculator"
    title = "There is no such calculator"
