"""
One snapshot of the fleet as numpy columns, in an order in which every fabric domain is one run of rows.

Rows are sorted by site, block, leaf, NVLink domain, rack, node id, whatever order they came in. So a domain is a half-open range of
rows, counting free nodes per domain is a running sum, and "the first by name" is the lowest code. Nothing here reads a clock, a
database or a network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32]
BoolArray: TypeAlias = NDArray[np.bool_]
DomainKind: TypeAlias = Literal["nvlink_domain", "leaf", "block", "site"]

KINDS: Final[tuple[DomainKind, ...]] = ("nvlink_domain", "leaf", "block", "site")
NVLINK_DOMAIN: Final = 0
LEAF: Final = 1
BLOCK: Final = 2
SITE: Final = 3

NOTHING: Final = -1
"""The offer of a node that may not be placed on; also the code of an absent NVLink domain or blocked reason."""


class NodeRow(NamedTuple):
    """
    One node as the inventory knows it at the moment of the snapshot.
    """

    id: str
    """The node's id; unique in the fleet."""
    site: str
    """Name of the site."""
    block: str
    """Name of the block inside its site."""
    leaf: str
    """Name of the leaf inside its block."""
    rack: str
    """Name of the rack inside its leaf."""
    nvlink_domain: str | None
    """Name of the NVLink domain inside its leaf; None where the node is a domain of its own (HGX)."""
    instance_type: str
    """Name of the sellable shape."""
    gpus: int
    """GPUs in the node."""
    free_gpus: int
    """GPUs that nobody holds."""
    available: bool
    """True where the state, the holds and the health allow new work."""
    blocked_reason: str | None
    """Why not, in one word, where `available` is False."""


@dataclass(frozen=True, eq=False)
class Level:
    """
    One kind of fabric domain: which rows and which smaller domains each of them holds.
    """

    kind: DomainKind
    """What a domain of this level is called."""
    of_row: IntArray
    """Domain of each row, shape (n_nodes,), never decreasing."""
    row_start: IntArray
    """First row of each domain and the number of rows at the end, shape (n_domains + 1,)."""
    child_start: IntArray
    """First domain of the level below, same shape; rows where this is the lowest level."""
    parent: IntArray
    """Domain of the level above, shape (n_domains,); empty at the top."""
    largest_nodes: int
    """Nodes in the largest domain."""

    @property
    def size(self) -> int:
        """
        The number of domains.
        """
        return len(self.row_start) - 1

    def rows(self, code: int) -> slice:
        """
        The rows of one domain.
        """
        return slice(int(self.row_start[code]), int(self.row_start[code + 1]))


@dataclass(frozen=True, eq=False)
class Fleet:
    """
    The fleet at one moment; columns are read-only and have shape (n_nodes,).
    """

    node_ids: tuple[str, ...]
    """Node ids."""
    row_of: Mapping[str, int]
    """Row of each node id."""
    site: IntArray
    """Site codes."""
    site_names: tuple[str, ...]
    """Name per site code, sorted."""
    block: IntArray
    """Block codes, unique over all sites."""
    block_names: tuple[str, ...]
    """Name per block code; may repeat in another site."""
    leaf: IntArray
    """Leaf codes, unique over all blocks."""
    leaf_names: tuple[str, ...]
    """Name per leaf code; may repeat in another block."""
    rack: IntArray
    """Rack codes, unique over all leaves."""
    rack_names: tuple[str, ...]
    """Name per rack code; may repeat in another leaf."""
    nvlink_domain: IntArray
    """NVLink domain codes, unique over all leaves; -1 where the node is a domain of its own."""
    nvlink_domain_names: tuple[str, ...]
    """Name per NVLink domain code."""
    instance_type: IntArray
    """Instance type codes."""
    instance_type_names: tuple[str, ...]
    """Name per instance type code, sorted."""
    instance_type_gpus: tuple[int, ...]
    """GPUs of a whole node per instance type code: what most of its nodes have."""
    gpus: IntArray
    """GPUs in the node."""
    free_gpus: IntArray
    """GPUs that nobody holds."""
    available: BoolArray
    """True where state, holds and health allow new work."""
    blocked_reason: IntArray
    """Reason codes; -1 where none was given."""
    blocked_reason_names: tuple[str, ...]
    """Name per reason code, sorted."""
    capacity: IntArray
    """GPUs the node could offer if the fleet were empty and well: less than the type's GPUs where the node lacks some."""
    offer: IntArray
    """GPUs the node offers now; -1 where it is blocked, the type's GPUs where it is wholly free."""
    levels: tuple[Level, Level, Level, Level]
    """NVLink domains (a node without one counts as its own), leaves, blocks, sites."""

    @classmethod
    def from_rows(cls, rows: Iterable[NodeRow | tuple[Any, ...]]) -> Fleet:
        """
        A fleet that holds these rows, the same one whatever their order.

        Raises: ValueError when two rows have the same id.
        """
        columns: Sequence[Sequence[Any]] = tuple(zip(*rows, strict=True)) or ((),) * len(NodeRow._fields)
        raw = NodeRow(*columns)  # type: ignore[arg-type]  # whole columns under the row's names
        ids: Sequence[str] = columns[0]
        site, site_names = _by_name(columns[1])
        block, block_names = _inside(site, columns[2])
        leaf, leaf_names = _inside(block, columns[3])
        rack, rack_names = _inside(leaf, columns[4])
        nvlink, nvlink_names = _inside(leaf, columns[5])
        order = _tree_order(ids, rack, nvlink, leaf)
        node_ids = tuple(map(ids.__getitem__, order.tolist()))
        row_of = _rows_by_id(node_ids)
        kind, kind_names = _by_name(columns[6])
        kind, gpus, free = kind[order], _integers(raw.gpus)[order], _integers(raw.free_gpus)[order]
        available = np.asarray(raw.available, dtype=np.bool_)[order]
        reason, reason_names = _by_name(columns[10])
        kind_gpus = _usual_gpus(kind, gpus, len(kind_names))
        capacity, offer = _offers(kind_gpus[kind], gpus, free, available)
        site, block, leaf, nvlink = site[order], block[order], leaf[order], nvlink[order]
        return cls(
            node_ids=node_ids,
            row_of=row_of,
            site=_frozen(site),
            site_names=site_names,
            block=_frozen(block),
            block_names=block_names,
            leaf=_frozen(leaf),
            leaf_names=leaf_names,
            rack=_frozen(rack[order]),
            rack_names=rack_names,
            nvlink_domain=_frozen(nvlink),
            nvlink_domain_names=nvlink_names,
            instance_type=_frozen(kind),
            instance_type_names=kind_names,
            instance_type_gpus=tuple(kind_gpus.tolist()),
            gpus=_frozen(gpus),
            free_gpus=_frozen(free),
            available=_frozen(available),
            blocked_reason=_frozen(reason[order]),
            blocked_reason_names=reason_names,
            capacity=_frozen(capacity),
            offer=_frozen(offer),
            levels=_levels(nvlink, leaf, block, site),
        )

    def __len__(self) -> int:
        return len(self.node_ids)

    def path(self, level: int, code: int) -> tuple[str, ...]:
        """
        The names from the site down to this domain; a node that is its own NVLink domain gives its id.
        """
        row = int(self.levels[level].row_start[code])
        names = [self.site_names[self.site[row]], self.block_names[self.block[row]], self.leaf_names[self.leaf[row]]]
        nvlink = int(self.nvlink_domain[row])
        names.append(self.node_ids[row] if nvlink == NOTHING else self.nvlink_domain_names[nvlink])
        return tuple(names[: SITE - level + 1])

    def span(self, level: int, root: tuple[int, int] | None) -> tuple[int, int]:
        """
        The half-open range of domains of `level` that lie in the domain `root` (level, code); all where root is None.
        """
        target = self.levels[level]
        if root is None:
            return 0, target.size
        rows = self.levels[root[0]].rows(root[1])
        return int(target.of_row[rows.start]), int(target.of_row[rows.stop - 1]) + 1


def _by_name(column: Sequence[str | None]) -> tuple[IntArray, tuple[str, ...]]:
    names = sorted(name for name in set(column) if name is not None)
    code_of: dict[str | None, int] = {name: code for code, name in enumerate(names)}
    code_of[None] = NOTHING
    return np.fromiter(map(code_of.__getitem__, column), np.int32, len(column)), tuple(names)


def _inside(parent: IntArray, column: Sequence[str | None]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes that are unique per (parent, name) and rise in that order."""
    local, names = _by_name(column)
    codes = np.full(len(local), NOTHING, np.int32)
    named = local != NOTHING
    width = max(len(names), 1)
    keys, inverse = np.unique(parent[named].astype(np.int64) * width + local[named], return_inverse=True)
    codes[named] = inverse
    return codes, tuple(names[key] for key in (keys % width).tolist())


def _tree_order(ids: Sequence[str], rack: IntArray, nvlink: IntArray, leaf: IntArray) -> NDArray[np.int64]:
    """Rows by leaf (whose codes rise by site and block), NVLink domain, rack and id."""
    by_id = np.fromiter(sorted(range(len(ids)), key=ids.__getitem__), np.int64, len(ids))
    order: NDArray[np.int64] = by_id[np.lexsort((rack[by_id], nvlink[by_id], leaf[by_id]))]
    return order


def _rows_by_id(node_ids: tuple[str, ...]) -> dict[str, int]:
    row_of = dict(zip(node_ids, range(len(node_ids)), strict=True))
    if len(row_of) < len(node_ids):
        seen: set[str] = set()
        repeated = sorted({one for one in node_ids if one in seen or seen.add(one)})  # type: ignore[func-returns-value]
        raise ValueError(f"the same node id stands on two rows: {', '.join(repeated[:10])}")
    return row_of


def _integers(column: object) -> IntArray:
    return np.asarray(column, dtype=np.int32)


def _usual_gpus(kind: IntArray, gpus: IntArray, kinds: int) -> IntArray:
    """GPUs that most nodes of each type have, the larger figure on a tie."""
    width = int(gpus.max(initial=0)) + 1
    seen = np.bincount(kind.astype(np.int64) * width + gpus.clip(0), minlength=kinds * width).reshape(kinds, width)
    usual: IntArray = (width - 1 - np.argmax(seen[:, ::-1], axis=1)).astype(np.int32)
    return usual


def _offers(whole: IntArray, gpus: IntArray, free: IntArray, available: BoolArray) -> tuple[IntArray, IntArray]:
    """
    What each node offers when empty, and now.

    A node with other GPUs than its type's is never sold as a whole one, so its offers stay below the whole.
    """
    odd = gpus != whole
    capacity = np.where(odd, np.minimum(gpus, whole - 1), whole)
    now = np.minimum(free.clip(0), capacity)
    return capacity.astype(np.int32), np.where(available, now, NOTHING).astype(np.int32)


def _levels(nvlink: IntArray, leaf: IntArray, block: IntArray, site: IntArray) -> tuple[Level, Level, Level, Level]:
    new = np.ones(len(leaf), np.bool_)
    new[1:] = (leaf[1:] != leaf[:-1]) | (nvlink[1:] != nvlink[:-1]) | (nvlink[1:] == NOTHING)
    own = (np.cumsum(new) - 1).astype(np.int32)
    above: tuple[IntArray | None, ...] = (leaf, block, site, None)
    below: tuple[IntArray | None, ...] = (None, own, leaf, block)
    at = (own, leaf, block, site)
    nvlinks, leaves, blocks, sites = (
        _level(kind, codes, lower, upper) for kind, codes, lower, upper in zip(KINDS, at, below, above, strict=True)
    )
    return nvlinks, leaves, blocks, sites


def _level(kind: DomainKind, codes: IntArray, below: IntArray | None, above: IntArray | None) -> Level:
    rows = len(codes)
    first = np.flatnonzero(np.diff(codes, prepend=NOTHING)).astype(np.int32)
    row_start = np.append(first, np.int32(rows))
    children = row_start if below is None else np.append(below[first], np.int32(below[-1] + 1 if rows else 0))
    return Level(
        kind=kind,
        of_row=_frozen(codes),
        row_start=_frozen(row_start),
        child_start=_frozen(children.astype(np.int32)),
        parent=_frozen(above[first] if above is not None else np.empty(0, np.int32)),
        largest_nodes=int(np.diff(row_start).max(initial=0)),
    )


def _frozen(column: NDArray[Any]) -> NDArray[Any]:
    column.flags.writeable = False
    return column
