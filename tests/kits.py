"""
What tests of real peers share: where the kits are, and what a test does when one cannot be used.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

CACHE = Path(os.environ.get("CONTROLPLANE_KITS", "/var/tmp/controlplane-kits"))
"""Where what kits install once is kept for later runs."""
KITS = Path(__file__).resolve().parents[2] / "shared" / "kits"


def unusable(peer: str, reason: str) -> NoReturn:
    """
    The test is skipped with the reason; in CI, where every peer must be there, it fails.
    """
    if os.environ.get("CONTROLPLANE_CI") == "1":
        pytest.fail(f"CI must run on a real {peer}, but {reason}")
    pytest.skip(f"no real {peer}: {reason}")
