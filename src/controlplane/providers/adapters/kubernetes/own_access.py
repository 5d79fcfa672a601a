"""
Ways into a Kubernetes whose authority's key is not ours: certificates that it signs itself when asked, and tokens by which hosts join.

Source: kubernetes.io, "Certificates and Certificate Signing Requests" (signer kubernetes.io/kube-apiserver-client: never approved by
itself, signed by the controller manager, which k3s runs as well; expirationSeconds of at least 600), "Authenticating with Bootstrap
Tokens"; docs.k3s.io, "k3s token" (agents join with bootstrap tokens, servers do not; the secure format names the authority).
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from controlplane.kit.certificates import end_of, pins_of, request_client
from controlplane.providers.adapters.kubernetes.own_marks import SYSTEM, name_of
from controlplane.providers.deadline import time_left_s
from controlplane.providers.errors import Permanent, Refused, Unknown
from controlplane.providers.joining import Door
from controlplane.providers.kube.access import published
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.names import Names, core

Json = dict[str, Any]
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNER = "kubernetes.io/kube-apiserver-client"
PATIENCE_S, LOOK_S = 8.0, 0.1
"""How long a signature is waited for, and how often it is looked for: controllers take a fraction of a second."""
SLACK = timedelta(minutes=15)
"""How much later than asked a certificate may end: signers round, and their clocks differ from ours."""
GROUPS = {
    "kubeadm": "system:bootstrappers:kubeadm:default-node-token",
    "k3s": "system:bootstrappers:k3s:default-node-token",
}
"""Whose requests for kubelets' certificates are approved by themselves."""
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
ID_LETTERS, SECRET_LETTERS = 6, 16


class Signing:
    """
    Certificates that the cluster signs.
    """

    def __init__(self, kube: Kube, names: Names, now: Callable[[], datetime]) -> None:
        self._kube = kube
        self._names = names
        self._now = now

    def sign(self, cluster_id: str, user: str, group: str, lifetime_s: int) -> tuple[str, str, datetime]:
        """
        A certificate for the user in the group, its key, and when it ends. The request does not stay. Raises Refused where it was turned
        down or lives longer than asked, Unknown where nobody signed it in time.
        """
        asked, key = request_client(user, [group])
        name = f"{self._names.namespace(cluster_id)}-{secrets.token_hex(6)}"
        spec = {
            "request": _base64(asked),
            "signerName": SIGNER,
            "expirationSeconds": lifetime_s,
            "usages": ["client auth"],
        }
        path = f"{REQUESTS}/{name}"
        body = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "labels": self._names.labels(cluster_id)},
            "spec": spec,
        }
        try:
            self._kube.create(REQUESTS, body)
            certificate = self._approved(path)
        finally:
            self._kube.delete(path)  # what is lost here is removed by the cluster itself within a day, and its key is nobody's
        return self._checked(certificate, key, lifetime_s)

    def _approved(self, path: str) -> str:
        condition = {
            "type": "Approved",
            "status": "True",
            "reason": "ControlPlane",
            "message": "Asked for through the control plane's API by somebody who may.",
        }
        self._kube.patch(f"{path}/approval", {"status": {"conditions": [condition]}})
        ends_at = time.monotonic() + time_left_s(PATIENCE_S)
        while True:
            status = self._kube.get(path).get("status") or {}
            if status.get("certificate"):
                return _text(status["certificate"])
            wrong = [one for one in status.get("conditions") or [] if one.get("type") in {"Denied", "Failed"}]
            if wrong:
                told = f"{wrong[0].get('reason', '')}: {wrong[0].get('message', '')}"
                raise Refused(f"the cluster does not sign: {told}"[:500], code="provider_not_signed")
            if time.monotonic() >= ends_at:
                raise Unknown("nobody signed the request in time", retry_in_s=5.0)
            time.sleep(LOOK_S)

    def _checked(self, certificate: str, key: str, lifetime_s: int) -> tuple[str, str, datetime]:
        try:
            ends = end_of(certificate)
        except ValueError:
            raise Unknown("what was signed is no certificate") from None
        if ends > self._now() + timedelta(seconds=lifetime_s) + SLACK:
            raise Refused("the cluster's signer does not heed how long certificates shall live", code="provider_not_signed")
        return certificate, key, ends


class Doors:
    """
    Tokens by which hosts join.
    """

    def __init__(self, kube: Kube, names: Names, now: Callable[[], datetime], ca_pem: str, url: str, join_server: str) -> None:
        self._kube = kube
        self._names = names
        self._now = now
        self._ca_pem = ca_pem
        self._url = url
        self._join_server = join_server

    def open(self, cluster_id: str, distribution: str, version: str, lasts_s: int) -> Door:
        """
        See `SupportsJoining.open_door`.
        """
        server, authority = self._kubeadm() if distribution == "kubeadm" else self._k3s()
        name, secret = _word(ID_LETTERS), _word(SECRET_LETTERS)
        ends = self._now() + timedelta(seconds=lasts_s)
        told = {
            "token-id": name,
            "token-secret": secret,
            "description": f"New workers of {cluster_id}.",
            "expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
            "usage-bootstrap-authentication": "true",
            "usage-bootstrap-signing": "true",
            "auth-extra-groups": GROUPS[distribution],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"bootstrap-token-{name}", "namespace": SYSTEM, "labels": self._names.labels(cluster_id)},
            "type": "bootstrap.kubernetes.io/token",
            "data": {key: _base64(value) for key, value in told.items()},
        }
        self._kube.create(core(SYSTEM, "secrets"), body)
        return Door(distribution, version, self._join_server or server, f"{name}.{secret}", authority)

    def close(self, cluster_id: str) -> None:
        """
        See `SupportsJoining.close_door`.
        """
        for one in self._kube.list_all(core(SYSTEM, "secrets"), labels=self._names.selector(cluster_id)):
            if one.get("type") == "bootstrap.kubernetes.io/token":
                self._kube.delete(core(SYSTEM, "secrets", name_of(one)))

    def _kubeadm(self) -> tuple[str, str]:
        """
        Where kubeadm looks for the API, and the pin of its authority: hosts go on with what this object names.
        """
        found = self._kube.get(core("kube-public", "configmaps", "cluster-info"))
        try:
            url, authority = published(str((found.get("data") or {}).get("kubeconfig", "")))
            pins = pins_of(authority)
        except (Permanent, ValueError):
            raise Unknown("kube-public/cluster-info names no server, or no authority") from None
        return url.removeprefix("https://"), pins[0]

    def _k3s(self) -> tuple[str, str]:
        """
        Where we reach the API, and the digest of its authority: of the file as servers hand it out where it is one certificate.
        """
        told = self._kube.read("/cacerts")
        try:
            count = len(pins_of(told.decode("ascii")))
        except ValueError:
            raise Unknown("/cacerts holds no certificate") from None
        if count != 1:
            words = "its authority is one of several in a chain, which agents are not told by a digest of ours"
            raise Refused(words, code="provider_authority_chain")
        return self._url.split("://", 1)[1].split("/", 1)[0], sha256(told).hexdigest()


def _word(letters: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(letters))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode("ascii")
