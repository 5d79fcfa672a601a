"""
Every tool whose output is read, by name: which subjects it can speak of, and what it calls good by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from controlplane.measurements import burn, dcgm, linpack, nccl, perftest, smi
from controlplane.measurements.burn import parse_burn
from controlplane.measurements.dcgm import parse_dcgm_json
from controlplane.measurements.dcgm_table import parse_dcgm_table
from controlplane.measurements.figures import HasFigures, Measurement, Unit
from controlplane.measurements.linpack import parse_linpack
from controlplane.measurements.nccl import parse_nccl
from controlplane.measurements.perftest import parse_write_bandwidth
from controlplane.measurements.reading import UnreadableOutput
from controlplane.measurements.smi_text import parse_smi_text
from controlplane.measurements.smi_xml import parse_smi_xml
from controlplane.measurements.thresholds import Baseline

SubjectKind: TypeAlias = Literal["node", "pair", "leaf", "rail"]
ToolName: TypeAlias = Literal["nccl-tests", "dcgmi diag", "gpu-burn", "HPL", "ib_write_bw", "nvidia-smi"]
MOST_FIGURES: Final = 5000
LONGEST_NAME: Final = 120
LARGEST_VALUE: Final = 1e30
"""In any unit; sums and slopes of such values stay finite."""
OWN_VERDICTS: Final[Mapping[str, tuple[float | None, float | None]]] = {"_passed": (1.0, None), "_failed": (None, 0.0)}
"""Endings of figures in which a tool says by itself whether all is well: least and greatest value."""


@dataclass(frozen=True, slots=True)
class Tool:
    """
    One tool whose output is read.
    """

    says: str
    """What its errors call it."""
    kinds: frozenset[SubjectKind]
    """Of what its figures can be; single GPUs have an index of one node only."""
    read: Callable[[str, str], HasFigures]
    """Parses the whole output, given the name of the collective where the tool has several."""
    collective: bool = False
    """Whether the collective must be named."""


def _dcgm(text: str, _: str) -> HasFigures:
    return parse_dcgm_json(text) if text.lstrip().startswith("{") else parse_dcgm_table(text)


def _smi(text: str, _: str) -> HasFigures:
    return parse_smi_xml(text) if text.lstrip().startswith("<") else parse_smi_text(text)


_ANY: Final[frozenset[SubjectKind]] = frozenset({"node", "pair", "leaf", "rail"})
_NODE: Final[frozenset[SubjectKind]] = frozenset({"node"})
TOOLS: Final[Mapping[ToolName, Tool]] = {
    "nccl-tests": Tool(nccl.TOOL, _ANY, parse_nccl, collective=True),
    "dcgmi diag": Tool(dcgm.TOOL, _NODE, _dcgm),
    "gpu-burn": Tool(burn.TOOL, _NODE, lambda text, _: parse_burn(text)),
    "HPL": Tool(linpack.TOOL, _ANY, lambda text, _: parse_linpack(text)),
    "ib_write_bw": Tool(perftest.TOOL, frozenset({"node", "pair"}), lambda text, _: parse_write_bandwidth(text)),
    "nvidia-smi": Tool(smi.TOOL, _NODE, _smi),
}


def read_output(name: ToolName, text: str, collective: str = "") -> tuple[Measurement, ...]:
    """
    The figures in the whole output of the tool, of the subject it ran on and of its GPUs.

    Raises: UnreadableOutput when nothing in it may be used.
    """
    tool = TOOLS[name]
    found = tool.read(text, collective).figures()
    if len(found) > MOST_FIGURES:
        raise UnreadableOutput(tool.says, "it has more figures than any real one")
    if any(len(one.name) > LONGEST_NAME for one in found):
        raise UnreadableOutput(tool.says, "a test has a longer name than any real one")
    if any(abs(one.value or 0.0) > LARGEST_VALUE for one in found):
        raise UnreadableOutput(tool.says, "a figure is larger than any real one")
    return found


def own_baseline(name: str, unit: Unit) -> Baseline | None:
    """
    The baseline that a figure has by its nature, because it is the tool's own verdict; None for all that needs a limit of ours.
    """
    if unit != "yes":
        return None
    limits = next((limits for ending, limits in OWN_VERDICTS.items() if name.endswith(ending)), None)
    return None if limits is None else Baseline(name, unit, *limits)
