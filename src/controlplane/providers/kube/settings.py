"""
What operators say of any Kubernetes in the same words.
"""

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator

_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def _label_key(value: str) -> str:
    if not _LABEL_KEY.fullmatch(value):
        raise ValueError("not the key of a label")
    return value


def _cidr(value: str) -> str:
    return str(ipaddress.ip_network(value))


LabelKey = Annotated[str, AfterValidator(_label_key)]
Cidr = Annotated[str, AfterValidator(_cidr)]
