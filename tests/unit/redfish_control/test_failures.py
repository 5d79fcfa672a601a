"""
R10: every way in which a request can end is one error of the port, the same for a look and told apart for a change.
"""

import socket
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, ProviderError, Refused, Unknown, Unsupported
from controlplane.providers.hardware import Controller
from tests.simulators.redfish import ways
from tests.simulators.redfish.server import FakeBmc, no, serving
from tests.simulators.redfish.tree import RESET, SYSTEM
from tests.unit.redfish_control.conftest import Build

SAID = [
    (no(400, "Base.1.8.PropertyValueNotInList"), Refused),
    (no(401, "Base.1.8.NoValidSession"), AuthFailed),
    (no(403, "Base.1.8.InsufficientPrivilege"), AuthFailed),
    (no(403, "SMC.1.0.OemLicenseNotPassed"), Unsupported),
    (no(404, "Base.1.8.ResourceMissingAtURI"), NotFound),
    (no(405, "Base.1.8.OperationNotAllowed"), Unsupported),
    (no(408, "Base.1.8.GeneralError"), Unknown),
    (no(409, "Base.1.8.GeneralError"), Busy),
    (no(422, "Base.1.8.GeneralError"), Refused),
    (no(423, "Base.1.8.GeneralError"), Busy),
    (no(429, "Base.1.8.GeneralError", retry_after="7"), Busy),
    (no(500, "Base.1.8.InternalError"), Unknown),
    (no(500, "IDRAC.2.8.SYS518"), Busy),
    (no(400, "IDRAC.2.8.SYS518"), Busy),
    (no(400, "iLO.2.14.InvalidOperationForSystemState"), Busy),
    (no(501, "Base.1.8.ActionNotSupported"), Unsupported),
    (no(502, "Base.1.8.GeneralError"), Unknown),
    (no(503, "Base.1.8.ServiceTemporarilyUnavailable", retry_after="7"), Busy),
    (no(503, "Base.1.8.GeneralError"), Busy),
    ((500, b"<html>oops</html>", {"Content-Type": "text/html"}), Unknown),
    ((400, b"{not json", {}), Refused),
    ((400, {"error": "as text"}, {}), Refused),
    ((400, {"error": {"@Message.ExtendedInfo": {"Message": "one, not a list"}}}, {}), Refused),
    ((400, [1, 2], {}), Refused),
    ((200, {"error": {"code": "Base.1.8.GeneralError", "message": "it broke"}}, {}), Unknown),
    ((200, {"error": {"code": "IDRAC.2.8.SYS518", "message": "busy"}}, {}), Busy),
    ((200, b"<html><body>Welcome</body></html>", {"Content-Type": "text/html"}), Unknown),
    ((200, b'{"PowerState": "O', {}), Unknown),
    ((302, None, {}), Unknown),
]
NETWORK = ["reset", "cut", "truncate", "html", "error_inside", "effect_reset"]


def kind_of(error: ProviderError) -> type[ProviderError]:
    """The error of the port that it is."""
    return next(one for one in type(error).__mro__ if one.__module__ == "controlplane.providers.errors")


@pytest.mark.parametrize(("answer", "expected"), SAID)
def test_what_is_said_to_a_look(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, answer: Any, expected: type[ProviderError]
) -> None:
    """Each answer is exactly its error, and a wish for patience is passed on."""
    bmc.fail(f"GET {SYSTEM}$", "say", times=9, payload=answer)
    with pytest.raises(ProviderError) as caught:
        adapter.observe(at)
    assert kind_of(caught.value) is expected
    if "Retry-After" in answer[2]:
        assert isinstance(caught.value, Busy)
        assert caught.value.retry_in_s == 7.0


@pytest.mark.parametrize(("answer", "expected"), SAID)
def test_what_is_said_to_a_change(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, answer: Any, expected: type[ProviderError]
) -> None:
    """The same table, and the change is sent once only: repeating is the caller's choice."""
    bmc.fail(f"POST {RESET}", "say", times=9, payload=answer)
    with pytest.raises(ProviderError) as caught:
        adapter.power(at, on=True)
    assert kind_of(caught.value) is expected
    assert len(bmc.sent(f"POST {RESET}")) == (2 if expected is AuthFailed and answer[0] == 401 else 1)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"error": {"code": "iLO.0.10.ExtendedInfo", "@Message.ExtendedInfo": [{"MessageId": "Base.1.4.Success"}]}}, {}),
        (200, {"@Message.ExtendedInfo": [{"MessageId": "IDRAC.2.8.SYS413", "Severity": "OK", "Message": "done"}]}, {}),
        (202, None, {"Location": "/redfish/v1/TaskService/Tasks/1"}),
        (204, None, {}),
        (200, None, {}),
    ],
)
def test_success_in_each_of_its_forms(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, answer: Any) -> None:
    """An iLO and an iDRAC explain their successes; 200, 202 and 204 are all yes."""
    bmc.fail(f"POST {RESET}", "say", payload=answer)
    adapter.power(at, on=True)
    assert len(bmc.sent(f"POST {RESET}")) == 1


def test_a_property_that_was_not_taken_is_not_success(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """A 200 may annotate single properties that it did not change."""
    note = {"MessageId": "Base.1.8.PropertyNotWritable", "Severity": "Warning", "Message": "not this one"}
    bmc.fail("PATCH", "say", payload=(200, {"Boot": {}, "Boot@Message.ExtendedInfo": [note]}, {}))
    with pytest.raises(Unknown, match="not this one"):
        adapter.boot_from(at, "network")


@pytest.mark.parametrize("kind", NETWORK)
def test_a_look_that_breaks_is_unknown(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, kind: str) -> None:
    """Each in its way, when it lasts."""
    bmc.fail(f"GET {SYSTEM}$", kind, times=9)
    with pytest.raises(Unknown):
        adapter.observe(at)


@pytest.mark.parametrize("kind", NETWORK)
def test_a_change_that_breaks_is_unknown_and_not_repeated(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, kind: str) -> None:
    """It may have taken effect."""
    bmc.fail(f"POST {RESET}", kind if kind != "truncate" else "html", times=9)
    with pytest.raises(Unknown):
        adapter.power(at, on=True)
    assert len(bmc.sent(f"POST {RESET}")) == 1


@pytest.mark.parametrize("kind", ["reset", "say"])
def test_a_look_that_breaks_once_is_repeated(bmc: FakeBmc, build: Build, at: Controller, kind: str) -> None:
    """After a reset and after a 5xx; not at all where it is configured so."""
    bmc.fail(f"GET {SYSTEM}$", kind, payload=no(500, "Base.1.8.InternalError"))
    build().observe(at)
    times = 2 if kind == "reset" else 1  # a kept connection that ends proves nothing: a new one is tried
    bmc.fail(f"GET {SYSTEM}$", kind, times=times, payload=no(500, "Base.1.8.InternalError"))
    with pytest.raises(Unknown):
        build(read_retries=0).observe(at)


@pytest.mark.parametrize("kind", ["hang", "effect_hang", "trickle", "trickle_head"])
def test_silence_is_unknown_after_its_time(bmc: FakeBmc, build: Build, at: Controller, kind: str) -> None:
    """A controller that needs 60 s, or sends a byte now and then for ever; a look is not repeated after it."""
    adapter = build(timeout_s=0.5, call_limit_s=1.0)
    bmc.fail(f"GET {SYSTEM}$", kind, times=9)
    with pytest.raises(Unknown):
        adapter.observe(at)
    assert len(bmc.sent(f"GET {SYSTEM}")) == 1


def test_an_answer_without_end_is_cut_off(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """At the size that is configured."""
    bmc.fail(f"GET {SYSTEM}$", "say", times=9, payload=(200, {"pad": "x" * (1024 * 1024 + 1)}, {}))
    with pytest.raises(Unknown, match="larger than"):
        build(max_body_mib=1).observe(at)


def test_a_refused_connection_was_not_sent(adapter: RedfishAdapter) -> None:
    """Nor was what goes to a name that does not exist."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid"):
        with pytest.raises(NotSent):
            adapter.power(Controller(f"nod_{url}", url), on=True)


@pytest.mark.parametrize(
    "url", ["", "10.0.0.7", "ftp://10.0.0.7", "http://user:pass@10.0.0.7", "http://10.0.0.7/a?b", "http://a b"]
)
def test_an_address_that_is_none_is_a_clear_error(adapter: RedfishAdapter, url: str) -> None:
    """Before anything is sent, and without repeating what may be a password."""
    with pytest.raises(ProviderError) as caught:
        adapter.observe(Controller("nod_1", url))
    assert caught.value.code == "provider_config_invalid"
    assert "pass" not in str(caught.value)


def test_406_is_answered_without_our_wish_for_plain_text(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Some HPE Gen10 Plus refuse `Accept-Encoding: identity`."""
    bmc.fail(f"GET {SYSTEM}$", "say", payload=no(406, "Base.1.8.GeneralError"))
    assert adapter.observe(at).power == "off"


def test_certificates_are_verified_unless_told_otherwise(tmp_path: Path, build: Build) -> None:
    """An untrusted one means that nothing was sent, our password included; its authority, or no verification, lets it through."""
    context, authority = _certificate(tmp_path)
    bmc = FakeBmc()
    with serving(bmc, tls=context):
        at = Controller("nod_1", bmc.url)
        with pytest.raises(NotSent) as caught:
            build().observe(at)
        assert caught.value.code == "provider_certificate_untrusted"
        assert bmc.requests == []
        assert build(verify=str(authority)).observe(at).power == "off"
        assert build(verify=False).observe(at).power == "off"


def _certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bmc")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "bmc.pem", folder / "bmc.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, secret)
    return context, certificate


def test_a_busy_reset_is_busy(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """With the vendor's own word, at 400 and at 500."""
    for status in (400, 500):
        bmc.rules[:] = [ways.reset_is_busy("IDRAC.2.8.SYS518", status)]
        with pytest.raises(Busy):
            adapter.power(at, on=True)
