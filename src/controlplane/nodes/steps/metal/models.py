"""
GPU models as vendors print them, and as the catalog names them.
"""

import re
from collections.abc import Mapping

PRINTED: tuple[tuple[str, str], ...] = (
    (r"A100.*SXM4.*80 ?GB", "A100-SXM4-80GB"),
    (r"H100.*(PCIe|NVL)", ""),
    (r"H100.*80 ?GB.*HBM3|H100.*SXM5", "H100-SXM5-80GB"),
    (r"H200.*NVL", ""),
    (r"\bH200\b", "H200-SXM5-141GB"),
    (r"\bGB200\b", "GB200-NVL72-186GB"),
    (r"\bB200\b", "B200-SXM-180GB"),
)
"""
Pattern to catalog name, first match; empty where the shape is not one we can name by the print alone.

Source: names that `nvidia-smi` and BMCs print, as recorded in the trees and outputs our tests read.
"""


def catalog_model(printed: str, known: Mapping[str, str]) -> str:
    """
    The catalog's name of the model; what the operator's settings say (`gpu_models`) comes first, and an unknown print is itself.
    """
    trimmed = " ".join(printed.split())
    if trimmed in known:
        return known[trimmed]
    for pattern, name in PRINTED:
        if re.search(pattern, trimmed, re.IGNORECASE):
            return name
    return trimmed
