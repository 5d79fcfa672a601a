"""
Laws of rendering: order does not matter, members change lists only, no word of a plan becomes anything but itself, keys fit together.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.kit.certificates import sign_client
from controlplane.rendering.kubernetes.checking import BadPlan, check_plan, cluster_name
from controlplane.rendering.kubernetes.credentials import OWNERS
from controlplane.rendering.kubernetes.files import Bundle
from controlplane.rendering.kubernetes.keys import new_keys, read_keys
from controlplane.rendering.kubernetes.plan import Addons, Chart, Host, KubernetesPlan, Networks, Position, Shape, Worker
from controlplane.rendering.kubernetes.roles import control_plane_bundle, control_plane_secrets, worker_bundle, worker_secrets
from tests.factories.kubernetes_plans import HGX, NOW, keys, light, plain, three

MEMBERS = "/etc/controlplane/kubernetes/members"
HOSTILE = st.text(alphabet=st.sampled_from("a1=# \n\r\t\"'\\,[]()%$`;|&-./:{}\x00é"), min_size=1, max_size=12)


def contents(bundle: Bundle) -> dict[str, str]:
    """Files by path."""
    return {one.path: one.content for one in bundle.files}


@given(st.randoms(use_true_random=False))
@settings(max_examples=3, deadline=None)
def test_order_does_not_matter(chance: object) -> None:
    """Hosts and shapes may be named in any order."""
    plan = three()
    mixed = []
    for name in ("control_planes", "workers"):
        values = list(getattr(plan, name))
        chance.shuffle(values)  # type: ignore[attr-defined]
        mixed.append(tuple(values))
    other = replace(plan, control_planes=mixed[0], workers=mixed[1])
    assert control_plane_bundle(other, keys()) == control_plane_bundle(plan, keys())
    assert worker_bundle(other, keys(), HGX.name) == worker_bundle(plan, keys(), HGX.name)


@pytest.mark.parametrize("plan", [three(), plain(), light()], ids=["three", "plain", "light"])
def test_a_member_more_or_less_changes_one_list(plan: KubernetesPlan) -> None:
    """Control planes get another list of members, workers nothing: so a cluster may grow while hosts are away."""
    grown = replace(plan, workers=(*plan.workers, Worker("ins-z9", "10.20.0.99", HGX.name)))
    before, after = contents(control_plane_bundle(plan, keys())), contents(control_plane_bundle(grown, keys()))
    assert [path for path in after if after[path] != before.get(path)] == [MEMBERS]
    assert set(after[MEMBERS].splitlines()) - set(before[MEMBERS].splitlines()) == {"ins-z9 stays - - - -"}
    assert worker_bundle(grown, keys(), HGX.name) == worker_bundle(plan, keys(), HGX.name)


@pytest.mark.parametrize("plan", [plain(), light()], ids=["plain", "light"])
def test_secret_files_and_scripts_know_no_member(plan: KubernetesPlan) -> None:
    """They are made with the order, before any host is chosen."""
    elsewhere = replace(plan, control_planes=(Host("other", "192.0.2.9"),), workers=())
    assert control_plane_secrets(elsewhere, keys()) == control_plane_secrets(plan, keys())
    assert worker_secrets(elsewhere, keys(), HGX.name) == worker_secrets(plan, keys(), HGX.name)
    assert control_plane_bundle(elsewhere, keys()).script == control_plane_bundle(plan, keys()).script
    assert worker_bundle(elsewhere, keys(), HGX.name).script == worker_bundle(plan, keys(), HGX.name).script


@pytest.mark.parametrize("plan", [three(), light()], ids=["kubeadm", "k3s"])
def test_a_worker_holds_no_key_of_the_cluster(plan: KubernetesPlan) -> None:
    """Its token lets it be a node; authorities and the tokens of servers stay on control planes, and secrets stand in secret files only."""
    mine = keys()
    held = "".join(one.content for one in worker_bundle(plan, mine, HGX.name).files)
    for secret in (mine.cluster.key, mine.etcd.key, mine.front_proxy.key, mine.accounts, mine.servers):
        assert secret not in held
    for bundle in (control_plane_bundle(plan, mine), worker_bundle(plan, mine, HGX.name)):
        shown = bundle.script.content + "".join(one.content for one in bundle.files if not one.secret)
        assert not [secret for name, secret in mine.secrets().items() if secret in shown]
        assert all(not one.mode & 0o077 for one in bundle.files if one.secret and not one.path.endswith((".crt", ".pub")))
        assert mine.servers not in repr(bundle)


@given(HOSTILE, st.integers(0, 8))
@settings(max_examples=120, deadline=None)
def test_no_word_becomes_more_than_a_word(word: str, place: int) -> None:
    """A hostile word is refused, or is one that has nothing to say to YAML, a shell or a list."""
    plan = plain()
    worker = plan.workers[0]
    made = (
        lambda: replace(plan, cluster=word),
        lambda: replace(plan, version=word),
        lambda: replace(plan, control_planes=(Host(word, "10.20.0.2"),)),
        lambda: replace(plan, workers=(replace(worker, name=word),)),
        lambda: replace(plan, workers=(replace(worker, position=Position(leaf=word)),)),
        lambda: replace(plan, shapes=(HGX, Shape("x", 1, word))),
        lambda: replace(plan, registry=word),
        lambda: replace(plan, addons=Addons(charts={"kueue": Chart(word, "1.0.0")})),
        lambda: replace(plan, networks=Networks(domain=word)),
    )[place]()
    try:
        check_plan(made)
    except BadPlan:
        return
    assert not set(word) & set("# \n\r\t\"'\\,[]()%$`;|&{}\x00é=")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"control_planes": (Host("a", "10.20.0.2"), Host("b", "10.20.0.3"))}, "no_quorum"),
        ({"version": "1.29.0"}, "unknown_release"),
        ({"networks": Networks(pods="10.20.0.0/16")}, "overlap"),
        ({"networks": Networks(pods="10.96.0.0/12")}, "overlap"),
        ({"networks": Networks(pods="10.128.0.0/24")}, "out_of_range"),
        ({"networks": Networks(services="10.96.0.1/16")}, "bad_network"),
        ({"workers": (Worker("ins-c1", "10.20.0.11", HGX.name),)}, "duplicate"),
        ({"workers": (Worker("ins-w1", "10.20.0.2", HGX.name),)}, "duplicate"),
        ({"workers": (Worker("ins-w1", "10.20.0.11", "other"),)}, "unknown"),
        ({"addons": Addons(charts={"other": Chart("/opt/x.tgz", "1.0.0")})}, "unknown"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(wrong: dict[str, object], code: str) -> None:
    """With the part that is wrong, before anything is rendered."""
    with pytest.raises(BadPlan) as caught:
        control_plane_bundle(replace(plain(), **wrong), keys())  # type: ignore[arg-type]
    assert code in {one.code for one in caught.value.errors}


def test_keys_come_back_as_they_were_kept() -> None:
    """And what is not the keys of a cluster is refused without a word of them."""
    mine = keys()
    assert read_keys(mine.secrets()) == mine
    assert new_keys(NOW) != mine
    for name in mine.secrets():
        with pytest.raises(BadPlan) as caught:
            read_keys({**mine.secrets(), name: "quiet"})
        assert "quiet" not in str(caught.value)


def test_a_clusters_name_is_its_id() -> None:
    """As a DNS label."""
    assert cluster_name("clu_01k5x7p3r8w2v6t9q4n0m1c2d3") == "clu-01k5x7p3r8w2v6t9q4n0m1c2d3"
    with pytest.raises(BadPlan):
        cluster_name("clu 1")


def test_k3s_and_kubeadm_pin_the_authority_as_openssl_would(tmp_path: Path) -> None:
    """Digest of the public key for the one, of the certificate's file for the other."""
    file = tmp_path / "ca.crt"
    file.write_text(keys().cluster.certificate, encoding="ascii")
    line = f"openssl x509 -in {file} -noout -pubkey | openssl pkey -pubin -outform der | sha256sum; sha256sum {file}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, timeout=60)
    pin, digest = (each.split()[0] for each in done.stdout.splitlines())
    assert keys().cluster.pin == f"sha256:{pin}"
    assert keys().cluster.digest == digest


def meet(server_side: ssl.SSLContext, client_side: ssl.SSLContext) -> dict[str, object]:
    """Whom the server has met, over real sockets; raises ssl.SSLError where it takes nobody."""
    met: dict[str, object] = {}
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        plain_socket, _ = listener.accept()
        try:
            with server_side.wrap_socket(plain_socket, server_side=True) as secure:
                met["who"] = secure.getpeercert()
                secure.sendall(b"y")
        except ssl.SSLError as error:
            met["error"] = error

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with (
            socket.create_connection(listener.getsockname(), timeout=30) as raw,
            client_side.wrap_socket(raw, server_hostname="api") as secure,
        ):
            secure.recv(1)
    except (ssl.SSLError, ConnectionError):
        pass
    finally:
        thread.join(30)
        listener.close()
    if "error" in met:
        raise met["error"]  # type: ignore[misc]
    return met["who"]  # type: ignore[return-value]


def server(folder: Path) -> ssl.SSLContext:
    """A server that takes whom the cluster's authority has signed."""
    certificate, key = sign_client(
        (keys().cluster.certificate, keys().cluster.key), "api", [], datetime.now(UTC), datetime.now(UTC) + timedelta(days=1)
    )
    (folder / "server.pem").write_text(certificate + key, encoding="ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    context.load_verify_locations(cadata=keys().cluster.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.parametrize(("ends_in", "taken"), [(timedelta(hours=1), True), (timedelta(minutes=-1), False)])
def test_a_certificate_lets_its_holder_in_until_it_ends(tmp_path: Path, ends_in: timedelta, *, taken: bool) -> None:
    """By mutual TLS: the server sees the user and its groups; after the end it takes nobody."""
    now = datetime.now(UTC)
    certificate, key = sign_client((keys().cluster.certificate, keys().cluster.key), "usr_1", [OWNERS], now, now + ends_in)
    (tmp_path / "client.pem").write_text(certificate + key, encoding="ascii")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.load_cert_chain(tmp_path / "client.pem")
    if not taken:
        with pytest.raises(ssl.SSLError, match="expired"):
            meet(server(tmp_path), client)
        return
    told = dict(part[0] for part in meet(server(tmp_path), client)["subject"])  # type: ignore[attr-defined]
    assert told == {"organizationName": OWNERS, "commonName": "usr_1"}


def test_a_certificate_never_outlives_its_authority_and_signs_nobody() -> None:
    """Whatever is asked for."""
    certificate, key = sign_client((keys().cluster.certificate, keys().cluster.key), "u", ["g"], NOW, NOW + timedelta(days=36500))
    issued, issuer = (x509.load_pem_x509_certificate(one.encode()) for one in (certificate, keys().cluster.certificate))
    assert issued.not_valid_after_utc == issuer.not_valid_after_utc
    assert not issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(load_pem_private_key(key.encode(), None), ec.EllipticCurvePrivateKey)
