"""
Every statement on job templates; asked for by tenant and project.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from controlplane.jobs.models import JobTemplateRow, JobTemplateVersionRow
from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page


@dataclass(frozen=True, slots=True)
class Template:
    """
    One version of a template.
    """

    name: str
    """Unique in its project."""
    version: int
    """Which version this is."""
    latest: int
    """The newest one."""
    document: Mapping[str, Any]
    """Description, parameters, labels and spec, as written."""
    created_at: datetime
    """When the template was first written."""
    updated_at: datetime
    """When this version was written."""


def hold(session: Session, new_id: str, tenant_id: str, project_id: str, name: str) -> JobTemplateRow:
    """
    The project's template of this name, which is there and locked; a new one has no version yet.
    """
    row = {"id": new_id, "tenant_id": tenant_id, "project_id": project_id, "name": name, "latest": 0}
    put = insert(JobTemplateRow).values(row)
    same = [JobTemplateRow.tenant_id, JobTemplateRow.project_id, JobTemplateRow.name]
    kept = put.on_conflict_do_update(index_elements=same, set_={"name": put.excluded.name}).returning(JobTemplateRow.id)
    return session.get_one(JobTemplateRow, session.execute(kept).scalar_one(), populate_existing=True)


def add_version(session: Session, row: JobTemplateRow, document: Mapping[str, Any]) -> None:
    """
    The document is the template's newest version. Call `hold` first.
    """
    number = row.latest + 1
    session.execute(
        insert(JobTemplateVersionRow),
        [{"template_id": row.id, "version": number, "tenant_id": row.tenant_id, "document": dict(document)}],
    )
    changed = update(JobTemplateRow).where(JobTemplateRow.id == row.id).values(latest=number, updated_at=CpClock())
    session.execute(changed.execution_options(synchronize_session=False))


def find(session: Session, tenant_id: str, project_id: str, name: str, version: int | None = None) -> Template | None:
    """
    A version of the project's template, the newest one by default; None where there is no such thing.
    """
    row, kept = JobTemplateRow, JobTemplateVersionRow
    query = (
        select(row.name, kept.version, row.latest, kept.document, row.created_at, kept.created_at)
        .join(kept, kept.template_id == row.id)
        .where(row.tenant_id == tenant_id, row.project_id == project_id, row.name == name)
        .where(kept.version == (row.latest if version is None else version))
    )
    found = session.execute(query).one_or_none()
    return None if found is None else Template(*found)


def page(session: Session, tenant_id: str, project_id: str, ask: PageAsk) -> Page[Template]:
    """
    A page of the project's templates in their newest versions, in the order they were first written.
    """
    query = select(JobTemplateRow).where(JobTemplateRow.tenant_id == tenant_id, JobTemplateRow.project_id == project_id)
    rows = fetch_page(session, query, JobTemplateRow.__table__.c.id, ask)
    kept = JobTemplateVersionRow
    newest = [(one.id, one.latest) for one in rows.items]
    found = session.execute(select(kept).where(tuple_(kept.template_id, kept.version).in_(newest))).scalars() if newest else ()
    by_id = {one.template_id: one for one in found}

    def whole(one: JobTemplateRow) -> Template:
        version = by_id[one.id]
        return Template(one.name, one.latest, one.latest, version.document, one.created_at, version.created_at)

    return rows.map(whole)


def drop(session: Session, tenant_id: str, project_id: str, name: str) -> bool:
    """
    The project has no template of this name; False when it had none before.
    """
    gone = delete(JobTemplateRow).where(
        JobTemplateRow.tenant_id == tenant_id, JobTemplateRow.project_id == project_id, JobTemplateRow.name == name
    )
    return session.execute(gone.returning(JobTemplateRow.id)).scalar_one_or_none() is not None
