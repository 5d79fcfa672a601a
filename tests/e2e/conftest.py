"""
Real peers for every end-to-end test that asks for one.
"""

from tests.hosts_kit import lab
from tests.slurm_kit import slurm_kit

__all__ = ["lab", "slurm_kit"]
