"""
What machines of a fabric check send.
"""

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from controlplane.fabric_checks.reporting import Word
from controlplane.fabric_checks.states import Arrival
from controlplane.web.schemas import Body, check_text

PublicKey = Annotated[str, StringConstraints(pattern=r"^(ssh-ed25519 [A-Za-z0-9+/]{60,80}={0,2})?$")]
Device = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,40}$")]
Tool = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")]
MOST_DEVICES = 64


def check_address(text: str) -> str:
    """
    The address, when another machine could reach it. Raises ValueError.
    """
    found = ip_address(text)
    if found.is_unspecified or found.is_multicast:
        raise ValueError("not the address of one machine")
    return str(found)


class ArrivalIn(Body):
    """
    A machine that has booted for its check.
    """

    address: Annotated[str, StringConstraints(max_length=60), AfterValidator(check_address)]
    tools: list[Tool] = Field(max_length=MOST_DEVICES)
    devices: list[Device] = Field(max_length=MOST_DEVICES)
    gpus: int = Field(ge=0, le=MOST_DEVICES)
    key: PublicKey
    host_key: PublicKey

    def arrival(self) -> Arrival:
        """
        As the room knows it.
        """
        return Arrival(self.address, tuple(sorted(self.tools)), tuple(sorted(self.devices)), self.gpus, self.key, self.host_key)


class WordIn(Body):
    """
    What a machine says of its part in a run.
    """

    result: Literal["passed", "failed", "not_measured"]
    detail: Annotated[str, StringConstraints(max_length=1000), AfterValidator(check_text)]
    output: str

    def word(self) -> Word:
        """
        As the room knows it.
        """
        return Word(self.result, self.detail, self.output)
