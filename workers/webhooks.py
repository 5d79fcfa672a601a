"""
Telling an operator's system of repairs: one signed message for each ticket, again until it takes note.

Source: Standard Webhooks, "Signature scheme": `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,<base64 of HMAC-SHA256>` over
`id.timestamp.body`. The id stays the same for every try, so that the receiver can tell a repeat.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import time
from typing import Any

import httpx

from controlplane.kit.clock import rfc3339
from controlplane.settings import Settings

log = logging.getLogger(__name__)
TIMEOUT_S = 10.0
PREFIX = "whsec_"


class RepairHook:
    """
    One receiver. Follows no redirects; never raises for what the receiver does.
    """

    def __init__(self, url: str, key: bytes) -> None:
        self._url = url
        self._key = key
        self._client = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False)

    @classmethod
    def of(cls, settings: Settings) -> RepairHook | None:
        """
        The receiver in the settings, or None. Raises ValueError for a URL without a usable key.
        """
        if not settings.repair_webhook_url:
            return None
        text = settings.repair_webhook_secret.get_secret_value().removeprefix(PREFIX)
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if not key:
            raise ValueError("CONTROLPLANE_REPAIR_WEBHOOK_SECRET must hold a base64 key when a repair webhook is set")
        return cls(settings.repair_webhook_url, key)

    def tell(self, message: dict[str, Any]) -> bool:
        """
        Whether the receiver took note (any 2xx).
        """
        body = json.dumps(message, default=rfc3339).encode()
        identity, at = str(message["id"]), str(int(time.time()))
        signed = hmac.new(self._key, f"{identity}.{at}.".encode() + body, hashlib.sha256).digest()
        headers = {
            "content-type": "application/json",
            "webhook-id": identity,
            "webhook-timestamp": at,
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
        }
        try:
            answer = self._client.post(self._url, content=body, headers=headers)
        except httpx.HTTPError as error:
            log.warning("the repair webhook does not answer", extra={"ticket_id": identity, "kind": type(error).__name__})
            return False
        if not answer.is_success:
            log.warning("the repair webhook refuses", extra={"ticket_id": identity, "status": answer.status_code})
        return answer.is_success

    def close(self) -> None:
        """
        No connection is left.
        """
        self._client.close()
