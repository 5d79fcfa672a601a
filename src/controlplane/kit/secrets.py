"""
Secrets at rest: AES-256-GCM, each value under a data key of its own, the data key wrapped by a key provider.

What is sealed for one place opens only there: table, column, row and key version are authenticated with it. A sealed value is

    1 byte format · 2 bytes key version · 2 bytes length of the wrapped data key · wrapped data key · 12 bytes nonce · ciphertext
"""

import base64
import binascii
import hmac
import secrets
import struct
from collections.abc import Mapping
from typing import NoReturn, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FORMAT = 1
KEY_BYTES = 32
NONCE_BYTES = 12
HEAD = struct.Struct(">BHH")


class NotOpened(Exception):
    """
    The sealed value is damaged, belongs to another place, or its key is gone. Says nothing of the content.
    """


class Secret:
    """
    A value that no repr, str, format, log or pickle shows; only `reveal` does.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes | str) -> None:
        self._value = value.encode() if isinstance(value, str) else bytes(value)

    def reveal(self) -> bytes:
        """
        The value itself.
        """
        return self._value

    def text(self) -> str:
        """
        The value as UTF-8 text.
        """
        return self._value.decode()

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets do not travel")


class KeyProvider(Protocol):
    """
    Wraps data keys: a master key of ours, or a key service that never lets its own out.
    """

    @property
    def version(self) -> int:
        """
        The key version that new values are wrapped with, 0 to 65535.
        """
        ...

    def wrap(self, data_key: bytes) -> bytes:
        """
        The data key, wrapped with the current version.
        """
        ...

    def unwrap(self, version: int, wrapped: bytes) -> bytes:
        """
        The data key again. Raises NotOpened for an unknown version or a damaged value.
        """
        ...


class MasterKeys:
    """
    A key provider over master keys in memory; the highest version wraps, all of them unwrap.
    """

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys or any(len(key) != KEY_BYTES for key in keys.values()):
            raise ValueError("master keys are 32 bytes each")
        self._keys = {version: AESGCM(key) for version, key in keys.items()}

    @property
    def version(self) -> int:
        """
        The highest version.
        """
        return max(self._keys)

    def wrap(self, data_key: bytes) -> bytes:
        """
        The data key under the newest master key.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._keys[self.version].encrypt(nonce, data_key, self._place(self.version))

    def unwrap(self, version: int, wrapped: bytes) -> bytes:
        """
        The data key again. Raises NotOpened.
        """
        key = self._keys.get(version)
        if key is None:
            raise NotOpened("The master key of this version is not here.")
        try:
            return key.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], self._place(version))
        except (InvalidTag, ValueError):
            raise NotOpened("The wrapped key is damaged or of another master key.") from None

    @staticmethod
    def _place(version: int) -> bytes:
        return b"data key" + struct.pack(">H", version)


class Sealer:
    """
    Seals values for one place in the database and opens them there.
    """

    def __init__(self, provider: KeyProvider) -> None:
        self._provider = provider

    @classmethod
    def from_base64(cls, master_key: str) -> "Sealer":
        """
        A sealer under one master key: 32 bytes in base64, as the settings hold it. Raises ValueError without repeating the key.
        """
        try:
            key = base64.b64decode(master_key, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("the master key is not base64") from None
        return cls(MasterKeys({1: key}))

    def seal(self, plain: bytes, *, table: str, column: str, row: str) -> bytes:
        """
        The value sealed for this place under a fresh data key.
        """
        version = self._provider.version
        data_key, nonce = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(NONCE_BYTES)
        wrapped = self._provider.wrap(data_key)
        body = AESGCM(data_key).encrypt(nonce, plain, _place(table, column, row, version))
        return HEAD.pack(FORMAT, version, len(wrapped)) + wrapped + nonce + body

    def open(self, sealed: bytes, *, table: str, column: str, row: str) -> bytes:
        """
        The value again. Raises NotOpened when it was changed, sealed for another place or under a key that is not here.
        """
        if len(sealed) < HEAD.size:
            raise NotOpened("The sealed value is cut off.")
        form, version, length = HEAD.unpack_from(sealed)
        if form != FORMAT:
            raise NotOpened("The sealed value has an unknown format.")
        rest = memoryview(sealed)[HEAD.size :]
        wrapped, nonce, body = rest[:length], rest[length : length + NONCE_BYTES], rest[length + NONCE_BYTES :]
        data_key = self._provider.unwrap(version, bytes(wrapped))
        try:
            return AESGCM(data_key).decrypt(bytes(nonce), bytes(body), _place(table, column, row, version))
        except (InvalidTag, ValueError):
            raise NotOpened("The sealed value is damaged or belongs to another place.") from None

    def is_current(self, sealed: bytes) -> bool:
        """
        Whether the value is sealed under the newest key version; if not, `reseal` it.
        """
        return len(sealed) >= HEAD.size and HEAD.unpack_from(sealed)[1] == self._provider.version

    def reseal(self, sealed: bytes, *, table: str, column: str, row: str) -> bytes:
        """
        The same value for the same place under the newest key version and a fresh data key. Raises NotOpened.
        """
        return self.seal(self.open(sealed, table=table, column=column, row=row), table=table, column=column, row=row)


def _place(table: str, column: str, row: str, version: int) -> bytes:
    parts = (table.encode(), column.encode(), row.encode(), struct.pack(">H", version))
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)
