"""
Health over HTTP: reports of many nodes, freezes and repair tickets, for operators only.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.test_nodes_routes import SITE, Fleet, fleet

__all__ = ["fleet"]


def test_reports_of_many_nodes_at_once(fleet: Fleet) -> None:
    """By id and by name; Xids are classed by our table; unknown nodes are named by their place and the rest counts."""
    call, (first, second) = fleet.call(), fleet.node_ids[:2]
    ref = call("GET", f"/v1/admin/nodes/{second}").json()["ref"]
    answer = call(
        "POST",
        "/v1/admin/health-reports",
        {
            "reports": [
                {"node_id": first, "source": "agent", "xid": 79, "device": "PCI:0000:3b:00"},
                {"node_id": "nod_00000000000000000000000000", "source": "agent", "check": "x", "class": "drain"},
                {"provider_id": fleet.provider_id, "ref": ref, "source": "agent", "xid": 31},
            ]
        },
    )
    assert answer.status_code == 200
    assert answer.json() == {"changed": sorted([first, second]), "unknown": [1]}
    (said,) = call("GET", f"/v1/admin/nodes/{first}/health").json()["items"]
    assert (said["check"], said["class"]) == ("xid_79:PCI:0000:3b:00", "quarantine")
    assert "fallen off the bus" in said["message"]
    assert call("GET", f"/v1/admin/nodes/{second}").json()["health"] == "info"


@pytest.mark.parametrize(
    "report",
    [
        {"source": "agent", "check": "x", "class": "drain"},
        {"node_id": "nod_1", "provider_id": "prv_1", "ref": "a", "source": "agent", "check": "x", "class": "drain"},
        {"node_id": "nod_1", "source": "agent", "check": "x"},
        {"node_id": "nod_1", "source": "agent"},
        {"node_id": "nod_1", "source": "agent", "xid": 0},
    ],
)
def test_half_a_report_is_refused(fleet: Fleet, report: dict[str, Any]) -> None:
    """A report that does not say which node, or what follows, is malformed."""
    assert fleet.call()("POST", "/v1/admin/health-reports", {"reports": [report]}).status_code == 422


def test_a_block_is_frozen_and_unfrozen(fleet: Fleet) -> None:
    """Once at a time; lifted by name; shown with who and why."""
    call = fleet.call()
    body = {"site": SITE, "block": "b1", "reason": "power work"}
    assert call("POST", "/v1/admin/freezes", body | {"site": "nowhere"}).status_code == 422
    made = call("POST", "/v1/admin/freezes", body)
    assert made.status_code == 201
    assert call("POST", "/v1/admin/freezes", body).status_code == 409
    assert [one["id"] for one in call("GET", "/v1/admin/freezes?in_force=true").json()["items"]] == [made.json()["id"]]
    lifted = call("POST", f"/v1/admin/freezes/{made.json()['id']}/actions/lift")
    assert lifted.json()["lifted_by"]
    assert call("GET", "/v1/admin/freezes?in_force=true").json()["items"] == []
    assert call("POST", "/v1/admin/freezes/frz_00000000000000000000000000/actions/lift").status_code == 404
    assert call("GET", "/v1/admin/repair-tickets").json()["items"] == []


def test_tenants_see_nothing_of_it(fleet: Fleet) -> None:
    """Health, freezes and repairs are the operators'."""
    call = fleet.call(fleet.tree.left.owner_key)
    for method, path in (
        ("GET", f"/v1/admin/nodes/{fleet.node_ids[0]}/health"),
        ("POST", "/v1/admin/health-reports"),
        ("GET", "/v1/admin/freezes"),
        ("GET", "/v1/admin/repair-tickets"),
    ):
        body = {"reports": [{"node_id": fleet.node_ids[0], "source": "agent", "xid": 79}]} if method == "POST" else None
        assert call(method, path, body).status_code in {403, 404}
