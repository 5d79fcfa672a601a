"""
What callers say of a program that runs for them: its image and its environment.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

MAX_VALUE_BYTES = 4 * 1024
MAX_ENV_BYTES = 128 * 1024
_NO_VALUE = re.compile(r"[\x00\r\n]")


def _check_value(value: str) -> str:
    if _NO_VALUE.search(value):
        raise ValueError("a value cannot hold NUL or line ends")
    if len(value.encode(errors="replace")) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes")
    return value


def _check_size(env: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value.encode(errors="replace")) for name, value in env.items()) > MAX_ENV_BYTES:
        raise ValueError(f"the environment has at most {MAX_ENV_BYTES} bytes")
    return env


Image = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]
EnvName = Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Env = Annotated[dict[EnvName, Annotated[str, AfterValidator(_check_value)]], AfterValidator(_check_size)]
"""Names and values that every peer takes; a room may refuse more names."""
