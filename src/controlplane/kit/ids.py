"""
Ids are `<prefix>_<26 characters>`: 48 bits of milliseconds, then 80 random bits, in lower-case Crockford base32, so they sort by age.
"""

import re
import secrets
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
BODY = re.compile(r"^[a-z]{2,4}_[0-7][0-9a-hjkmnp-tv-z]{25}$")
ID_PATTERN = r"^[a-z]{2,4}_[0-7][0-9a-hjkmnp-tv-z]{25}$"


def new_id(prefix: str) -> str:
    """
    A fresh id of the given kind, later than every earlier one to the millisecond.
    """
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(ALPHABET[(value >> shift) & 31] for shift in range(125, -5, -5))


def is_id(text: str, prefix: str | None = None) -> bool:
    """
    Whether the text has the form of an id, of the given kind when one is named.
    """
    return bool(BODY.match(text)) and (prefix is None or text.startswith(f"{prefix}_"))
