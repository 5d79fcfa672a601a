"""
Whom connections to providers trust. Authorities are read once for all clients, for to read them takes longer than most requests.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from pathlib import Path

KEPT = 64
"""Files of authorities that are held at once; a cloud has one or two."""


def trusted(ca_file: str | None = None) -> ssl.SSLContext:
    """
    A context that checks certificates and names, by the authorities of the file or by the system's. It is shared: nobody changes it.
    A file that was written anew is read anew. Raises OSError, ssl.SSLError among them, when it cannot be read or holds no certificate.
    """
    return _read(ca_file, Path(ca_file).stat().st_mtime_ns if ca_file else 0)


@lru_cache(maxsize=KEPT)
def _read(ca_file: str | None, written_ns: int) -> ssl.SSLContext:
    del written_ns
    return ssl.create_default_context(cafile=ca_file)


@lru_cache(maxsize=1)
def trusting_all() -> ssl.SSLContext:
    """
    A context for peers whose certificate is not to be checked. It is shared: nobody changes it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
