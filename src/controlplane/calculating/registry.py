"""
Every calculator by its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.calculating.answers import Answer, Ask
from controlplane.calculating.checkpoint import CheckpointAsk, checkpoint
from controlplane.calculating.engines import EngineAsk, propose_engine
from controlplane.calculating.facts import Catalog
from controlplane.calculating.inference_fit import InferenceFitAsk, inference_fit
from controlplane.calculating.kv_cache import KvCacheAsk, kv_cache
from controlplane.calculating.rack_power import RackPowerAsk, rack_power
from controlplane.calculating.training_memory import TrainingMemoryAsk, training_memory
from controlplane.calculating.training_time import TrainingTimeAsk, training_time


@dataclass(frozen=True, slots=True)
class Calculator:
    """
    One calculator.
    """

    name: str
    """As in its address."""
    summary: str
    """What it tells, in a few words."""
    ask: type[Ask]
    """What it takes."""
    answer: Callable[[Any, Catalog], Answer]
    """Pure: the same inputs and catalog give the same answer."""


_ALL = (
    Calculator(
        "checkpoint", "Size of a checkpoint, how often to write it, and how fast storage must be", CheckpointAsk, checkpoint
    ),
    Calculator("training-memory", "Memory of a GPU that training takes", TrainingMemoryAsk, training_memory),
    Calculator("training-time", "Time and GPU hours of training", TrainingTimeAsk, training_time),
    Calculator("kv-cache", "Memory of keys and values while serving", KvCacheAsk, kv_cache),
    Calculator("inference-fit", "Fewest GPUs that serve a model, and its parallelism", InferenceFitAsk, inference_fit),
    Calculator("rack-power", "Nodes that a rack's power carries", RackPowerAsk, rack_power),
    Calculator("engine", "Arguments of a serving engine for a model", EngineAsk, propose_engine),
)
CALCULATORS: Mapping[str, Calculator] = {one.name: one for one in _ALL}
