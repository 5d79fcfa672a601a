"""
Where an API server is and how we show who we are: from a kubeconfig or a token, from text alone.

A kubeconfig may name programs to run and files to read. Both belong to the machine of whoever wrote it, so they are refused here.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from controlplane.providers.errors import Permanent

MAX_KUBECONFIG_BYTES = 256 * 1024
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=:-]{1,16384}")
_USER_KEYS = {"token", "client-certificate-data", "client-key-data"}
_CLUSTER_KEYS = {"server", "certificate-authority-data", "tls-server-name", "disable-compression"}


@dataclass(frozen=True, slots=True)
class Access:
    """
    One way in.
    """

    url: str
    """Of the API server, without a slash at its end."""
    ca_pem: str = ""
    """Certificates that sign its own; empty: the system's."""
    server_name: str = ""
    """The name its certificate must have, when it is not the URL's."""
    others: tuple[str, ...] = ()
    """Where other servers of the same API are, which have the same name and believe the same credential."""
    token: str = field(default="", repr=False)
    """A bearer token."""
    cert_pem: str = field(default="", repr=False)
    """A client certificate."""
    key_pem: str = field(default="", repr=False)
    """That certificate's key."""


def operators_access(secrets: Mapping[str, str], *, url: str, ca_pem: str, context: str) -> Access:
    """
    The way in that an operator gave: exactly one of the secrets `kubeconfig` and `token`. Raises Permanent, without repeating a secret.
    """
    if set(secrets) == {"kubeconfig"}:
        if url or ca_pem:
            raise _wrong("a kubeconfig brings its own url and ca_pem")
        return from_kubeconfig(secrets["kubeconfig"], context)
    if set(secrets) == {"token"} and url:
        return Access(url.rstrip("/"), ca_pem=ca_pem, token=_token(secrets["token"]))
    raise _wrong("give the secret kubeconfig, or the secret token with a url")


def from_kubeconfig(text: str, context: str = "") -> Access:
    """
    The way in that the kubeconfig's context names. Raises Permanent.
    """
    if len(text.encode(errors="replace")) > MAX_KUBECONFIG_BYTES:
        raise _wrong(f"the kubeconfig is larger than {MAX_KUBECONFIG_BYTES} bytes")
    whole = _mapping(_parsed(text), "the kubeconfig")
    chosen = context or whole.get("current-context")
    entry = _named(whole, "contexts", chosen, "context")
    cluster = _named(whole, "clusters", entry.get("cluster"), "cluster")
    user = _named(whole, "users", entry.get("user"), "user")
    _only(cluster, _CLUSTER_KEYS, "cluster")
    _only(user, _USER_KEYS, "user")
    url = cluster.get("server")
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise _wrong("its cluster names no server")
    name = cluster.get("tls-server-name", "")
    if not isinstance(name, str):
        raise _wrong("its tls-server-name is not text")
    cert, key = _decoded(user, "client-certificate-data"), _decoded(user, "client-key-data")
    if bool(cert) != bool(key):
        raise _wrong("a client certificate needs its key, and a key its certificate")
    token = user.get("token", "")
    return Access(
        url.rstrip("/"),
        ca_pem=_decoded(cluster, "certificate-authority-data"),
        server_name=name,
        token=_token(token) if token else "",
        cert_pem=cert,
        key_pem=key,
    )


def published(text: str) -> tuple[str, str]:
    """
    URL and authority (PEM) of the one server that a kubeconfig without users names, as kubeadm publishes it. Raises Permanent.
    """
    found = _mapping(_parsed(text), "the kubeconfig").get("clusters")
    if not isinstance(found, list) or len(found) != 1:
        raise _wrong("the kubeconfig names not exactly one cluster")
    cluster = _mapping(_mapping(found[0], "its cluster").get("cluster"), "its cluster")
    url = cluster.get("server")
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise _wrong("its cluster names no server")
    return url.rstrip("/"), _decoded(cluster, "certificate-authority-data")


class _PlainLoader(yaml.SafeLoader):
    """
    Without aliases: a few lines of them unfold to gigabytes.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        """
        The node, unless it is an alias.
        """
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not taken")
        return super().compose_node(parent, index)


def _parsed(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader without aliases
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _wrong("the kubeconfig cannot be read as YAML without aliases") from None


def _named(whole: Mapping[str, Any], group: str, name: Any, kind: str) -> Mapping[str, Any]:
    for one in whole.get(group) or []:
        if isinstance(one, dict) and name and one.get("name") == name:
            return _mapping(one.get(kind), f"its {kind}")
    raise _wrong(f"the kubeconfig has no such {kind}")


def _only(given: Mapping[str, Any], known: set[str], what: str) -> None:
    odd = sorted(str(key)[:40] for key in set(given) - known)
    if odd:
        raise _wrong(
            f"its {what} uses {', '.join(odd)}: only {', '.join(sorted(known))} are taken, as text in the kubeconfig itself"
        )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is not a mapping")
    return value


def _decoded(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key, "")
    try:
        text = base64.b64decode(value, validate=True).decode("ascii")
    except (binascii.Error, TypeError, ValueError):
        raise _wrong(f"its {key} is not base64 of PEM") from None
    if text and "-----BEGIN " not in text:
        raise _wrong(f"its {key} is not base64 of PEM")
    return text


def _token(value: Any) -> str:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value.strip()):
        raise _wrong("the token is not a bearer token")
    return value.strip()


def _wrong(what: str) -> Permanent:
    return Permanent(f"the Kubernetes provider's access is wrong: {what}", code="provider_config_invalid")
