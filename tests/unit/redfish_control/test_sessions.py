"""
Being let in: one session a controller, given back, and nobody locked out by us.
"""

import base64
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import AuthFailed, Busy, Permanent, Unknown, Unsupported
from controlplane.providers.hardware import Controller
from tests.simulators.redfish import ways
from tests.simulators.redfish.server import FakeBmc, no, serving
from tests.simulators.redfish.tree import SESSIONS, SYSTEM, V1
from tests.unit.redfish_control.conftest import Build

LOGIN = f"POST {SESSIONS}"


def test_one_session_serves_all_calls_and_is_given_back(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Nothing is left at the controller after close; a closed adapter sends nothing."""
    for _ in range(3):
        adapter.observe(at)
    assert len(bmc.sessions) == 1
    adapter.close()
    assert (bmc.opened, bmc.sessions) == (1, {})
    with pytest.raises(Permanent):
        adapter.observe(at)


def test_an_expired_session_is_renewed_once(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Also in the middle of a change, which is then carried out once."""
    adapter.observe(at)
    bmc.expire_sessions()
    adapter.power(at, on=True)
    assert (bmc.opened, bmc.system["PowerState"]) == (2, "On")
    bmc.rules.append(lambda method, path, _: no(401, "Base.1.8.NoValidSession") if (method, path) == ("GET", SYSTEM) else None)
    with pytest.raises(AuthFailed):
        adapter.observe(at)
    assert bmc.opened == 3


def test_sessions_that_are_not_honoured_are_given_back(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """A controller that answers 401 to a change, whatever the session, still has sessions left for everybody afterwards."""
    adapter = build(refused_login_s=0.0)
    bmc.fail(f"PATCH {SYSTEM}", "say", times=2 * bmc.session_limit, payload=no(401, "Base.1.8.NoValidSession"))
    for _ in range(bmc.session_limit):
        with pytest.raises(AuthFailed):
            adapter.boot_from(at, "network")
    assert len(bmc.sessions) <= 1
    adapter.boot_from(at, "network")


@pytest.mark.parametrize("names_basic", [True, False])
def test_basic_where_no_session_is_offered(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, *, names_basic: bool) -> None:
    """404, or 401 that names Basic as sushy-tools does."""
    bmc.offers_sessions, bmc.names_basic = False, names_basic
    adapter.observe(at)
    adapter.observe(at)
    asked = [one for one in bmc.requests if one.line == f"GET {SYSTEM}"]
    assert {one.headers.get("Authorization") for one in asked} == {"Basic " + base64.b64encode(b"admin:old secret 1").decode()}
    assert len(bmc.sent(LOGIN)) == 1


def test_basic_when_told_so(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """No session is ever asked for."""
    build(auth="basic").observe(at)
    assert bmc.sent(LOGIN) == []


def test_without_an_account_nothing_is_sent(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """A controller that lets anybody in is asked without credentials."""
    bmc.passwords.clear()
    build(secrets={}).observe(at)
    assert not any("Authorization" in one.headers for one in bmc.requests)
    assert bmc.sent(LOGIN) == []


def test_a_wrong_password_is_tried_once(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """Many lock an account after a few tries; a corrected password is tried at once."""
    adapter = build(secrets={"username": "admin", "password": "not it at all"})
    for _ in range(3):
        with pytest.raises(AuthFailed):
            adapter.observe(at)
    assert len(bmc.sent(LOGIN)) == 1
    adapter.observe(Controller("nod_1", bmc.url, password="old secret 1"))
    assert len(bmc.sessions) == 1


def test_a_controllers_own_account_comes_before_the_providers(bmc: FakeBmc, build: Build) -> None:
    """And neither stands in its repr."""
    own = Controller("nod_1", bmc.url, username="admin", password="old secret 1")
    build(secrets={"username": "nobody", "password": "wrong wrong"}).observe(own)
    assert "old secret 1" not in repr(own)


def test_no_session_left_is_busy(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """BR-047: it recovers when others have logged out."""
    bmc.session_limit = 0
    with pytest.raises(Busy):
        adapter.observe(at)
    bmc.session_limit = 6
    adapter.observe(at)


def test_many_calls_at_once_are_one_after_the_other(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """BR-041: never more than one request in flight, and one session, at one controller."""
    adapter = build(wait_s=20.0)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: adapter.observe(at), range(24)))
    assert (bmc.most_at_once, bmc.opened) == (1, 1)


def test_clients_that_are_too_many_give_their_sessions_back(build: Build) -> None:
    """The one not used for longest goes first."""
    bmcs = [FakeBmc() for _ in range(3)]
    with serving(*bmcs):
        adapter = build(clients=2)
        for number in (0, 1, 0, 2, 0):
            adapter.observe(Controller(f"nod_{number}", bmcs[number].url))
        assert bmcs[1].left.wait(5)
        assert [len(bmc.sessions) for bmc in bmcs] == [1, 0, 1]
        adapter.close()
    assert [bmc.opened for bmc in bmcs] == [1, 1, 1]
    assert [bmc.sessions for bmc in bmcs] == [{}, {}, {}]


def test_sessions_that_idle_are_given_back(build: Build) -> None:
    """The next call to any controller finds them."""
    idle, busy = FakeBmc(), FakeBmc()
    with serving(idle, busy):
        adapter = build(idle_s=0.01)
        adapter.observe(Controller("nod_idle", idle.url))
        assert any(idle.left.wait(0.02) or adapter.observe(Controller("nod_busy", busy.url)) is None for _ in range(100))
        assert idle.sessions == {}


def test_a_link_to_another_host_is_not_followed(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """A controller that was taken over must not lead our token, or our requests, elsewhere."""
    stranger = FakeBmc()
    with serving(stranger):
        for target in (f"{stranger.url}/steal", "//evil.example/x", "not a link", f"{bmc.url}5/x", "http://127.0.0.1:x/"):
            bmc.system["Actions"]["#ComputerSystem.Reset"]["target"] = target
            with pytest.raises(Unsupported) as caught:
                adapter.power(at, on=True)
            assert caught.value.code == "provider_link_elsewhere"
        bmc.rules.append(ways.redirect(SYSTEM, f"{stranger.url}{SYSTEM}"))
        with pytest.raises(Unsupported):
            adapter.observe(at)
    assert stranger.requests == []


def test_redirects_in_a_circle_end(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """As an unknown outcome."""
    bmc.rules.append(ways.redirect(SYSTEM, SYSTEM))
    with pytest.raises(Unknown, match="circle"):
        adapter.observe(at)


def test_no_secret_in_errors_or_logs(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a controller echoes: not in our errors, nor in what they were made of, nor in sushy's lines."""
    caplog.set_level(logging.DEBUG)
    new = "a new secret 2"

    def echoes(method: str, path: str, content: dict[str, object]) -> tuple[int, object, dict[str, str]] | None:
        if method == "PATCH":
            return no(400, "Base.1.8.PropertyValueFormatError", f"{content['Password']} for old secret 1", str(content["Password"]))
        return no(403, "Base.1.8.InsufficientPrivilege", "old secret 1") if path == f"{V1}/UpdateService" else None

    bmc.rules.append(echoes)
    said = ""
    for call in (lambda: adapter.set_password(at, new), lambda: adapter.update_firmware(at, "http://x/y")):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - every kind must keep the secret
            call()
        error: BaseException | None = caught.value
        while error is not None:
            said += repr(error)
            error = error.__cause__ or error.__context__
    said += caplog.text
    assert "PropertyValueFormatError" in said
    assert [word for word in (new, "old secret 1", "token-1") if word in said] == []
