"""
Templates of a project's jobs: written in versions that never change, filled in when a job is submitted from one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from controlplane.clusters import service as clusters
from controlplane.identity import service as identity
from controlplane.jobs import templates
from controlplane.jobs.filling import PLACE, Value, fill, values_of
from controlplane.jobs.templates import Template
from controlplane.kit.access import Principal
from controlplane.kit.errors import NotFound
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk


def put_template(session: Session, principal: Principal, project_id: str, name: str, document: Mapping[str, Any]) -> Template:
    """
    The document is the newest version of the project's template; one that says the same as the newest makes no new version. Raises
    NotFound for an unknown project, or a cluster that is not the project's.
    """
    tenant_id = identity.get_project(session, principal, project_id).tenant_id
    cluster_id = document["spec"].get("cluster_id")
    if cluster_id is not None and not PLACE.search(cluster_id):
        home = clusters.homes(session, [cluster_id]).get(cluster_id)
        if home is None or (home.tenant_id, home.project_id) != (tenant_id, project_id):
            raise NotFound
    row = templates.hold(session, new_id("jtp"), tenant_id, project_id, name)
    kept = templates.find(session, tenant_id, project_id, name)
    if kept is None or kept.document != document:
        templates.add_version(session, row, document)
    return get_template(session, principal, project_id, name)


def get_template(session: Session, principal: Principal, project_id: str, name: str, version: int | None = None) -> Template:
    """
    A version of the template, the newest one by default. Raises NotFound.
    """
    principal.check_project(project_id)
    found = templates.find(session, principal.tenant_id, project_id, name, version)
    if found is None:
        raise NotFound
    return found


def list_templates(session: Session, principal: Principal, project_id: str, ask: PageAsk) -> Page[Template]:
    """
    A page of the project's templates. Raises NotFound for an unknown project.
    """
    tenant_id = identity.get_project(session, principal, project_id).tenant_id
    return templates.page(session, tenant_id, project_id, ask)


def drop_template(session: Session, principal: Principal, project_id: str, name: str) -> None:
    """
    The template is gone in all its versions; jobs that came from it keep what they were made of. Raises NotFound.
    """
    tenant_id = identity.get_project(session, principal, project_id).tenant_id
    if not templates.drop(session, tenant_id, project_id, name):
        raise NotFound


@dataclass(frozen=True, slots=True)
class Filled:
    """
    What a template says once its places have values.
    """

    spec: Mapping[str, Any]
    """Of a job, or of each task."""
    array: Mapping[str, Any] | None
    """Which tasks; None where the template makes single jobs."""
    origin: Mapping[str, Any]
    """Where it came from, as rows keep it."""


def filled(template: Template, given: Mapping[str, Value], overrides: Mapping[str, Any]) -> Filled:
    """
    The template filled in. An override replaces a whole field of the spec. Raises Invalid for parameters that are missing, unknown or do
    not fit.
    """
    values = values_of(template.document["parameters"], given)
    origin = {"name": template.name, "version": template.version, "parameters": values, "overrides": sorted(overrides)}
    return Filled({**fill(template.document["spec"], values), **overrides}, fill(template.document.get("array"), values), origin)
