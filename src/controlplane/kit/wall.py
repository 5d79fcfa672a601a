"""
How far a transaction sees. Pure: rights are computed without a database.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wall:
    """
    What row-level security lets a transaction see: everything, one reseller's tenants, or one tenant. The empty wall sees nothing.
    """

    everything: bool = False
    """Operators and workers."""
    reseller_id: str = ""
    """All tenants of this reseller."""
    tenant_id: str = ""
    """This tenant only."""


EVERYTHING = Wall(everything=True)
