"""
Keys and certificates by openssl, as a cluster's programs make and check them.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.stand_ins.machine import fail, put, run

DAYS = 1095


def check_authority(certificate: str, key: str) -> None:
    """
    The two belong together, may sign, are good today, and only root reads the key. Both are paths.
    """
    for path, mode in ((certificate, 0o644), (key, 0o600)):
        found = Path(path).stat()
        if found.st_mode & 0o777 & ~mode or found.st_uid:
            fail(f"{path} has the mode {found.st_mode & 0o777:04o} and the owner {found.st_uid}")
    run("openssl", "verify", "-CAfile", certificate, certificate)
    if "CA:TRUE" not in run("openssl", "x509", "-in", certificate, "-noout", "-ext", "basicConstraints"):
        fail(f"{certificate} may not sign")
    if run("openssl", "x509", "-in", certificate, "-noout", "-pubkey") != run("openssl", "pkey", "-in", key, "-pubout"):
        fail(f"{key} is not the key of {certificate}")


def check_pair(public: str, key: str) -> None:
    """
    The public key is that of the other. Both are paths.
    """
    if run("openssl", "pkey", "-pubin", "-in", public, "-pubout") != run("openssl", "pkey", "-in", key, "-pubout"):
        fail(f"{public} and {key} do not belong together")


def pin(certificate: str) -> str:
    """
    How kubeadm names an authority: SHA-256 over its public key. The certificate is given as text.
    """
    public = run("openssl", "x509", "-noout", "-pubkey", given=certificate)
    raw = base64.b64decode("".join(public.splitlines()[1:-1]), validate=True)
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def request(key: str, user: str, groups: Sequence[str]) -> str:
    """
    A new key at the path, and a request to sign it for the user.
    """
    if not Path(key).exists():
        put(key, run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"))
    subject = "".join(f"/O={one}" for one in groups) + f"/CN={user}"
    return run("openssl", "req", "-new", "-key", key, "-subj", subject)


def sign(asked: str, authority: tuple[str, str], *, client: bool, names: Sequence[str] = ()) -> str:
    """
    The request's certificate, for servers with these names (`DNS:...`, `IP:...`), for clients, or for both; the authority is two paths.
    """
    usages = [*(["serverAuth"] if names or not client else []), *(["clientAuth"] if client else [])]
    lines = ["basicConstraints=critical,CA:FALSE", f"extendedKeyUsage={','.join(usages)}"]
    if names:
        lines.append(f"subjectAltName={','.join(names)}")
    with tempfile.NamedTemporaryFile("w", suffix=".ext") as extensions:
        extensions.write("\n".join(lines) + "\n")
        extensions.flush()
        serial = str(int.from_bytes(hashlib.sha256(asked.encode()).digest()[:8], "big"))
        signer = ("-CA", authority[0], "-CAkey", authority[1], "-set_serial", serial)
        return run("openssl", "x509", "-req", "-days", str(DAYS), *signer, "-extfile", extensions.name, given=asked)


def subject(asked: str) -> tuple[str, list[str]]:
    """
    For whom a request asks: user and groups.
    """
    told = run("openssl", "req", "-noout", "-verify", "-subject", "-nameopt", "sep_multiline,utf8", given=asked)
    pairs = [line.strip().split("=", 1) for line in told.splitlines()[1:] if "=" in line]
    return next((value for name, value in pairs if name == "CN"), ""), [value for name, value in pairs if name == "O"]


def made(
    path: str, authority: tuple[str, str], user: str, groups: Sequence[str] = (), names: Sequence[str] = (), *, peer: bool = False
) -> None:
    """
    `path`.crt and `path`.key are there: of a server where there are names, else of a client; a peer is both.
    """
    if not Path(f"{path}.crt").exists():
        asked = request(f"{path}.key", user, groups)
        put(f"{path}.crt", sign(asked, authority, client=peer or not names, names=names), 0o644)
