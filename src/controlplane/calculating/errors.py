"""
What a calculator refuses, beside what its bounds refuse.
"""

from controlplane.kit.errors import FieldError, Invalid


class CannotCalculate(Invalid):
    """
    The numbers do not go together; `errors` names the one to change.
    """

    code = "cannot_calculate"
    title = "The numbers do not go together"


class UnknownFacts(Invalid):
    """
    A model or GPU is named that nothing is known of: its numbers can be given instead.
    """

    code = "unknown_facts"
    title = "Nothing is known of this"


class EngineArchived(Invalid):
    """
    The engine is no longer maintained.
    """

    code = "engine_archived"
    title = "The engine is no longer maintained"


def refused(field: str, words: str) -> CannotCalculate:
    """
    The error that names the input.
    """
    return CannotCalculate(words, errors=[FieldError(f"body.{field}", "cannot_calculate", words)])


def unknown(field: str, words: str) -> UnknownFacts:
    """
    The error for a name that nothing is known of.
    """
    return UnknownFacts(words, errors=[FieldError(f"body.{field}", "unknown_facts", words)])
