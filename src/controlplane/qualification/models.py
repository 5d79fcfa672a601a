"""
Rows of the ledger: baselines by version, measurements that are only ever added, and what follows from them for subjects and nodes.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Double, ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base

KINDS = "subject_kind IN ('node','pair','leaf','rail')"
VERDICTS = "verdict IN ('passed','failed','not_measured','not_judged')"
JUDGES = "judged_by IN ('baseline','tool','provider','nothing')"


class BaselineRow(Base):
    """
    One version of one baseline; versions are added, never changed.
    """

    __tablename__ = "baselines"
    __table_args__ = (
        CheckConstraint("scope_kind IN ('gpu_model','instance_type')", name="scope_kind"),
        CheckConstraint(KINDS, name="subject_kind"),
        CheckConstraint("comparison IN ('at_least','at_most')", name="comparison"),
        Index(
            "uq_baselines_place",
            "scope_kind",
            "scope_name",
            "subject_kind",
            "metric",
            unique=True,
            postgresql_where=text("version = 1"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`bsl_…`; the same for all versions."""
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Counted from 1; the highest is in force."""
    scope_kind: Mapped[str]
    """gpu_model or instance_type."""
    scope_name: Mapped[str]
    """For which one."""
    subject_kind: Mapped[str]
    """node, pair, leaf or rail."""
    metric: Mapped[str]
    """Which figure."""
    comparison: Mapped[str]
    """at_least or at_most."""
    value: Mapped[float] = mapped_column(Double())
    """The limit."""
    tolerance: Mapped[float] = mapped_column(Double(), server_default=text("0"))
    """Part of the limit by which a figure may miss it."""
    unit: Mapped[str]
    """Of the limit."""
    source: Mapped[str]
    """Where the limit comes from, in words."""
    withdrawn: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether it judges nothing from this version on."""
    created_by: Mapped[str]
    """Who set this version."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class MeasurementRow(Base):
    """
    One figure of one subject, as it was measured and judged then. The database lets nobody change or remove it.
    """

    __tablename__ = "measurements"
    __table_args__ = (
        CheckConstraint(KINDS, name="subject_kind"),
        CheckConstraint(VERDICTS, name="verdict"),
        CheckConstraint(JUDGES, name="judged_by"),
        CheckConstraint("(value IS NULL) = (verdict = 'not_measured')", name="measured"),
        ForeignKeyConstraint(["baseline_id", "baseline_version"], ["baselines.id", "baselines.version"]),
        UniqueConstraint("run_id", "tool", "subject_kind", "subject_key", "part", "metric", name="uq_measurements_once"),
        Index("ix_measurements_standing", "subject_kind", "subject_key", "part", "metric", "taken_at"),
        Index("ix_measurements_node", "node_id", "id"),
        Index("ix_measurements_peer", "peer_node_id", "id", postgresql_where=text("peer_node_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`msr_…`."""
    run_id: Mapped[str]
    """The run it is of; a run has each figure of a subject once."""
    subject_kind: Mapped[str]
    """node, pair, leaf or rail."""
    subject_key: Mapped[str]
    """The node's id; both ends of a pair in order; site and leaf; site, leaf and rail."""
    part: Mapped[str] = mapped_column(server_default="")
    """The GPU or device, as `gpu3`; empty for the whole."""
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """The node, or the first end of the pair."""
    peer_node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """The second end of the pair."""
    site: Mapped[str | None]
    """Where the leaf is."""
    leaf: Mapped[str | None]
    """The leaf, or the one the rail is of."""
    rail: Mapped[int | None]
    """The rail's number."""
    tool: Mapped[str]
    """What measured it; `acceptance` for a provider's checks."""
    metric: Mapped[str]
    """Which figure."""
    value: Mapped[float | None] = mapped_column(Double())
    """In `unit`; none when it was not measured."""
    unit: Mapped[str]
    """Of the value; `yes` is 1 or 0."""
    detail: Mapped[str] = mapped_column(server_default="")
    """What a provider saw, for operators."""
    verdict: Mapped[str]
    """passed, failed, not_measured or not_judged, by what was in force then."""
    judged_by: Mapped[str]
    """baseline, tool, provider or nothing."""
    baseline_id: Mapped[str | None]
    """The baseline it was held against."""
    baseline_version: Mapped[int | None]
    """Its version then."""
    digest: Mapped[str]
    """SHA-256 of the raw output, in hex."""
    taken_at: Mapped[datetime]
    """When it was measured, as told; else when it was recorded."""
    recorded_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class StandingRow(Base):
    """
    The latest verdict on one figure of one subject, under the baselines now in force, and where the figure is going.
    """

    __tablename__ = "standings"
    __table_args__ = (
        CheckConstraint(KINDS, name="subject_kind"),
        CheckConstraint(VERDICTS, name="verdict"),
        CheckConstraint(JUDGES, name="judged_by"),
        UniqueConstraint("subject_kind", "subject_key", "part", "metric", name="uq_standings_place"),
        Index("ix_standings_node", "node_id", "id"),
        Index("ix_standings_peer", "peer_node_id", postgresql_where=text("peer_node_id IS NOT NULL")),
        Index("ix_standings_leaf", "site", "leaf", postgresql_where=text("leaf IS NOT NULL")),
        Index("ix_standings_metric", "metric", "subject_kind"),
        Index(
            "ix_standings_failed_pairs",
            "node_id",
            "peer_node_id",
            postgresql_where=text("subject_kind = 'pair' AND verdict = 'failed'"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`std_…`."""
    subject_kind: Mapped[str]
    """node, pair, leaf or rail."""
    subject_key: Mapped[str]
    """As in `measurements`."""
    part: Mapped[str]
    """The GPU or device, as `gpu3`; empty for the whole."""
    metric: Mapped[str]
    """Which figure."""
    node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """The node, or the first end of the pair."""
    peer_node_id: Mapped[str | None] = mapped_column(ForeignKey("nodes.id"))
    """The second end of the pair."""
    site: Mapped[str | None]
    """Where the leaf is."""
    leaf: Mapped[str | None]
    """The leaf, or the one the rail is of."""
    rail: Mapped[int | None]
    """The rail's number."""
    tool: Mapped[str]
    """What measured it last."""
    value: Mapped[float | None] = mapped_column(Double())
    """The latest; none when it was not measured."""
    unit: Mapped[str]
    """Of the value."""
    verdict: Mapped[str]
    """On the latest value, under the baseline now in force."""
    judged_by: Mapped[str]
    """baseline, tool, provider or nothing."""
    baseline_id: Mapped[str | None]
    """The baseline now in force for it."""
    baseline_version: Mapped[int | None]
    """Its version."""
    since: Mapped[datetime]
    """When the verdict became what it is."""
    measurement_id: Mapped[str] = mapped_column(ForeignKey("measurements.id"))
    """The latest measurement."""
    taken_at: Mapped[datetime]
    """When that was taken."""
    recent: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """The last values as [seconds since 1970, value], oldest first."""
    trend: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """What they say: mean, average, slope and when the limit is crossed."""
    drifting: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether it is good now and on its way to where it is not."""


class NodeQualificationRow(Base):
    """
    Whether one node may be sold, as far as measurements go: what placement reads.
    """

    __tablename__ = "node_qualifications"

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    """Which node."""
    below: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether something of it is under its baseline."""
    missing: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether a figure that its policy requires has not passed; true until somebody looked."""
    good_until: Mapped[datetime | None]
    """When the first required figure becomes too old; none when none ever does."""
    fails_with: Mapped[list[str]] = mapped_column(server_default=text("'{}'::text[]"))
    """Partners whose failed pairs single this node out."""
    reasons: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """[{code, subject, metric, part}]."""
    changed_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock: when it last became another."""


class PolicyRow(Base):
    """
    What must be known of nodes of one instance type before they may be sold.
    """

    __tablename__ = "qualification_policies"

    instance_type: Mapped[str] = mapped_column(ForeignKey("instance_types.name"), primary_key=True)
    """Which type."""
    required: Mapped[list[str]] = mapped_column(server_default=text("'{}'::text[]"))
    """Figures of the node itself that must have passed."""
    sell_not_measured: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether a node may be sold although one of them is not measured."""
    max_age_s: Mapped[int | None]
    """After this such a figure counts as not measured; none: never."""
    burn_in: Mapped[list[Any] | None] = mapped_column(JSONB())
    """[{name, required, limit_s, amount}] that a machine's own check runs; none: the usual ones."""
    version: Mapped[int]
    """Counted from 1; shown as ETag."""
    updated_by: Mapped[str]
    """Who set it."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
