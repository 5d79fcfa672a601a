"""
Client certificates, signed with an authority whose key we hold, and requests for those that somebody else signs.

Source: kubernetes.io, "Authenticating", X.509 client certificates: the common name is the user, each organisation a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

EARLIER = timedelta(minutes=10)
"""Certificates begin so much before they are made: a host's clock may be behind ours."""


def sign_client(authority: tuple[str, str], user: str, groups: Sequence[str], now: datetime, ends: datetime) -> tuple[str, str]:
    """
    A certificate for the user and its new key, both in PEM; `authority` is the same of who signs.
    """
    signer = load_pem_private_key(authority[1].encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority[0].encode())
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
    return certificate.public_bytes(Encoding.PEM).decode(), _text(key)


def request_client(user: str, groups: Sequence[str]) -> tuple[str, str]:
    """
    A request for a certificate of the user, to be signed by somebody else, and its new key, both in PEM.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return asked.public_bytes(Encoding.PEM).decode(), _text(key)


def end_of(certificate: str) -> datetime:
    """
    Until when the certificate is good; UTC. Raises ValueError for what is none.
    """
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc


def pins_of(certificates: str) -> tuple[str, ...]:
    """
    SHA-256 of each certificate's public key, in hexadecimal: how kubeadm is told whom to believe. Raises ValueError.
    """
    found = x509.load_pem_x509_certificates(certificates.encode())
    public = [one.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) for one in found]
    return tuple(sha256(one).hexdigest() for one in public)


def _text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
