"""
A cluster's own keys, made with the order: so a control plane, a worker and a kubeconfig need no secret that only a running host has.

Source: kubernetes.io, "PKI certificates and requirements"; docs.k3s.io, "k3s certificate", "k3s token"; kubeadm's bootstrap tokens.
"""

from __future__ import annotations

import re
import secrets as chance
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from controlplane.kit.certificates import EARLIER
from controlplane.rendering.kubernetes.checking import BadPlan

CA_DAYS = 3653
"""Ten years, as kubeadm's own; a cluster is not meant to see its end."""
AUTHORITIES = {"cluster": "kubernetes-ca", "front_proxy": "kubernetes-front-proxy-ca", "etcd": "etcd-ca"}
"""Each authority: its name in the keys, and in its certificate."""
_TOKEN_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"  # noqa: S105 - an alphabet
_BOOTSTRAP = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_PASSWORD = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Authority:
    """
    A certificate authority. Its repr shows no key.
    """

    certificate: str
    """PEM."""
    key: str = field(repr=False)
    """PEM."""

    @property
    def pin(self) -> str:
        """
        How kubeadm is told which authority is the right one.
        """
        public = x509.load_pem_x509_certificate(self.certificate.encode()).public_key()
        return "sha256:" + sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()

    @property
    def digest(self) -> str:
        """
        How k3s is told which authority is the right one.
        """
        return sha256(self.certificate.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """
    All keys of one cluster. Its repr shows none.
    """

    cluster: Authority
    """Signs API servers, kubelets and those who may come in."""
    front_proxy: Authority
    """Signs the API server towards extension servers."""
    etcd: Authority
    """Signs members and clients of etcd."""
    accounts: str = field(repr=False)
    """Signs tokens of service accounts: an RSA key in PEM."""
    bootstrap: str = field(repr=False)
    """kubeadm's token: with it a worker may ask for a kubelet's certificate, and nothing else."""
    servers: str = field(repr=False)
    """k3s' password for servers."""
    agents: str = field(repr=False)
    """k3s' password for workers."""

    def secrets(self) -> dict[str, str]:
        """
        All of them as text, to be sealed.
        """
        told = {name: getattr(self, name) for name in ("accounts", "bootstrap", "servers", "agents")}
        for name in AUTHORITIES:
            authority = getattr(self, name)
            told |= {f"{name}_certificate": authority.certificate, f"{name}_key": authority.key}
        return told

    @property
    def accounts_public(self) -> str:
        """
        What checks tokens of service accounts.
        """
        public = load_pem_private_key(self.accounts.encode(), None).public_key()
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def new_keys(now: datetime) -> ClusterKeys:
    """
    Keys that nobody else has, made of the system's randomness; authorities are good for ten years from `now`.
    """
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    made = {name: _authority(title, now) for name, title in AUTHORITIES.items()}
    letters = [chance.choice(_TOKEN_ALPHABET) for _ in range(22)]
    return ClusterKeys(
        cluster=made["cluster"],
        front_proxy=made["front_proxy"],
        etcd=made["etcd"],
        accounts=_pem(accounts),
        bootstrap=f"{''.join(letters[:6])}.{''.join(letters[6:])}",
        servers=chance.token_hex(32),
        agents=chance.token_hex(32),
    )


def read_keys(secrets: Mapping[str, str]) -> ClusterKeys:
    """
    The keys that `ClusterKeys.secrets` gave. Raises BadPlan, without a word of them.
    """
    try:
        told = {name: secrets[name] for name in ("accounts", "bootstrap", "servers", "agents")}
        authorities = {name: Authority(secrets[f"{name}_certificate"], secrets[f"{name}_key"]) for name in AUTHORITIES}
        for one in authorities.values():
            x509.load_pem_x509_certificate(one.certificate.encode())
            load_pem_private_key(one.key.encode(), None)
        load_pem_private_key(told["accounts"].encode(), None)
    except (KeyError, ValueError):
        raise BadPlan("keys: not the keys of a cluster", code="kubernetes_key_invalid") from None
    words = _BOOTSTRAP.fullmatch(told["bootstrap"]), _PASSWORD.fullmatch(told["servers"]), _PASSWORD.fullmatch(told["agents"])
    if not all(words):
        raise BadPlan("keys: not the tokens of a cluster", code="kubernetes_key_invalid")
    return ClusterKeys(
        cluster=authorities["cluster"],
        front_proxy=authorities["front_proxy"],
        etcd=authorities["etcd"],
        accounts=told["accounts"],
        bootstrap=told["bootstrap"],
        servers=told["servers"],
        agents=told["agents"],
    )


def _authority(title: str, now: datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate.public_bytes(Encoding.PEM).decode(), _pem(key))


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
