"""
Ways into a cluster that end by themselves, signed with its own authority: nobody is asked for them and nothing is kept.

Source: kubernetes.io, "Authenticating", X.509 client certificates: the common name is the user, each organisation a group.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.rendering.kubernetes.files import yaml_text
from controlplane.rendering.kubernetes.keys import EARLIER, Authority

OWNERS = "controlplane:owners"
"""Group of the cluster's owner; `manifests.owners` binds it to the role cluster-admin, so that unbinding it takes every way in back."""
DRIVERS = "controlplane:drivers"
"""Group of the control plane itself."""


def kubeconfig(
    authority: Authority, *, server: str, cluster: str, user: str, groups: Sequence[str], now: datetime, ends: datetime
) -> str:
    """
    A kubeconfig for the user with a key and a certificate of its own, which the API server takes until `ends`.
    """
    certificate, key = sign_client(authority, user, groups, now, ends)
    return yaml_text(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": cluster, "cluster": {"server": server, "certificate-authority-data": _base64(authority.certificate)}}
            ],
            "users": [{"name": user, "user": {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)}}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
            "current-context": cluster,
        }
    )


def sign_client(authority: Authority, user: str, groups: Sequence[str], now: datetime, ends: datetime) -> tuple[str, str]:
    """
    A certificate for the user and its new key, both in PEM.
    """
    signer = load_pem_private_key(authority.key.encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - EARLIER, issuer.not_valid_before_utc))
        .not_valid_after(min(ends, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    return certificate.public_bytes(Encoding.PEM).decode(), secret


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
