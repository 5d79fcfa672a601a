"""
What a job with the scheduler can wait for in vain: an image, a GPU or a quota that does not come. Pure.

Since when it does is kept in the step of its state, `<code>@<seconds in the state>`: by our database's clock, whatever the peer's says.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SINCE = re.compile(r"([a-z_]+)@(\d+)")
_CODE = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Hopeless:
    """
    One thing that is waited for in vain.
    """

    reasons: frozenset[str]
    """Codes of schedulers by which it shows."""
    patience_s: float
    """How long it may pass by itself."""
    failure_class: str
    """Of an attempt that is given up for it."""
    words: str
    """Why, for its owner."""


HOPELESS: Mapping[str, Hopeless] = {
    "image_not_pulled": Hopeless(
        frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}),
        600.0,
        "user_error",
        "The image cannot be pulled.",
    ),
    "registry_unavailable": Hopeless(
        frozenset({"RegistryUnavailable"}), 1800.0, "provider_fault", "The image cannot be pulled: its registry does not answer."
    ),
    "container_not_made": Hopeless(
        frozenset({"CreateContainerConfigError", "CreateContainerError"}), 600.0, "unknown", "Its container cannot be set up."
    ),
    "no_such_node": Hopeless(frozenset({"NoSuchNode"}), 3600.0, "user_error", "No node of the cluster has such GPUs."),
    # a quota frees itself when other jobs end; that its pods are missing may have other causes, which nobody tells apart for us
    "quota_used_up": Hopeless(
        frozenset({"PodsMissing"}), 86_400.0, "unknown", "Its pods never came: the cluster's quota may be used up."
    ),
}
"""By the code of the issue that shows it."""
_BY_REASON = {reason: code for code, one in HOPELESS.items() for reason in one.reasons}
PASSING = frozenset({"", "None", "PodsStarting"})
"""Codes that say nothing: what is waited for may still be the same."""


def waits_for(step: str) -> str:
    """
    The code of what a job in this step was last seen waiting for in vain; empty for none.
    """
    found = _SINCE.fullmatch(step)
    return found[1] if found is not None and found[1] in HOPELESS else ""


def next_step(step: str, reason: str, state_age_s: float) -> str:
    """
    The step of a job whose scheduler gives this reason: it keeps since when the wait has been in vain, and is empty where it is not.
    """
    found = _CODE.match(reason)
    word = found[0] if found is not None else ""
    if word in PASSING:
        return step
    code = _BY_REASON.get(word)
    if code is None:
        return ""
    return step if waits_for(step) == code else f"{code}@{state_age_s:.0f}"


def given_up(step: str, reason: str, state_age_s: float) -> str:
    """
    The code of what the job still waits for and has waited for long enough; empty while there is hope.
    """
    found, word = _SINCE.fullmatch(step), _CODE.match(reason)
    code = waits_for(step)
    if found is None or word is None or _BY_REASON.get(word[0]) != code:
        return ""
    return code if code and state_age_s - int(found[2]) >= HOPELESS[code].patience_s else ""


def hopeless_of(issues: Sequence[Mapping[str, Any]]) -> str:
    """
    The code of what the attempt was given up for, by its issues; empty where it was not.
    """
    return next((one["code"] for one in issues if one["code"] in HOPELESS), "")
