"""
What can go wrong with boots, beside `kit.errors`.
"""

from controlplane.kit.errors import Conflict


class BootSettled(Conflict):
    """
    The boot has its outcome, and what the machine says now contradicts it.
    """

    code = "boot_settled"
    title = "The boot has ended another way"


class WrongMachine(Conflict):
    """
    The token belongs to another boot than the one that the machine names.
    """

    code = "wrong_machine"
    title = "The token belongs to another machine"


class OutputTaken(Conflict):
    """
    Another output of this test was taken from this boot before.
    """

    code = "output_taken"
    title = "The test has another output already"
