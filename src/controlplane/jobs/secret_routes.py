"""
Secrets of a project over HTTP.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from controlplane.jobs import sealing
from controlplane.jobs.secret_schemas import SecretOut, SecretPut
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["secrets"])
SECRETS = "/v1/projects/{project_id}/secrets"
SECRET = SECRETS + "/{name}"
Name = Annotated[
    str,
    Path(
        min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", description="Lower-case letters, digits, dashes."
    ),
]


@endpoint(router, "GET", SECRETS, permission="jobs:read", answer=ListOf[SecretOut], summary="List a project's secrets")
def list_secrets(
    call: Call,
    project_id: str,
    limit: Annotated[int, Query(ge=1, le=200, description="Items on a page.")] = 50,
    page_token: Annotated[str | None, Query(max_length=200, description="`next_page_token` of the page before.")] = None,
) -> ListOf[SecretOut]:
    """
    Names and times, in the order they were first written; no value is ever shown.
    """
    page = sealing.list_secrets(call.session, call.principal, project_id, PageAsk(limit, page_token)).map(SecretOut.of)
    return ListOf[SecretOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(router, "PUT", SECRET, permission="jobs:create", answer=SecretOut, summary="Write a secret", problems=(503,))
def put_secret(call: Call, project_id: str, name: Name, body: SecretPut) -> SecretOut:
    """
    The secret has this value for every attempt of a job that is handed over from now on.
    """
    row = sealing.put_secret(call.session, call.principal, call.sealer, project_id, name, body.value.get_secret_value())
    call.audit_target = row.id
    return SecretOut.of(row)


@endpoint(router, "DELETE", SECRET, permission="jobs:delete", status=204, summary="Remove a secret")
def delete_secret(call: Call, project_id: str, name: Name) -> None:
    """
    The value is gone. A job that names it and is not with a scheduler yet will fail; one that is keeps what it was given.
    """
    sealing.drop_secret(call.session, call.principal, project_id, name)
