"""
Amounts as Kubernetes writes them.
"""

from decimal import Decimal, InvalidOperation

_UNITS = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
}


def amount(text: str) -> Decimal:
    """
    The amount without its unit: `2Gi` is 2147483648, `500m` is 0.5. Zero for what is none.
    """
    unit = next((one for one in ("Ki", "Mi", "Gi", "Ti", "Pi", "m", "k", "M", "G", "T", "P") if text.endswith(one)), "")
    try:
        return Decimal(text.removesuffix(unit)) * _UNITS.get(unit, Decimal(1))
    except InvalidOperation:
        return Decimal(0)
