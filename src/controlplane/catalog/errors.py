"""
What can go wrong in the catalog, beside `kit.errors`.
"""

from controlplane.kit.errors import DomainError


class CatalogBroken(DomainError):
    """
    The catalog's own file does not hold together: a fault of ours, found at start.
    """

    code = "catalog_broken"
    title = "The catalog file is not usable"
