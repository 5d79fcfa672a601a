"""
What an operator says about one Slurm.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from controlplane.providers.adapters.slurm.names import check_name, check_path
from controlplane.providers.volumes import check_volume

Name = Annotated[str, AfterValidator(check_name)]
Directory = Annotated[str, AfterValidator(check_path)]
SUPPORTED_API = (45, 44, 43, 42, 41, 40, 38)
"""Minor numbers of `v0.0.N` this adapter speaks, best first. 39 (23.02) is left out: it mixes both dialects."""
SCRUB_PATHS = ("/tmp", "/var/tmp", "/dev/shm", "/var/spool")  # noqa: S108 - what tenants could write to on a node


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class CliConfig(_Strict):
    """
    How scontrol and sacctmgr of the server's version are run.
    """

    argv_prefix: list[str] = Field(default_factory=list)
    """Put before every command, for example `["ssh", "-oBatchMode=yes", "head"]`; empty: the commands are installed here."""
    quote: bool = False
    """True when the prefix hands the arguments to a shell, as ssh does: each is then quoted."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to a minimal environment, for example `SLURM_CONF`."""
    timeout_s: float = Field(default=10.0, gt=0, le=20)
    """Longest one command may take."""


class ReadConfig(_Strict):
    """
    How files that workers wrote are read, when not from a file system mounted here.
    """

    argv_prefix: list[str]
    """Put before GNU `dd`; `{user}` becomes the file's owner, for example `["ssh", "head", "sudo", "-nu", "{user}"]`."""
    quote: bool = False
    """As in `cli`."""


class ScrubConfig(_Strict):
    """
    How a node is wiped between tenants.
    """

    enabled: bool = False
    """Off: the pool must be sold to one tenant only."""
    report_dir: str = ""
    """Where reports are written: on every node, readable here, writable by the administrator alone."""
    script: str | None = None
    """Replaces the built-in script; gets the same environment and must print the same report."""
    timeout_s: int = Field(default=900, ge=60)
    """Longest a scrub may run, in seconds."""
    users: list[Name] = Field(default_factory=list)
    """Accounts that are scrubbed on every wipe besides those a node was used by."""
    paths: list[Directory] = Field(default_factory=lambda: list(SCRUB_PATHS), min_length=1)
    """Trees that are cleared of the tenant's files; the file systems below them are not crossed into."""

    @model_validator(mode="after")
    def _needs_a_place(self) -> "ScrubConfig":
        if self.enabled:
            check_path(self.report_dir)
        return self


class ChecksConfig(_Strict):
    """
    Which tools measure between nodes nobody holds, and how they are started.
    """

    report_dir: Directory
    """Where reports are written, as that of scrubs: on every node, readable here, writable by the administrator alone."""
    all_reduce: list[str] = Field(default_factory=list)
    """Of nccl-tests, started once on each node by srun; `{gpus}` becomes a node's GPUs. Empty: not measured."""
    ib_write_bw: list[str] = Field(default_factory=list)
    """Started on one node, and on the other with that node's name behind it; `{device}` becomes the rail's. Empty: not measured."""
    rails: list[Name] = Field(default_factory=list)
    """RDMA devices in rail order, for example `["mlx5_0", "mlx5_1"]`; a rail without one is not measured."""
    timeout_s: int = Field(default=600, ge=30, le=7200)
    """Longest one tool may run, in seconds."""


class Volume(_Strict):
    """
    A folder that jobs in containers can be given.
    """

    path: str
    """On every node; `{user}` becomes the job's user, so that each has its own. The file system's rights decide who may."""
    read_only: bool = False
    """Whether jobs may only read it."""

    @model_validator(mode="after")
    def _is_one(self) -> "Volume":
        check_path(self.path.replace("{user}", "user"))
        return self


class SlurmConfig(_Strict):
    """
    One registered Slurm.
    """

    url: str = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500)
    """Of slurmrestd, for example `https://head.example.org:6820`; a path in front is kept."""
    user: Name = "root"
    """The token's user: a Slurm administrator who may act for others."""
    api_versions: list[int] | None = None
    """Only these minor numbers of `v0.0.N` are spoken; None: the newest both sides know."""
    timeout_s: float = Field(default=15.0, gt=0, le=20)
    """Longest one request may take; slurmrestd 22.05 needs 9 s to notice that slurmctld is away."""
    max_body_mib: int = Field(default=64, ge=1, le=1024)
    """Larger answers are not read to their end."""
    ca_file: str | None = None
    """Certificates that sign slurmrestd's; None: the system's."""
    cli: CliConfig | None = None
    """Reservations, drains and marks need it; without it jobs can only be read."""
    users: list[Name] = Field(default_factory=list)
    """Accounts that tenants are given, one each; all of them are scrubbed on every wipe."""
    partition: str = ""
    """Where tenants' jobs are submitted; best one with ReqResv=YES. Empty: Slurm's default."""
    admin_partition: str = ""
    """Where scrub jobs are submitted, closed to tenants (AllowGroups); empty: `partition`."""
    node_gres: dict[str, str] = Field(default_factory=dict)
    """Catalog model to GRES type, for example `{"H100-SXM5-80GB": "h100"}`."""
    output_dir: str = ""
    """Where job output is written: a path all workers see; `{user}` becomes the job's user. Empty: output cannot be read."""
    keep_dir: str = ""
    """Where output is left on the job's first node when there is no `output_dir`: its user finds it there, we do not. Empty: nowhere."""
    dedicated: bool = False
    """Whether all of this Slurm is one cluster of ours: no walls inside, whoever asks has all nodes, and needs no cli."""
    read: ReadConfig | None = None
    """None: output and reports are read from a file system mounted here."""
    scrub: ScrubConfig = Field(default_factory=ScrubConfig)
    """How nodes are wiped between tenants."""
    fabric_checks: ChecksConfig | None = None
    """None: nothing is measured between nodes."""
    mark_field: Literal["extra", "comment"] = "extra"
    """Which text of a node carries our mark."""
    reason_prefix: Name = "controlplane"
    """The first word of the reasons of our drains."""
    nice_step: int = Field(default=10_000, ge=1, le=100_000_000)
    """What lies between two classes of a job's priority, as `nice`: with priority/multifactor more than any two jobs of a tenant differ."""
    containers: Literal["pyxis", ""] = ""
    """pyxis: every node has that plugin and Enroot, so that jobs can bring an image; empty: jobs with an image are refused."""
    volumes: dict[Annotated[str, AfterValidator(check_volume)], Volume] = Field(default_factory=dict, max_length=32)
    """What jobs with an image can mount, by name; needs `containers`."""
    accounts: Literal["auto", "off"] = "auto"
    """auto: with slurmdbd, each tenant gets an account and its user an association."""

    @model_validator(mode="after")
    def _paths_and_versions(self) -> "SlurmConfig":
        for directory in filter(None, (self.output_dir, self.keep_dir)):
            check_path(directory.replace("{user}", "user"))
        if self.volumes and not self.containers:
            raise ValueError("volumes are for containers: without them jobs see the node's folders as they are")
        if self.dedicated and len(self.users) != 1:
            raise ValueError("a dedicated Slurm has one user, whom its tenant's jobs run as")
        if self.api_versions is not None and not set(self.api_versions) & set(SUPPORTED_API):
            raise ValueError(f"api_versions must name at least one of {list(SUPPORTED_API)}")
        for value in (self.partition, self.admin_partition, *self.node_gres.values()):
            if value:
                check_name(value)
        return self
