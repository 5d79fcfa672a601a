"""
A TLS door in front of a plain server, with a certificate of its own: for clients that show their credentials to no other.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PIECE_BYTES = 65536


@dataclass(frozen=True)
class Door:
    """
    Where it stands and who vouches for it.
    """

    url: str
    """Its address."""
    ca_pem: str
    """The certificate that clients must trust."""


def self_signed(directory: Path) -> tuple[Path, str]:
    """
    A file with a key and its certificate for this machine, and the certificate as text.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "door")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    text = certificate.public_bytes(serialization.Encoding.PEM).decode()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = directory / "door.pem"
    file.write_text(key.private_bytes(*form).decode() + text)
    return file, text


def signed_by(authority: tuple[str, str], name: str, directory: Path) -> Path:
    """
    A file with a key and its certificate for the name, signed by the authority: its certificate and key, in PEM.
    """
    issuer = x509.load_pem_x509_certificate(authority[0].encode())
    signer = serialization.load_pem_private_key(authority[1].encode(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = directory / "server.pem"
    file.write_text(key.private_bytes(*form).decode() + certificate.public_bytes(serialization.Encoding.PEM).decode())
    return file


@contextmanager
def tls_door(port: int, directory: Path, authority: tuple[str, str] | None = None, name: str = "") -> Iterator[Door]:
    """
    What comes in by the door goes to the port of this machine, and back. With an authority it has the name, and only those come in whom the
    authority knows.
    """
    file, ca_pem = self_signed(directory) if authority is None else (signed_by(authority, name, directory), authority[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority[0])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_receive, args=(listener, context, port), daemon=True).start()
        try:
            yield Door(f"https://127.0.0.1:{listener.getsockname()[1]}", ca_pem)
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)


def _receive(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(plain, context, port), daemon=True).start()


def _serve(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """One connection: this thread carries what comes in, another what goes out."""
    with suppress(OSError), plain:
        caller = context.wrap_socket(plain, server_side=True)
        with caller, socket.create_connection(("127.0.0.1", port), timeout=30) as server:
            for one in (caller, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a small piece waits for an answer to the last
            back = threading.Thread(target=_carry, args=(server, caller), daemon=True)
            back.start()
            _carry(caller, server)
            back.join(timeout=30)


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
