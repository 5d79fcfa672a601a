"""
What is taken as a way into a Kubernetes, and what is not.
"""

from __future__ import annotations

import base64

import pytest

from controlplane.providers.adapters.kubernetes.access import access
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.errors import Permanent
from controlplane.providers.kube.access import MAX_KUBECONFIG_BYTES, from_kubeconfig
from tests.kubernetes_kit import kubeconfig

URL = "https://10.0.0.1:6443"
PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode()


def test_a_kubeconfig_with_a_token_is_taken() -> None:
    """Server, certificates and token come from its text."""
    way = from_kubeconfig(kubeconfig(f"{URL}/", {"token": "abc"}, **{"certificate-authority-data": PEM}))
    assert (way.url, way.token) == (URL, "abc")
    assert way.ca_pem.startswith("-----BEGIN")


def test_a_token_needs_a_url() -> None:
    """A service account's token with the config's url."""
    way = access(KubernetesConfig(url=URL), {"token": "abc"})
    assert (way.url, way.token) == (URL, "abc")
    for config, secrets in (
        (KubernetesConfig(), {"token": "abc"}),
        (KubernetesConfig(url=URL), {"kubeconfig": kubeconfig(URL, {"token": "abc"})}),
        (KubernetesConfig(url=URL), {}),
        (KubernetesConfig(url=URL), {"token": "abc", "kubeconfig": "x"}),
        (KubernetesConfig(url=URL), {"token": "two words"}),
    ):
        with pytest.raises(Permanent):
            access(config, secrets)


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"exec": {"command": "/bin/sh"}}, {}),
        ({"auth-provider": {"name": "gcp"}}, {}),
        ({"tokenFile": "/etc/shadow"}, {}),
        ({"client-certificate": "/etc/shadow", "client-key": "/etc/shadow"}, {}),
        ({"username": "a", "password": "b"}, {}),
        ({"token": "abc", "as": "system:admin"}, {}),
        ({"token": "abc\r\nX: y"}, {}),
        ({"client-certificate-data": PEM}, {}),
        ({"token": "abc"}, {"certificate-authority": "/etc/shadow"}),
        ({"token": "abc"}, {"insecure-skip-tls-verify": True}),
        ({"token": "abc"}, {"proxy-url": "http://elsewhere.example"}),
        ({"token": "abc"}, {"server": "file:///etc/shadow"}),
        ({"token": "abc"}, {"server": "https://user:pass@host"}),
        ({"token": "abc"}, {"certificate-authority-data": "%%%"}),
    ],
)
def test_programs_files_and_detours_are_refused(user: dict[str, object], cluster: dict[str, object]) -> None:
    """The refusal repeats nothing of what it refuses."""
    with pytest.raises(Permanent) as wrong:
        from_kubeconfig(kubeconfig(URL, user, **cluster))
    assert not any(word in wrong.value.detail for word in ("abc", "/etc/shadow", "/bin/sh"))


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MAX_KUBECONFIG_BYTES + 1),
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        "!!python/object/apply:os.system ['true']",
        "[" * 5000,
        "- a list",
        "",
        "kind: Config\ncurrent-context: none\n",
    ],
)
def test_odd_texts_are_refused(text: str) -> None:
    """Too large, unfolding, dangerous, deep, of another form, empty, without its context."""
    with pytest.raises(Permanent):
        from_kubeconfig(text)


def test_a_way_in_does_not_show_its_secrets() -> None:
    """Not in a log line that holds it by mistake."""
    assert "abc" not in repr(from_kubeconfig(kubeconfig(URL, {"token": "abc"})))
