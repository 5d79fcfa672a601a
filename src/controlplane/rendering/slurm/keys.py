"""
A cluster's own keys: nobody outside of it can speak to its daemons, and no other cluster's key opens it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controlplane.rendering.slurm.files import RenderedFile
from controlplane.rendering.slurm.layout import Layout
from controlplane.rendering.slurm.words import BadPlan

MUNGE_BYTES = 1024
"""Of a munge key. Source: munge(7): at least 32, and mungekey makes 128; the daemon takes all it finds up to 1024."""
JWT_BYTES = 64
"""Of Slurm's HS256 key. Source: slurm.schedmd.com/jwt.html asks for 32 at least."""
MIN_JWT_BYTES = 32
MUNGE_SECRET = "munge_key"  # noqa: S105 - a name, not a value
"""Name under which the munge key is kept."""
JWT_SECRET = "jwt_key"  # noqa: S105 - a name, not a value
"""Name under which the JWT key is kept, and which the Slurm adapter reads."""


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """
    The two keys of one cluster. Their repr shows neither.
    """

    munge: bytes = field(repr=False)
    """Signs messages between the daemons."""
    jwt: bytes = field(repr=False)
    """Signs tokens for slurmrestd."""

    def __post_init__(self) -> None:
        if len(self.munge) < 32 or len(self.munge) > MUNGE_BYTES:  # noqa: PLR2004 - munge's own bound
            raise BadPlan("keys: the munge key must have 32 to 1024 bytes", code="slurm_key_invalid")
        if len(self.jwt) < MIN_JWT_BYTES:
            raise BadPlan(f"keys: the JWT key must have {MIN_JWT_BYTES} bytes or more", code="slurm_key_invalid")

    def secrets(self) -> dict[str, str]:
        """
        Both as text, to be sealed.
        """
        return {MUNGE_SECRET: base64.b64encode(self.munge).decode(), JWT_SECRET: base64.b64encode(self.jwt).decode()}


def new_keys(random: Callable[[int], bytes]) -> ClusterKeys:
    """
    Keys made of this source of random bytes, which must be the system's (`os.urandom`).
    """
    return ClusterKeys(munge=random(MUNGE_BYTES), jwt=random(JWT_BYTES))


def read_keys(secrets: Mapping[str, str]) -> ClusterKeys:
    """
    The keys that `ClusterKeys.secrets` gave. Raises BadPlan, without a word of them.
    """
    try:
        return ClusterKeys(
            munge=base64.b64decode(secrets[MUNGE_SECRET], validate=True), jwt=base64.b64decode(secrets[JWT_SECRET], validate=True)
        )
    except (KeyError, binascii.Error):
        raise BadPlan("keys: not the keys of a cluster", code="slurm_key_invalid") from None


def munge_file(keys: ClusterKeys, layout: Layout) -> RenderedFile:
    """
    The key of munge, on every host: munged refuses one that others could read.
    """
    return RenderedFile(layout.munge_key, keys.munge, 0o400, "munge:munge", secret=True, on_change="munge")


def jwt_file(keys: ClusterKeys, layout: Layout) -> RenderedFile:
    """
    The key of tokens, on heads only: slurmctld and slurmdbd check tokens, everybody else only carries them.
    """
    return RenderedFile(jwt_path(layout), keys.jwt, 0o600, "slurm:slurm", secret=True, on_change="slurmctld")


def jwt_path(layout: Layout) -> str:
    """
    Where the key of tokens is.
    """
    return f"{layout.conf_dir}/jwt_hs256.key"
