"""
Filters of lists that several rooms have.
"""

from collections.abc import Sequence

from controlplane.kit.errors import FieldError, Invalid


def label_filter(given: Sequence[str] | None) -> dict[str, str]:
    """
    The labels that are asked for as `key:value`, none without any. Raises Invalid for one that is written otherwise.
    """
    if any(":" not in one for one in given or ()):
        raise Invalid(
            "A label filter is written key:value.", errors=[FieldError("query.label", "invalid_label", "Write key:value.")]
        )
    return dict(one.split(":", 1) for one in given or ())
