"""
Real peers for every end-to-end test that asks for one.
"""

from tests.e2e.rack import metal
from tests.hosts_kit import lab
from tests.slurm_kit import slurm_kit

__all__ = ["lab", "metal", "slurm_kit"]
