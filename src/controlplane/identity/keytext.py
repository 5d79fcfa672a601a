"""
The text form of a key: `cpk_<kind>_<id body>_<secret>_<checksum>`.

The prefix names the kind of secret for scanners and no brand; the id body finds the row; the secret is 256 random bits; the
checksum tells a mistyped or cut key without a query. Only lower-case Crockford base32 is used, so a double click selects the whole.
"""

import re
import secrets
import zlib
from dataclasses import dataclass
from hashlib import sha256

from controlplane.kit.access import ScopeKind
from controlplane.kit.ids import ALPHABET

PREFIX = "cpk"
KINDS: dict[ScopeKind, str] = {"platform": "op", "reseller": "rs", "tenant": "tn", "project": "pj"}
SECRET_BYTES = 32
SECRET_CHARS = 52
CHECKSUM_CHARS = 7
FORM = re.compile(
    r"cpk_(?P<kind>op|rs|tn|pj)_(?P<body>[0-7][0-9a-hjkmnp-tv-z]{25})_(?P<secret>[0-9a-hjkmnp-tv-z]{52})_(?P<checksum>[0-9a-hjkmnp-tv-z]{7})"
)


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """
    A key of the right form; whether it exists is another question.
    """

    key_id: str
    """`key_…`."""
    scope_kind: ScopeKind
    """Level that its text claims."""
    secret_hash: bytes
    """SHA-256 of the secret part."""


def mint(key_id: str, scope_kind: ScopeKind) -> tuple[str, bytes]:
    """
    A fresh key's text, to be shown once, and the hash that is stored.
    """
    secret = _base32(int.from_bytes(secrets.token_bytes(SECRET_BYTES), "big"), SECRET_CHARS)
    front = f"{PREFIX}_{KINDS[scope_kind]}_{key_id.removeprefix('key_')}_{secret}"
    return f"{front}_{_checksum(front)}", sha256(secret.encode()).digest()


def parse(text: str) -> ParsedKey | None:
    """
    The parts of a key, or None when form or checksum is wrong.
    """
    match = FORM.fullmatch(text)
    if match is None or _checksum(text.rpartition("_")[0]) != match["checksum"]:
        return None
    kind = next(level for level, mark in KINDS.items() if mark == match["kind"])
    return ParsedKey(f"key_{match['body']}", kind, sha256(match["secret"].encode()).digest())


def _checksum(front: str) -> str:
    return _base32(zlib.crc32(front.encode()), CHECKSUM_CHARS)


def _base32(value: int, width: int) -> str:
    return "".join(ALPHABET[(value >> (5 * place)) & 31] for place in reversed(range(width)))
