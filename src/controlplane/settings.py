"""
All settings, read once from the environment (prefix `CONTROLPLANE_`) and passed down as one frozen value.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """
    What this process was told. Durations are seconds.
    """

    model_config = SettingsConfigDict(env_prefix="CONTROLPLANE_", frozen=True, extra="ignore")

    deployment: str = Field(
        default="cp", pattern=r"^[a-z][a-z0-9]{0,11}$", description="First part of every tag and name at providers."
    )
    environment: Literal["development", "production"] = Field(default="development", description="Production refuses demo seeds.")
    database_url: SecretStr = Field(default=SecretStr(""), description="Postgres as the unprivileged application role.")
    owner_database_url: SecretStr = Field(
        default=SecretStr(""), description="Postgres as the owner; only migrate and bootstrap use it."
    )
    broker_url: SecretStr = Field(default=SecretStr(""), description="Redis or Valkey; empty: work is found by sweeps alone.")
    data_dir: Path = Field(default=Path(".data"), description="Where local state (simulator, logs) lives.")
    image_dir: Path | None = Field(
        default=None, description="Where images lie; shared by all API processes. None: `images` in the data directory."
    )
    master_key: SecretStr = Field(default=SecretStr(""), description="32 bytes in base64: wraps the data keys of stored secrets.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level that is written."
    )

    db_pool_size: int = Field(default=12, ge=2, le=100, description="Connections per process.")
    http_threads: int = Field(default=12, ge=2, le=100, description="Request threads per API process; not more than connections.")
    trusted_proxies: tuple[str, ...] = Field(default=(), description="Networks whose X-Forwarded-For is believed.")
    machine_url: str = Field(
        default="", pattern=r"^(https?://[^\s/?#@]+/?)?$", description="Where machines reach this API; empty: none boots by it."
    )
    metadata_networks: tuple[str, ...] = Field(
        default=(), description="Networks whose machines are known by their own address at /latest/; none: by token only."
    )
    max_body_bytes: int = Field(default=1024 * 1024, ge=1024, description="Largest request body.")
    max_image_bytes: int = Field(default=128 * 2**30, ge=1, le=2**53 - 1, description="Largest image.")
    max_image_chunk_bytes: int = Field(default=64 * 2**20, ge=1024, le=2**30, description="Largest chunk of an image's upload.")
    rate_limit_per_s: float = Field(default=200.0, gt=0, description="Requests per second and key, sustained.")
    rate_limit_burst: int = Field(default=1000, ge=1, description="Requests a key may send at once.")

    sweep_interval_s: float = Field(default=2.0, gt=0, le=60, description="Longest pause between two looks for due rows.")
    lease_s: float = Field(default=60.0, ge=1, description="How long a claim holds a row.")
    lease_grace_s: float = Field(default=5.0, ge=0, description="Extra wait before a lapsed lease is taken over.")
    step_timeout_s: float = Field(default=25.0, gt=0, description="Longest outside call; must be shorter than the lease.")
    claim_batch: int = Field(default=100, ge=1, le=1000, description="Rows claimed at once.")
    step_threads: int = Field(default=8, ge=1, le=64, description="Outside calls in flight per worker process.")
    max_attempts: int = Field(default=5, ge=1, description="Claims without an answer before a person is asked.")
    observe_interval_s: float = Field(default=30.0, gt=0, description="How often running clusters are looked at.")

    repair_webhook_url: str = Field(
        default="", pattern=r"^(https?://.{1,500})?$", description="Told of every repair that is wanted; empty: nobody is told."
    )
    repair_webhook_secret: SecretStr = Field(
        default=SecretStr(""), description="Base64 key that its messages are signed with (Standard Webhooks, `whsec_…`)."
    )

    fabric_check_after_repair: bool = Field(
        default=False,
        description="Whether a leaf is checked when a node of it came back from repair and two of its nodes are free.",
    )

    default_gpu_quota: int = Field(default=64, ge=0, description="GPU quota of a tenant created without one.")
    default_cluster_quota: int = Field(default=20, ge=0, description="Cluster quota of a tenant created without one.")
    default_key_quota: int = Field(default=100, ge=0, description="API key quota of a tenant created without one.")
    default_operation_quota: int = Field(default=100, ge=0, description="Open operations of a tenant created without a quota.")
    default_image_bytes_quota: int = Field(
        default=512 * 2**30, ge=0, description="Bytes of images of a tenant created without a quota."
    )
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$", description="Currency of the platform's price book.")
