"""
Sites for tests.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog


def furnished(session: Session, *names: str) -> None:
    """
    The catalog is loaded and the sites are there.
    """
    catalog.load_catalog(session)
    for name in names:
        catalog.ensure_site(session, name, "eu-north", f"site {name}")
