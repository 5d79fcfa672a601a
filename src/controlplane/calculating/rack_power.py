"""
How many nodes a rack's power carries.
"""

from fractions import Fraction

from pydantic import Field

from controlplane.calculating.answers import Answer, Assumption, Source, Told, ceil_div, defaults_of
from controlplane.calculating.errors import refused
from controlplane.calculating.facts import Catalog, FactsName, GpuAsk, gpu_of, gpu_sources, inputs_of, shape_of

SOURCES = [
    Source(
        title="NVIDIA DGX SuperPOD: Data Center Design Featuring NVIDIA DGX H100 Systems",
        url="https://docs.nvidia.com/dgx-superpod/design-guides/dgx-superpod-data-center-design-h100/latest/planning.html",
        section="rack density: 1, 2 or 4 systems of 10.2 kW per rack",
    ),
]
FORMULAS = [
    "node_w = planned power of the instance type, or as given, or gpus_per_node * tdp_w + host_w",
    "budget_w = rack_w * (1 - reserve_share) - fixed_w",
    "nodes_per_rack = floor(budget_w / node_w), and at most floor(rack_units / node_units)",
    "racks = ceil(nodes / nodes_per_rack)",
    "full_rack_w = nodes_per_rack * node_w + fixed_w",
    "total_w = nodes * node_w + racks * fixed_w",
    "facility_w = total_w * pue",
]


class RackPowerAsk(GpuAsk):
    """
    A rack and what is to stand in it.
    """

    rack_w: int = Field(ge=1, le=10_000_000, description="Power that one rack may draw, in watts.", examples=[42_000])
    nodes: int = Field(default=1, ge=1, le=1_000_000, description="Nodes to be placed.", examples=[32])
    instance_type: FactsName | None = Field(
        default=None, description="A shape of `GET /v1/instance-types`: its planned power is taken.", examples=["hgx-h100-8"]
    )
    node_w: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Power of a node in watts, instead of an instance type.", examples=[None]
    )
    gpus_per_node: int | None = Field(
        default=None, ge=1, le=1024, description="GPUs per node; an instance type tells them itself.", examples=[None]
    )
    host_w: int | None = Field(
        default=None, ge=0, le=1_000_000, description="All of a node but its GPUs, in watts, where a GPU is named.", examples=[None]
    )
    fixed_w: int = Field(
        default=0, ge=0, le=10_000_000, description="What else stands in each rack: switches, in watts.", examples=[0]
    )
    reserve_share: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the rack's power that is kept free.", examples=[0.0]
    )
    rack_units: int = Field(default=42, ge=1, le=1000, description="Height of a rack.", examples=[48])
    node_units: int | None = Field(
        default=None, ge=1, le=1000, description="Height of a node; null: height sets no limit.", examples=[8]
    )
    pue: float | None = Field(
        default=None, ge=1, le=10, description="Power usage effectiveness of the site; null: no facility power.", examples=[1.3]
    )


class RackPowerResult(Told):
    """
    Racks and watts.
    """

    node_w: int | None = Field(description="Power of a node; null when not known.", examples=[10_200])
    nodes_per_rack: int | None = Field(description="Nodes that one rack carries.", examples=[4])
    limited_by: str | None = Field(description="`power` or `height`; null when not known.", examples=["power"])
    racks: int | None = Field(description="Racks for all nodes; null where a rack carries none.", examples=[8])
    gpus_per_rack: int | None = Field(description="GPUs in a full rack; null when not known.", examples=[32])
    full_rack_w: int | None = Field(description="What a full rack draws.", examples=[40_800])
    total_w: int | None = Field(description="What all racks draw.", examples=[326_400])
    facility_w: float | None = Field(description="The same with cooling and losses; null without pue.", examples=[424_320.0])


class RackPowerAnswer(Answer):
    """
    The rack power calculator's answer.
    """

    result: RackPowerResult = Field(description="Racks and watts.")


def rack_power(ask: RackPowerAsk, catalog: Catalog) -> RackPowerAnswer:
    """
    How many nodes a rack carries and what they draw. Raises CannotCalculate, UnknownFacts.
    """
    node_w, gpus = node_power(ask, catalog)
    result = RackPowerResult(**dict.fromkeys(RackPowerResult.model_fields)) if node_w is None else _result(ask, node_w, gpus)
    unknown = []
    if node_w is None:
        unknown.append(
            "The power of a node is not known: give node_w, an instance type, or a GPU of known power with gpus_per_node and host_w."
        )
    elif gpus is None:
        unknown.append("How many GPUs a node of that power has was not told.")
    return RackPowerAnswer(
        calculator="rack-power",
        result=result,
        formulas=FORMULAS,
        inputs=inputs_of(ask, None, gpu_of(catalog, ask)),
        assumptions=[*defaults_of(ask), *SUPPOSED],
        sources=[*SOURCES, *gpu_sources(catalog, ask)],
        unknown=unknown,
    )


SUPPOSED = [
    Assumption(
        name="draw",
        value="all nodes at their most",
        why="Planned power is the most that nodes draw at once; no diversity is counted on.",
    ),
]


def node_power(ask: RackPowerAsk, catalog: Catalog) -> tuple[int | None, int | None]:
    """
    Watts and GPUs of a node, each None when not known. Raises CannotCalculate, UnknownFacts.
    """
    gpu = gpu_of(catalog, ask)
    ways = [
        name
        for name, given in (("instance_type", ask.instance_type), ("node_w", ask.node_w), ("gpu_model", gpu))
        if given is not None
    ]
    if len(ways) != 1:
        raise refused("instance_type", "Give one of instance_type, node_w, gpu_model and gpu.")
    if ask.instance_type is not None:
        shape = shape_of(catalog, ask.instance_type)
        return shape.power_w, shape.gpus
    if gpu is None:
        return ask.node_w, ask.gpus_per_node
    if gpu.tdp_w is None or ask.host_w is None or ask.gpus_per_node is None:
        return None, ask.gpus_per_node
    return ask.gpus_per_node * gpu.tdp_w + ask.host_w, ask.gpus_per_node


def _result(ask: RackPowerAsk, node_w: int, gpus: int | None) -> RackPowerResult:
    share = 1 - Fraction(str(ask.reserve_share))
    budget_w = ask.rack_w * share.numerator // share.denominator - ask.fixed_w
    by_power = max(0, budget_w) // node_w
    by_height = by_power if ask.node_units is None else ask.rack_units // ask.node_units
    per_rack = min(by_power, by_height)
    racks = ceil_div(ask.nodes, per_rack) if per_rack else None
    total_w = None if racks is None else ask.nodes * node_w + racks * ask.fixed_w
    return RackPowerResult(
        node_w=node_w,
        nodes_per_rack=per_rack,
        limited_by="power" if by_power <= by_height else "height",
        racks=racks,
        gpus_per_rack=None if gpus is None else per_rack * gpus,
        full_rack_w=per_rack * node_w + ask.fixed_w,
        total_w=total_w,
        facility_w=None if total_w is None or ask.pue is None else total_w * ask.pue,
    )
