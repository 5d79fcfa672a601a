"""
The catalog in the database and over HTTP.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.catalog.routes import router
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.kit.errors import NameTaken, NotFound
from controlplane.kit.paging import PageAsk
from tests.conftest import Database
from tests.factories.catalog import furnished
from tests.factories.quotas import Caller, chain, principal


def test_loading_twice_is_loading_once(session: Session) -> None:
    """The database holds the file's figures, and a figure that was edited by hand is the file's again."""
    furnished(session)
    session.execute(text("UPDATE gpu_models SET tdp_w = 1"))
    furnished(session)
    session.expire_all()
    models, types = catalog.read_catalog()
    assert list(catalog.list_gpu_models(session, PageAsk(200)).items) == sorted(models, key=lambda one: one.name)
    assert list(catalog.list_instance_types(session, PageAsk(200)).items) == sorted(types, key=lambda one: one.name)
    assert catalog.instance_type_names(session) == {one.name for one in types}


def test_sites_are_added_once(session: Session) -> None:
    """Ensuring twice keeps the first; creating twice is refused."""
    first = catalog.ensure_site(session, "osl1", "eu-north", "first")
    assert catalog.ensure_site(session, "osl1", "elsewhere", "second") == first
    with pytest.raises(NameTaken):
        catalog.create_site(session, "osl1", "eu-north")
    assert catalog.update_site(session, "osl1", "eu-west", "moved").region == "eu-west"
    with pytest.raises(NotFound):
        catalog.update_site(session, "hel1", "eu-north", "")


def test_unknown_names_are_not_found(session: Session) -> None:
    """Get raises, find answers none."""
    furnished(session)
    for get in (catalog.get_instance_type, catalog.get_gpu_model, catalog.get_site):
        with pytest.raises(NotFound):
            get(session, "no-such")
    assert catalog.find_instance_type(session, "no-such") is None


def test_everyone_reads_and_the_operator_writes(database: Database) -> None:
    """Instance types, GPU models and sites for any key, paged; sites change by the operator's hand only."""
    with Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        furnished(session, "osl1")
    call, path = Caller(database.engine, [router]), chain()
    operator, member = principal("platform", path), principal("project", path)
    site = {"name": "hel1", "region": "eu-north", "description": "second"}
    assert call(member, "POST", "/v1/admin/sites", json=site).status_code == 403
    made = call(operator, "POST", "/v1/admin/sites", json=site)
    assert (made.status_code, made.headers["Location"]) == (201, "/v1/admin/sites/hel1")
    assert call(operator, "POST", "/v1/admin/sites", json=site).status_code == 409
    changed = call(operator, "PUT", "/v1/admin/sites/hel1", json={"region": "eu-west"})
    assert changed.json()["region"] == "eu-west"
    assert call(operator, "PUT", "/v1/admin/sites/nil1", json={"region": "eu-west"}).status_code == 404
    for who in (operator, principal("reseller", path), principal("tenant", path), member):
        assert [one["name"] for one in call(who, "GET", "/v1/sites").json()["items"]] == ["hel1", "osl1"]
    assert "created_at" not in call(member, "GET", "/v1/sites").json()["items"][0]
    shape = call(member, "GET", "/v1/instance-types/hgx-h100-8").json()
    assert (shape["gpus"], shape["power_kw"]) == (8, 10.2)
    assert call(member, "GET", "/v1/instance-types/cow").status_code == 404
    only = call(member, "GET", "/v1/instance-types", params={"gpu_model": "B200-SXM-180GB"}).json()["items"]
    assert [one["name"] for one in only] == ["hgx-b200-8"]
    first = call(member, "GET", "/v1/gpu-models", params={"limit": 3}).json()
    rest = call(member, "GET", "/v1/gpu-models", params={"page_token": first["next_page_token"]}).json()
    assert [one["name"] for one in first["items"] + rest["items"]] == sorted(one.name for one in catalog.read_catalog()[0])
