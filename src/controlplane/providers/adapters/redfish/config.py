"""
What an operator says about the controllers of one provider.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

PORT_LIMIT_S = 58.0
"""The port allows under 60 s a call."""


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise ValueError("must be an absolute path")
    return value


class RedfishConfig(BaseModel):
    """
    One fleet of controllers that are spoken to alike.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    verify: bool | Annotated[str, AfterValidator(_absolute)] = True
    """TLS: True trusts the system's authorities, a path those in that file; False trusts anybody, for networks of your own only."""
    auth: Literal["session", "basic"] = "session"
    """`session`: one a controller, and Basic where it offers none; `basic`: never a session."""
    timeout_s: float = Field(default=15.0, gt=0, le=30)
    """Longest a controller may be silent within one request."""
    connect_timeout_s: float = Field(default=5.0, gt=0, le=30)
    """Longest a connection may take to come about."""
    call_limit_s: float = Field(default=45.0, gt=0, le=55)
    """Longest one call of the port may take, all its requests included; inventories and logs take what the port's 60 s leave."""
    read_retries: int = Field(default=1, ge=0, le=3)
    """How often a read that was reset or answered with a 5xx is repeated. Changes never are."""
    retry_delay_s: float = Field(default=0.5, ge=0, le=5)
    """Before such a repetition."""
    max_body_mib: int = Field(default=8, ge=1, le=64)
    """Larger answers are not read to their end."""
    calls: int = Field(default=64, ge=1, le=512)
    """Controllers asked at one time, in each process. Each controller gets one call at a time, whatever this says."""
    silent_calls: int = Field(default=4, ge=1, le=64)
    """Of controllers that did not answer the last time: asked at one time, beside `calls`."""
    wait_s: float = Field(default=5.0, gt=0, le=20)
    """Longest a call waits for its controller, or for a place, before it is told to come back."""
    silence_s: float = Field(default=10.0, ge=0, le=300)
    """How long a controller that did not answer is left alone; doubles with every further silence, up to eight times."""
    refused_login_s: float = Field(default=60.0, ge=0, le=3600)
    """How long a controller that refused our password is left alone: many lock an account after a few wrong ones."""
    clients: int = Field(default=512, ge=1, le=20_000)
    """Controllers whose session is kept; the one not used for longest gives way."""
    idle_s: float = Field(default=300.0, gt=0, le=3600)
    """A session not used for so long is given back: controllers have few."""
    poll_s: float = Field(default=1.0, gt=0, le=10)
    """Between two looks at a virtual drive that changes."""
    media_wait_s: float = Field(default=10.0, gt=0, le=30)
    """Longest a virtual drive may take to show what was asked."""
    network_boot: Literal["Pxe", "UefiHttp"] = "Pxe"
    """How machines boot from the network where the controller knows both ways."""
    vendor: str = Field(default="", max_length=100)
    """Stands for the manufacturer that machines report, for those that report nonsense."""

    @model_validator(mode="after")
    def _fits(self) -> "RedfishConfig":
        if self.timeout_s > self.call_limit_s:
            raise ValueError("timeout_s must not be longer than call_limit_s")
        if self.call_limit_s > self.reading_limit_s:
            raise ValueError(f"call_limit_s and twice wait_s must not be longer than {PORT_LIMIT_S} s together")
        return self

    @property
    def reading_limit_s(self) -> float:
        """
        Longest a call that reads many resources may take: what the port allows, less the waits for a controller and for a place.
        """
        return PORT_LIMIT_S - 2 * self.wait_s
