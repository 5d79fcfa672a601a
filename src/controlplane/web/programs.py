"""
What callers say of a program that runs for them: its image, its environment and the secrets that it is given.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from controlplane.web.schemas import Body, Out

MAX_VALUE_BYTES = 4 * 1024
MAX_ENV_BYTES = 128 * 1024
KEPT = frozenset({"proc", "sys", "dev", "etc", "run", "controlplane", "controlplane-secrets"})
"""First parts of paths where nothing of a caller's is mounted."""
_NO_VALUE = re.compile(r"[\x00\r\n]")


def _check_value(value: str) -> str:
    if _NO_VALUE.search(value):
        raise ValueError("a value cannot hold NUL or line ends")
    if len(value.encode(errors="replace")) > MAX_VALUE_BYTES:
        raise ValueError(f"a value has at most {MAX_VALUE_BYTES} bytes")
    return value


def _check_place(path: str) -> str:
    if path.split("/")[1] in KEPT:
        raise ValueError("nothing can be mounted there: it is the system's or ours")
    return path


def _check_size(env: dict[str, str]) -> dict[str, str]:
    if sum(len(name) + len(value.encode(errors="replace")) for name, value in env.items()) > MAX_ENV_BYTES:
        raise ValueError(f"the environment has at most {MAX_ENV_BYTES} bytes")
    return env


Image = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]
EnvName = Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
MountPath = Annotated[
    str, StringConstraints(max_length=512, pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}){1,8}$"), AfterValidator(_check_place)
]
Env = Annotated[dict[EnvName, Annotated[str, AfterValidator(_check_value)]], AfterValidator(_check_size)]
"""Names and values that every peer takes; a room may refuse more names."""


class GpuUse(Body):
    """
    What every GPU must be like; at least one thing is said.
    """

    model: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = Field(
        default=None, description="The model, as in the catalog.", examples=["H100-SXM5-80GB"]
    )
    min_memory_gib: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="At least so much memory, in GiB. What is sold as 80 GB has a little less than 80 GiB.",
        examples=[70],
    )
    nvlink: Literal[True] | None = Field(default=None, description="True: linked to its neighbours by NVLink.", examples=[True])

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.model is None and self.min_memory_gib is None and self.nvlink is None:
            raise ValueError("name a model, a memory or NVLink, or leave gpu out")
        return self


class GpuUseOut(Out):
    """
    What every GPU must be like.
    """

    model: str | None = Field(description="The model.", examples=["H100-SXM5-80GB"])
    min_memory_gib: int | None = Field(description="At least so much memory, in GiB.", examples=[70])
    nvlink: bool | None = Field(description="Whether it must have NVLink.", examples=[True])


class MigUse(Body):
    """
    Slices of partitioned GPUs, in the place of whole ones.
    """

    profile: Annotated[str, StringConstraints(max_length=24, pattern=r"^[1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z.]{1,8})?$")] = Field(
        description="The MIG profile, as in the catalog.", examples=["1g.10gb"]
    )
    per_node: int = Field(default=1, ge=1, le=112, description="How many of them on each node.", examples=[2])


class MigUseOut(Out):
    """
    Slices of partitioned GPUs.
    """

    profile: str = Field(description="The MIG profile.", examples=["1g.10gb"])
    per_node: int = Field(description="How many of them on each node.", examples=[2])
    slices: int = Field(description="Each is so many of the equal parts of a GPU's compute …", examples=[1])
    of_slices: int = Field(description="… of which the GPU has so many. Its GPU time is counted by that share.", examples=[7])


class SecretUse(Body):
    """
    A secret of the project that the program is given.
    """

    name: str = Field(min_length=1, max_length=63, description="The project's secret.", examples=["hub-token"])
    env: EnvName | None = Field(default=None, description="The variable that holds it.", examples=["HUB_TOKEN"])
    file: Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = Field(
        default=None, description="The file that holds it, below the folder that SECRETS_DIR names.", examples=[None]
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError("name either a variable or a file")
        return self


def check_ways(given: list[SecretUse]) -> list[SecretUse]:
    """
    The same; no variable and no file is named twice. Raises ValueError.
    """
    if len({one.env or f"/{one.file}" for one in given}) < len(given):
        raise ValueError("a variable or file is named twice")
    return given


class SecretUseOut(Out):
    """
    A secret of the project that a program is given; never its value.
    """

    name: str = Field(description="The project's secret.", examples=["hub-token"])
    env: str | None = Field(description="The variable that holds it.", examples=["HUB_TOKEN"])
    file: str | None = Field(description="The file that holds it.", examples=[None])
