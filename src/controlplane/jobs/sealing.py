"""
Secrets of a project: written, replaced and removed by its people, given to its jobs, and read by nobody.
"""

from sqlalchemy.orm import Session

from controlplane.identity import service as identity
from controlplane.jobs import repository
from controlplane.jobs.models import ProjectSecretRow
from controlplane.kit.access import Principal
from controlplane.kit.errors import NotFound, Unavailable
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk
from controlplane.kit.secrets import Sealer

TABLE, COLUMN = "project_secrets", "sealed"


def put_secret(
    session: Session, principal: Principal, sealer: Sealer | None, project_id: str, name: str, value: str
) -> ProjectSecretRow:
    """
    The project's secret of this name has this value from now on. Raises NotFound, Unavailable where nothing can be sealed.
    """
    tenant_id = identity.get_project(session, principal, project_id).tenant_id
    if sealer is None:
        raise Unavailable("This installation has no master key, so it keeps no secrets.")
    row_id = repository.hold_secret(session, new_id("sec"), tenant_id, project_id, name)
    return repository.seal_secret(session, row_id, sealer.seal(value.encode(), table=TABLE, column=COLUMN, row=row_id))


def list_secrets(session: Session, principal: Principal, project_id: str, ask: PageAsk) -> Page[ProjectSecretRow]:
    """
    A page of the project's secrets. Raises NotFound for an unknown project.
    """
    tenant_id = identity.get_project(session, principal, project_id).tenant_id
    return repository.page_of_secrets(session, tenant_id, project_id, ask)


def drop_secret(session: Session, principal: Principal, project_id: str, name: str) -> None:
    """
    The secret is gone, value and all; jobs that are with a scheduler keep what they were given. Raises NotFound.
    """
    tenant_id = identity.get_project(session, principal, project_id).tenant_id
    if not repository.drop_secret(session, tenant_id, project_id, name):
        raise NotFound


def open_secret(sealer: Sealer, row_id: str, sealed: bytes) -> str:
    """
    The value, for the job that is being handed to its scheduler. Raises NotOpened.
    """
    return sealer.open(sealed, table=TABLE, column=COLUMN, row=row_id).decode()
