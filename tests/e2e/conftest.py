"""
The real Slurm is for every end-to-end test that asks for it.
"""

from tests.slurm_kit import slurm_kit

__all__ = ["slurm_kit"]
