"""
Every statement on services; a tenant's rows are asked for by tenant and project.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, bindparam, func, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.services.models import ServiceLogRow, ServiceRow, ServiceVersionRow
from controlplane.services.states import SERVICE_STATES, ServiceFilter


def add(session: Session, row: ServiceRow, version: ServiceVersionRow) -> None:
    """
    The service and its first version are stored, and its defaults are known.
    """
    session.add(row)
    session.flush()
    session.add(version)
    session.flush()
    session.refresh(row)


def find(session: Session, tenant_id: str, project_id: str, service_id: str, *, lock: bool = False) -> ServiceRow | None:
    """
    The tenant's service, or None; locked until the transaction ends where that is asked.
    """
    query = select(ServiceRow).where(
        ServiceRow.id == service_id, ServiceRow.tenant_id == tenant_id, ServiceRow.project_id == project_id
    )
    query = query.with_for_update() if lock else query
    return session.execute(query.execution_options(populate_existing=True)).scalar_one_or_none()


def find_named(session: Session, project_id: str, name: str) -> str | None:
    """
    The id of the project's service of this name that is not deleted, or None.
    """
    query = select(ServiceRow.id).where(ServiceRow.project_id == project_id, ServiceRow.name == name, ServiceRow.state != "deleted")
    return session.execute(query).scalar_one_or_none()


def page(session: Session, tenant_id: str, project_id: str, wanted: ServiceFilter, ask: PageAsk) -> Page[ServiceRow]:
    """
    A page of the project's services, oldest first.
    """
    query: Select[Any] = select(ServiceRow).where(ServiceRow.tenant_id == tenant_id, ServiceRow.project_id == project_id)
    query = query.where(ServiceRow.state == wanted.state) if wanted.state else query.where(ServiceRow.state != "deleted")
    if wanted.cluster_id is not None:
        query = query.where(ServiceRow.cluster_id == wanted.cluster_id)
    if wanted.labels:
        query = query.where(ServiceRow.labels.contains(dict(wanted.labels)))
    if wanted.created_after is not None:
        query = query.where(ServiceRow.created_at > wanted.created_after)
    return fetch_page(session, query, ServiceRow.__table__.c.id, ask)


def versions_of(session: Session, wanted: Sequence[tuple[str, int]]) -> dict[str, ServiceVersionRow]:
    """
    One version of each of these services, by service.
    """
    query = select(ServiceVersionRow).where(tuple_(ServiceVersionRow.service_id, ServiceVersionRow.number).in_(wanted))
    return {one.service_id: one for one in session.execute(query).scalars()} if wanted else {}


def page_versions(session: Session, row: ServiceRow, ask: PageAsk) -> Page[ServiceVersionRow]:
    """
    A page of the service's versions, oldest first.
    """
    query = select(ServiceVersionRow).where(ServiceVersionRow.service_id == row.id, ServiceVersionRow.tenant_id == row.tenant_id)
    return fetch_page(session, query, ServiceVersionRow.__table__.c.number, ask)


def last_ready(session: Session, row: ServiceRow) -> int | None:
    """
    The newest version before the present one that was ready; None for none.
    """
    query = select(func.max(ServiceVersionRow.number)).where(
        ServiceVersionRow.service_id == row.id,
        ServiceVersionRow.number < row.current_version,
        ServiceVersionRow.outcome == "ready",
    )
    return session.execute(query).scalar_one_or_none()


def add_version(session: Session, version: ServiceVersionRow) -> None:
    """
    The version is stored; the one before it, if nothing was known of it yet, was replaced.
    """
    session.execute(
        update(ServiceVersionRow)
        .where(
            ServiceVersionRow.service_id == version.service_id,
            ServiceVersionRow.number < version.number,
            ServiceVersionRow.outcome == "",
        )
        .values(outcome="replaced")
    )
    session.add(version)
    session.flush()


def enter(session: Session, row: ServiceRow, state: str, reason: str, values: Mapping[str, Any]) -> None:
    """
    The service has come to the state by a request, with these changes; a step that is under way changes nothing any more.
    """
    stay = SERVICE_STATES.by_name[state].longest_stay_s
    session.execute(
        update(ServiceRow)
        .where(ServiceRow.id == row.id)
        .values(
            state=state,
            step="",
            reason=reason,
            detail="",
            state_since=CpClock(),
            deadline_at=None if stay is None else CpClock() + timedelta(seconds=stay),
            due_at=CpClock(),
            lease_until=None,
            fence=ServiceRow.fence + 1,
            wakes=ServiceRow.wakes + 1,
            attention="",
            attempts=0,
            version=ServiceRow.version + 1,
            updated_at=CpClock(),
            **values,
        )
        .execution_options(synchronize_session=False)
    )
    session.refresh(row)


def put_labels(session: Session, row: ServiceRow, labels: Mapping[str, str]) -> None:
    """
    The service has these labels.
    """
    changes = {"labels": dict(labels), "version": ServiceRow.version + 1, "updated_at": CpClock()}
    session.execute(update(ServiceRow).where(ServiceRow.id == row.id).values(changes).execution_options(synchronize_session=False))
    session.refresh(row)


def clock(session: Session) -> datetime:
    """
    The database's clock.
    """
    return session.execute(select(CpClock())).scalar_one()


STORE = text(
    """
    UPDATE services s SET
      seen = f.seen, aimed_at = f.wanted, address = CASE WHEN f.address = '' THEN s.address ELSE f.address END,
      trouble = f.trouble, next_tail = f.next_tail,
      gpu_microseconds = s.gpu_microseconds + (
        SELECT CAST(trunc(gone.us * s.gpus_held + (
          SELECT coalesce(sum(gone.us * held.count * held.slices / held.of), 0)
          FROM jsonb_to_recordset(s.slices_held) AS held(count numeric, slices numeric, of numeric))) AS bigint)
        FROM (SELECT greatest(0, CAST(extract(
          epoch FROM CAST(:now AS timestamptz) - coalesce(s.seen_at, CAST(:now AS timestamptz))) * 1000000 AS bigint)) AS us) gone),
      gpus_held = f.gpus, slices_held = f.slices_held, seen_at = CAST(:now AS timestamptz),
      version = s.version + CASE WHEN s.seen IS DISTINCT FROM f.seen OR s.aimed_at <> f.wanted OR s.trouble <> f.trouble THEN 1 ELSE 0 END
    FROM jsonb_to_recordset(CAST(:facts AS jsonb)) AS f(
      id text, seen jsonb, wanted bigint, address text, trouble text, next_tail bigint, gpus bigint, slices_held jsonb)
    WHERE s.id = f.id
    """
)
OUTCOME = text(
    """
    UPDATE service_versions v SET outcome = f.outcome
    FROM jsonb_to_recordset(CAST(:facts AS jsonb)) AS f(id text, number bigint, outcome text)
    WHERE v.service_id = f.id AND v.number = f.number AND v.outcome <> 'ready'
    """
)
SHARES = text(
    """
    SELECT service_id, template->'mig'->>'profile' AS profile, CAST(template->'mig'->>'slices' AS bigint) AS slices,
      CAST(template->'mig'->>'of_slices' AS bigint) AS of_slices
    FROM service_versions WHERE service_id = ANY(:ids) AND jsonb_typeof(template->'mig') = 'object' ORDER BY number
    """
)
FORGET = text("DELETE FROM service_logs WHERE service_id IN :ids").bindparams(bindparam("ids", expanding=True))
OLD = text("DELETE FROM service_logs WHERE service_id IN :ids AND at < cp_clock() - interval '1 day'").bindparams(
    bindparam("ids", expanding=True)
)


def store(session: Session, facts: Sequence[Mapping[str, Any]], now: datetime) -> None:
    """
    What was seen of the services at the moment stands in their rows, and GPU time was counted up to it; one statement for all.
    """
    session.execute(STORE, {"facts": json.dumps(list(facts)), "now": now})


def shares_of(session: Session, service_ids: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
    """
    By service and MIG profile: of a GPU's parts of compute so many, of so many, as the last version that asked for the profile was told.
    """
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for one in session.execute(SHARES, {"ids": list(service_ids)}) if service_ids else ():
        found.setdefault(one.service_id, {})[one.profile] = (one.slices, one.of_slices)
    return found


def store_outcomes(session: Session, facts: Sequence[Mapping[str, Any]]) -> None:
    """
    What came of versions is known; one that was ready once stays that.
    """
    if facts:
        session.execute(OUTCOME, {"facts": json.dumps(list(facts))})


def store_tails(session: Session, tails: Sequence[Mapping[str, Any]]) -> None:
    """
    What replicas printed last is kept; of replicas that were not there for a day nothing is.
    """
    if not tails:
        return
    session.execute(OLD, {"ids": sorted({one["service_id"] for one in tails})})
    new = insert(ServiceLogRow).values([dict(one) for one in tails])
    kept = {name: new.excluded[name] for name in ("version", "data")} | {"at": CpClock()}
    session.execute(new.on_conflict_do_update(index_elements=["service_id", "replica"], set_=kept))


def forget_tails(session: Session, service_ids: Sequence[str]) -> None:
    """
    Nothing that replicas of these services printed is kept.
    """
    if service_ids:
        session.execute(FORGET, {"ids": list(service_ids)})


def tails_of(session: Session, row: ServiceRow, replica: str | None) -> Sequence[ServiceLogRow]:
    """
    What the replicas printed last, or one of them, by name.
    """
    query = select(ServiceLogRow).where(ServiceLogRow.service_id == row.id, ServiceLogRow.tenant_id == row.tenant_id)
    if replica is not None:
        query = query.where(ServiceLogRow.replica == replica)
    return session.execute(query.order_by(ServiceLogRow.replica).limit(200)).scalars().all()
