"""
Every way in which an Ironic, or something in front of it, can answer, and what is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.ironic.client import IronicRest
from controlplane.providers.adapters.ironic.login import Nobody
from controlplane.providers.adapters.ironic.marks import Marks, Tenancy, to_json
from controlplane.providers.errors import (
    AuthFailed,
    Busy,
    NotFound,
    NotSent,
    ProviderError,
    Refused,
    Transient,
    Unknown,
    Unsupported,
)
from controlplane.providers.machines import Deployment
from tests.unit.ironic.peer import UUID, VERSIONS, fault, node, peer

HTML = "<html><body><h1>502 Bad Gateway</h1></body></html>"
ACCEPTED_AT = datetime.fromisoformat("2026-01-31T12:30:00+00:00")
ROUTER = {"error_message": '{"code": 404, "title": "Not Found", "description": ""}'}
STALE = "Couldn't apply patch '{'op': 'remove', 'path': '/extra/x/revision-1'}'. Reason: can't remove a non-existent object"
CASES: dict[str, tuple[httpx.Response, type[ProviderError], str]] = {
    "locked": (fault(409, f"Node {UUID} is locked by host c1, please retry"), Busy, "provider_busy"),
    "held by another": (fault(409, f"Node {UUID} is associated with instance 1-2."), Refused, "machine_held"),
    "instance elsewhere": (fault(409, "Instance 1-2 is already associated with a node"), Refused, "machine_held"),
    "conflict of a proxy": (httpx.Response(409, text="conflict"), Unknown, "provider_outcome_unknown"),
    "maintenance": (fault(400, "can't be performed on node because it's in maintenance mode."), Busy, "machine_in_maintenance"),
    "stale": (fault(400, STALE), Busy, "machine_changed"),
    "wrong state": (fault(400, 'The requested action "clean" can not be performed while it is in state "active".'), Refused, ""),
    "bad request of a proxy": (httpx.Response(400, text=HTML), Unknown, ""),
    "no credential": (httpx.Response(401, json={"error": {"code": 401, "message": "Unauthorized"}}), AuthFailed, ""),
    "no right": (fault(403, "Access was denied to the following resource: baremetal:node:update"), AuthFailed, ""),
    "protected": (fault(403, "Node n1 is protected and cannot be undeployed"), Refused, "machine_protected"),
    "no such node": (fault(404, "Node n1 could not be found."), NotFound, ""),
    "no such path": (httpx.Response(404, json=ROUTER), Unknown, ""),
    "not found by a proxy": (httpx.Response(404, text=HTML), Unknown, ""),
    "wrong version": (fault(406, "Version 1.200 was requested"), Unsupported, ""),
    "too many": (httpx.Response(429, text="slow down", headers={"Retry-After": "17"}), Busy, ""),
    "no worker free": (fault(503, "Requested action cannot be performed due to lack of free conductor workers."), Busy, ""),
    "503 of a proxy": (httpx.Response(503, text=HTML), Unknown, ""),
    "crash": (fault(500, "type object 'Node' has no attribute 'bogus'"), Unknown, ""),
    "bad gateway": (httpx.Response(502, text=HTML), Unknown, ""),
    "redirect": (httpx.Response(302, headers={"Location": "https://elsewhere.test/"}), Unknown, ""),
    "html with 200": (httpx.Response(200, text=HTML), Unknown, ""),
    "cut off": (httpx.Response(200, content=b'{"uuid": "5d72c'), Unknown, ""),
    "error inside 200": (fault(200, "something failed"), Unknown, ""),
    "error as an object": (httpx.Response(409, json={"error_message": {"faultstring": "Node is locked by host c1"}}), Busy, ""),
}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize("case", CASES)
def test_a_change_ends_in_the_error_that_the_answer_amounts_to(case: str, method: str) -> None:
    """The type decides what is done next; the code is what may be shown. With and without a body that is looked at."""
    response, kind, code = CASES[case]
    known = Marks(1, powers=("pwr_1",) if method == "PUT" else ())
    said = node(extra={"controlplane_test": to_json(known)})
    adapter = peer(lambda request: response if request.method == method else httpx.Response(200, json=said))
    with pytest.raises(ProviderError) as raised:
        adapter.power("n1", on=True, token="pwr_1")
    adapter.close()
    assert type(raised.value) is kind
    assert not code or raised.value.code == code


def test_the_peers_wish_for_patience_is_kept() -> None:
    """Retry-After in seconds is what the caller gets."""
    adapter = peer(lambda request: httpx.Response(429, headers={"Retry-After": "17"}))
    with pytest.raises(Busy) as raised:
        adapter.observe("n1")
    assert raised.value.retry_in_s == 17


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ConnectError("refused"), NotSent),
        (httpx.ConnectTimeout("slow"), NotSent),
        (httpx.ReadTimeout("slow"), Unknown),
        (httpx.WriteError("reset"), Unknown),
        (httpx.RemoteProtocolError("cut"), Unknown),
    ],
)
def test_only_what_never_left_may_be_repeated_blindly(error: httpx.TransportError, kind: type[Transient]) -> None:
    """A timeout or a reset after sending is unknown; a connection that was never made is not sent."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    adapter = peer(fail)
    with pytest.raises(kind) as raised:
        adapter.observe("n1")
    assert type(raised.value) is kind


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    """A body over the limit is unknown."""

    def flood() -> Iterator[bytes]:
        while True:
            yield b"x" * 10_000

    adapter = peer(lambda request: httpx.Response(200, content=flood()))
    with pytest.raises(Unknown, match="larger than"):
        adapter.observe("n1")


@pytest.mark.parametrize(
    "body",
    [[], {}, {"uuid": 1}, {**node(), "extra": None}, {**node(), "provision_state": None}, {**node(), "uuid": "x", "name": "n2"}],
)
def test_what_is_no_node_is_no_answer(body: Any) -> None:
    """A wrong shape, or another node than the one asked for, is unknown and never an empty node."""
    adapter = peer(lambda request: httpx.Response(200, json=body))
    with pytest.raises(Unknown):
        adapter.observe("n1")


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"X-OpenStack-Ironic-API-Maximum-Version": "1.58"}, Unsupported),
        ({}, Unknown),
        ({"X-OpenStack-Ironic-API-Maximum-Version": "x"}, Unknown),
    ],
)
def test_an_ironic_that_is_too_old_or_none_at_all_is_told_apart(headers: dict[str, str], kind: type[ProviderError]) -> None:
    """Too old is final; something that does not say is no Ironic, perhaps only for now."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={}, headers=headers))
    rest = IronicRest("http://ironic.test", Nobody(), timeout_s=5, max_body_bytes=1000, transport=transport)
    with pytest.raises(kind):
        rest.minor()


@pytest.mark.parametrize(("theirs", "spoken"), [("1.80", "1.80"), ("1.115", "1.115"), ("1.200", "1.115")])
def test_the_newest_version_that_both_know_is_spoken(theirs: str, spoken: str) -> None:
    """Every request names it."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1":
            seen.append(request.headers["X-OpenStack-Ironic-API-Version"])
        return httpx.Response(200, json=node(), headers={**VERSIONS, "X-OpenStack-Ironic-API-Maximum-Version": theirs})

    transport = httpx.MockTransport(answer)
    rest = IronicRest("http://ironic.test", Nobody(), timeout_s=5, max_body_bytes=10_000, transport=transport)
    rest.get("/v1/nodes/n1")
    assert seen == [spoken]


def _wrong_state(before: str, after: str) -> Any:
    looks = iter([before])
    words = f'The requested action "deploy" can not be performed on node "{UUID}" while it is in state "{after}".'

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=node(provision_state=next(looks, after)))
        if request.method == "PUT":
            return fault(400, words)
        patch = json.loads(request.content)
        claimed = {"instance_uuid": patch[1]["value"], "extra": {"controlplane_test": patch[0]["value"]}}
        return httpx.Response(200, json=node(provision_state=before, **claimed))

    return peer(answer)


def test_a_change_that_somebody_was_faster_with_is_looked_at_again() -> None:
    """Refused in a state that we had not seen: not a no to us."""
    wanted = Deployment("n1", "alc_1", "ten_1", "clu_1", network="")
    with pytest.raises(Busy) as raised:
        _wrong_state("available", "deploying").deploy(wanted)
    assert raised.value.code == "machine_changed"
    with pytest.raises(Refused):
        _wrong_state("available", "available").deploy(wanted)


def test_an_old_token_stays_over_after_other_tenancies() -> None:
    """The node remembers it; nothing is sent."""
    remembered = Marks(1, Tenancy("alc_2", "released"), ended=("alc_2", "alc_1"))
    known = node(provision_state="manageable", extra={"controlplane_test": to_json(remembered)})
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.method)
        return httpx.Response(200, json=known)

    with pytest.raises(Refused) as raised:
        peer(answer).deploy(Deployment("n1", "alc_1", "ten_1", "clu_1", network=""))
    assert raised.value.code == "tenancy_over"
    assert sent == ["GET"]


def _paged(*pages: httpx.Response) -> tuple[list[str], Any]:
    markers: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.host == "ironic.test"
        markers.append(request.url.params.get("marker", ""))
        return pages[len(markers) - 1]

    return markers, peer(answer)


def _page(*uuids: str, more: bool) -> httpx.Response:
    nodes = [node(uuid=one, name=one) for one in uuids]
    return httpx.Response(200, json={"nodes": nodes, **({"next": "http://inside.test/v1/nodes?marker=None"} if more else {})})


def test_pages_are_asked_for_by_marker_and_not_at_the_address_that_ironic_names() -> None:
    """Each node once, even when pages overlap; the list is complete."""
    markers, adapter = _paged(_page("a", "b", more=True), _page("b", "c", more=False))
    listed = adapter.list_machines()
    assert markers == ["", "b"]
    assert ([one.ref for one in listed.machines], listed.complete) == (["a", "b", "c"], True)


@pytest.mark.parametrize(
    "second",
    [httpx.Response(502, text=HTML), httpx.Response(200, json={}), _page(more=True), _page("b", more=True)],
    ids=["proxy", "no nodes", "empty", "stuck"],
)
def test_a_list_that_breaks_off_is_incomplete(second: httpx.Response) -> None:
    """What came is shown and proves nothing about the rest; what needs all of it raises."""
    pages = (_page("a", "b", more=True), second)
    listed = _paged(*pages)[1].list_machines()
    assert [one.ref for one in listed.machines] == ["a", "b"]
    assert listed.complete is False
    with pytest.raises(Unknown):
        _paged(*pages)[1].capabilities()


def test_a_list_of_which_nothing_came_raises() -> None:
    """No page, no list."""
    with pytest.raises(Unknown):
        _paged(httpx.Response(502, text=HTML))[1].list_machines()


def test_an_entry_that_is_no_node_makes_the_list_incomplete() -> None:
    """The others are still shown."""
    page = httpx.Response(200, json={"nodes": [node(), {"uuid": "x"}]})
    listed = _paged(page)[1].list_machines()
    assert (len(listed.machines), listed.complete) == (1, False)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_no_name_leads_to_another_path(ref: str) -> None:
    """Whatever a machine is called, one node is asked for, and never a listing."""
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path.partition(b"?")[0])
        return fault(404, f"Node {ref} could not be found.")

    with pytest.raises((NotFound, ProviderError)):
        peer(answer).observe(ref)
    assert all(path.startswith(b"/v1/nodes/") and path.count(b"/") == 3 and path != b"/v1/nodes/detail" for path in paths)
