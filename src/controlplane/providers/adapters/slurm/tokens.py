"""
Slurm's JSON web tokens: one that the operator gave, or short ones minted from Slurm's own key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from controlplane.providers.errors import AuthFailed, Permanent

LIFETIME_S = 300
MIN_KEY_BYTES = 16


class Tokens:
    """
    Gives a token for acting as a user. Its repr and errors never hold one.
    """

    def __init__(self, secrets: Mapping[str, str], now: Callable[[], datetime]) -> None:
        self._now = now
        self._fixed = secrets.get("token", "").strip()
        self._key = _key(secrets.get("jwt_key", ""))
        if bool(self._fixed) == bool(self._key):
            raise Permanent("exactly one of the secrets token and jwt_key is needed", code="provider_config_invalid")

    @property
    def mints(self) -> bool:
        """
        Whether each user gets a token of its own.
        """
        return bool(self._key)

    def for_user(self, user: str) -> str:
        """
        A token that lets us act as the user now. Raises AuthFailed for one that has expired.
        """
        now_s = int(self._now().timestamp())
        if self._key:
            return mint(self._key, user=user, issued_at_s=now_s, lifetime_s=LIFETIME_S)
        expires_s = _expiry(self._fixed)
        if expires_s is not None and expires_s <= now_s:
            raise AuthFailed("the Slurm token has expired", code="provider_token_expired")
        return self._fixed


def mint(key: bytes, *, user: str, issued_at_s: int, lifetime_s: int) -> str:
    """
    A token as `scontrol token` makes it. Source: slurm.schedmd.com/jwt.html (claims sun, iat, exp; HS256).
    """
    head = _part({"alg": "HS256", "typ": "JWT"})
    claims = _part({"exp": issued_at_s + lifetime_s, "iat": issued_at_s, "sun": user})
    signature = hmac.new(key, f"{head}.{claims}".encode(), hashlib.sha256).digest()
    return f"{head}.{claims}.{_text(signature)}"


def _part(value: Mapping[str, Any]) -> str:
    return _text(json.dumps(value, separators=(",", ":")).encode())


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _key(text: str) -> bytes:
    if not text.strip():
        return b""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error as error:
        raise Permanent("the secret jwt_key is not base64", code="provider_config_invalid") from error
    if len(key) < MIN_KEY_BYTES:
        raise Permanent(f"the secret jwt_key is shorter than {MIN_KEY_BYTES} bytes", code="provider_config_invalid")
    return key


def _expiry(token: str) -> int | None:
    try:
        middle = token.split(".")[1]
        value = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))).get("exp")
    except (IndexError, ValueError, AttributeError):
        return None
    return value if isinstance(value, int) else None
