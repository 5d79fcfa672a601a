"""
How steps reach providers: adapters built once per version of their settings; calls capped per provider and cut off while a peer is down.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol, cast

from controlplane.kit import crashpoints
from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.providers.adoption import SupportsAdoption
from controlplane.providers.checks import SupportsFabricChecks
from controlplane.providers.circuits import Circuit
from controlplane.providers.clusters import Clusters, SupportsJobs, SupportsOutput
from controlplane.providers.credentials import SupportsKubeconfigs
from controlplane.providers.errors import (
    AuthFailed,
    NoCapacity,
    NotFound,
    NotSent,
    Permanent,
    ProviderError,
    Transient,
    Unknown,
    UnknownBeyond,
    Unsupported,
    Unusable,
)
from controlplane.providers.fabrics import Fabrics
from controlplane.providers.hardware import Controller, Hardware
from controlplane.providers.joining import SupportsJoining
from controlplane.providers.machines import Machines
from controlplane.providers.registry import AdapterInput, build_adapter
from controlplane.providers.services import SupportsServices
from controlplane.providers.tracking import SupportsGlances, SupportsGpuUse, SupportsNews

log = logging.getLogger(__name__)

SWITCH_CAP = 4  # a switch makes its changes one after the other
LOOK_AGAIN_S = 5.0
OPERATOR_S = 60.0  # between tries of what only an operator can mend
RETIRED_FOR_S = 120.0
OURS = frozenset(
    {
        *("read_lag_s", "boot", "first_call_s", "diskless", "gpu_models", "inventory_patience_s", "fabric_tools"),
        *("slurm", "kubernetes"),  # what is offered on its machines
        *("rotate_passwords", "require_lock", "restart_controllers", "restart_settle_s", "restart_limit_s", "settings_wanted"),
        *("graceful_off_s", "restart_from", "update_firmware", "firmware_install_s", "seeds"),
    }
)
"""Settings of a provider that are for us, not for its adapter."""


class Reachable(Protocol):
    """
    What the toolbox needs to know of a provider; the rooms' ProviderRef is one.
    """

    @property
    def id(self) -> str:
        """
        Our id of it.
        """
        ...

    @property
    def adapter(self) -> str:
        """
        Entry point name.
        """
        ...

    @property
    def config(self) -> dict[str, Any]:
        """
        Plain settings.
        """
        ...

    @property
    def sealed(self) -> bytes | None:
        """
        Sealed secrets.
        """
        ...

    @property
    def version(self) -> int:
        """
        Changes when any of it does.
        """
        ...


class Guarded:
    """
    An adapter whose every call goes through its provider's circuit and the crash points.
    """

    def __init__(self, adapter: object, circuit: Circuit) -> None:
        self._adapter = adapter
        self._circuit = circuit

    @property
    def unguarded(self) -> object:
        """
        The adapter itself, for a guard of another kind.
        """
        return self._adapter

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._adapter, name)
        if not callable(target):
            return target

        def call(*args: Any, **kwargs: Any) -> Any:
            self._circuit.enter()
            answered = True
            try:
                crashpoints.reach("call.before")
                result = target(*args, **kwargs)
                crashpoints.reach("call.after")
            except (Unknown, NotSent) as error:
                answered = isinstance(error, UnknownBeyond)
                raise
            else:
                return result
            finally:
                self._circuit.leave(answered=answered)

        return call


def _no_vault(ref: str, password: str) -> bytes:
    del ref, password
    raise Permanent("there is nothing to seal a password with", code="no_master_key")


def _no_secrets(_row: str, _sealed: bytes) -> str:
    raise Permanent("there is no master key to open secrets with", code="no_master_key")


class Toolbox:
    """
    What a step is given besides its snapshot.
    """

    def __init__(
        self,
        *,
        deployment: str,
        now: Callable[[], datetime],
        open_secrets: Callable[[str, bytes | None], Mapping[str, str]],
        open_password: Callable[[str, bytes | None], str] = lambda _node, _sealed: "",
        seal_password: Callable[[str, str], bytes] = _no_vault,
        seed_url: Callable[[str], str] = lambda _boot: "",
        config_drive_url: Callable[[str], str] = lambda _boot: "",
        image_url: Callable[[str], str] = lambda _boot: "",
        open_job_secret: Callable[[str, bytes], str] = _no_secrets,
    ) -> None:
        self.open_job_secret = open_job_secret
        """The value of a project's secret as its row keeps it; raises Permanent where there is nothing to open it with."""
        self.deployment = deployment
        self.now = now
        self.seed_url = seed_url
        """Where the controller of a machine finds the seed of a boot; bears the boot's token and stays out of logs."""
        self.config_drive_url = config_drive_url
        """Where a provider that writes disks finds the seed of a boot; bears the boot's token and stays out of logs."""
        self.image_url = image_url
        """Where it finds the image of a boot."""
        self.seal_password = seal_password
        """The password of the machine's controller as its row keeps it; raises Permanent where there is nothing to seal it with."""
        self._open_secrets = open_secrets
        self._open_password = open_password
        self._adapters: dict[str, tuple[int, object]] = {}
        self._retired: list[tuple[float, object]] = []
        self._circuits: dict[str, Circuit] = {}
        self._lock = threading.Lock()

    def adapter(self, provider: Reachable) -> Any:
        """
        The provider's adapter behind its guard. Raises Unusable when it is not installed or refuses its settings.
        """
        with self._lock:
            known = self._adapters.get(provider.id)
            if known is None or known[0] != provider.version:
                built = self._built(provider)
                self._retire(known)
                circuit = self._circuits.setdefault(provider.id, Circuit())
                known = (provider.version, Guarded(built, circuit))
                self._adapters[provider.id] = known
            return known[1]

    def _built(self, provider: Reachable) -> object:
        try:
            given = AdapterInput(
                provider_id=provider.id,
                config={name: value for name, value in provider.config.items() if name not in OURS},
                secrets=self._open_secrets(provider.id, provider.sealed),
                deployment=self.deployment,
                now=self.now,
            )
            return build_adapter(provider.adapter, given)
        except Permanent as error:
            raise Unusable(error.detail, code=error.code) from error

    def close(self) -> None:
        """
        No adapter holds a connection any more.
        """
        with self._lock:
            for _, adapter in [*self._adapters.values(), *self._retired]:
                _close(adapter)
            self._adapters.clear()
            self._retired.clear()

    def _retire(self, known: tuple[int, object] | None) -> None:
        """
        An adapter whose settings were replaced is closed once no call that began with it can be under way any more.
        """
        now = time.monotonic()
        if known is not None:
            self._retired.append((now, known[1]))
        for retired in [one for one in self._retired if now - one[0] > RETIRED_FOR_S]:
            self._retired.remove(retired)
            _close(retired[1])

    def machines(self, provider: Reachable) -> Machines:
        """
        The provider as an owner of machines.
        """
        return cast("Machines", self.adapter(provider))

    def clusters(self, provider: Reachable) -> Clusters:
        """
        The provider as a maker of clusters.
        """
        return cast("Clusters", self.adapter(provider))

    def hardware(self, provider: Reachable, ref: str) -> Hardware:
        """
        The provider as a kind of management controller, guarded for the one machine: controllers that hang cost the others nothing.

        Raises Unsupported when it is none.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "boot_from"):
            raise Unsupported("this provider drives no bare machines")
        with self._lock:
            circuit = self._circuits.setdefault(f"{provider.id}/{ref}", Circuit(threading.BoundedSemaphore(1)))
        return cast("Hardware", Guarded(adapter.unguarded, circuit))

    def controller(self, ref: str, *, url: str, system: str, username: str, sealed: bytes | None) -> Controller:
        """
        How the machine's controller is reached, its password opened.
        """
        return Controller(ref, url, username, self._open_password(ref, sealed), system)

    def fabric(self, provider: Reachable, switch: str) -> Fabrics:
        """
        The provider as a network fabric, guarded for the one switch: a switch that hangs costs the others nothing.

        Raises Unsupported when it is none.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "attach"):
            raise Unsupported("this provider is no fabric")
        with self._lock:
            circuit = self._circuits.setdefault(f"{provider.id}/switch/{switch}", Circuit(threading.BoundedSemaphore(SWITCH_CAP)))
        return cast("Fabrics", Guarded(adapter.unguarded, circuit))

    def jobs(self, provider: Reachable) -> SupportsJobs:
        """
        The provider as a runner of jobs. Raises Unsupported when it is none.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "submit"):
            raise Unsupported("this provider runs no jobs")
        return cast("SupportsJobs", adapter)

    def glances(self, provider: Reachable) -> SupportsGlances | None:
        """
        The provider as one that remembers what it told of jobs, or None. It is asked nothing, so no guard stands before it.
        """
        adapter = self.adapter(provider)
        adapter = adapter.unguarded if isinstance(adapter, Guarded) else adapter
        return cast("SupportsGlances", adapter) if hasattr(adapter, "glance") else None

    def take_news(self) -> frozenset[str]:
        """
        Tokens of jobs that providers have told changes of, of those that are in use here; a hint.
        """
        with self._lock:
            known = [one for _, one in self._adapters.values()]
        tellers = [one.unguarded for one in known if isinstance(one, Guarded) and hasattr(one.unguarded, "take_news")]
        return frozenset(token for one in tellers for token in cast("SupportsNews", one).take_news())

    def services(self, provider: Reachable) -> SupportsServices:
        """
        The provider as one that keeps services up. Raises Unsupported when it does not.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "apply_service"):
            raise Unsupported("this provider keeps no services up", code="provider_runs_no_services")
        return cast("SupportsServices", adapter)

    def fabric_checks(self, provider: Reachable) -> SupportsFabricChecks:
        """
        The provider as one that measures between its machines. Raises Unsupported when it cannot.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "prepare_checks"):
            raise Unsupported("this provider measures nothing between its machines")
        return cast("SupportsFabricChecks", adapter)

    def kubeconfigs(self, provider: Reachable) -> SupportsKubeconfigs:
        """
        The provider as one that hands out kubeconfigs. Raises Unsupported when it does not.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "issue_kubeconfig"):
            raise Unsupported("this provider hands out no kubeconfigs")
        return cast("SupportsKubeconfigs", adapter)

    def adoption(self, provider: Reachable) -> SupportsAdoption:
        """
        The provider as one that hands over clusters which exist there already. Raises Unsupported when it does not.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "adopt_cluster"):
            raise Unsupported("this provider hands over no clusters", code="adoption_not_offered")
        return cast("SupportsAdoption", adapter)

    def joining(self, provider: Reachable) -> SupportsJoining:
        """
        The provider as one that machines join by a token. Raises Unsupported when they do not.
        """
        adapter = self.adapter(provider)
        if not hasattr(adapter, "open_door"):
            raise Unsupported("nobody joins this provider by a token", code="provider_no_joining")
        return cast("SupportsJoining", adapter)

    def gpu_use(self, provider: Reachable) -> SupportsGpuUse | None:
        """
        The provider as one that can tell how busy GPUs are, or None.
        """
        adapter = self.adapter(provider)
        return cast("SupportsGpuUse", adapter) if hasattr(adapter, "gpu_use") else None

    def output(self, provider: Reachable) -> SupportsOutput | None:
        """
        The provider as a source of job output, or None.
        """
        adapter = self.adapter(provider)
        return cast("SupportsOutput", adapter) if hasattr(adapter, "read_output") else None

    def run(self, step: Callable[[Any, "Toolbox"], Outcome], snapshot: Any, *, attempt: int) -> tuple[Outcome, bool]:
        """
        The step's outcome, and whether it failed by a fault of ours. Errors that the step did not expect are folded here.
        """
        try:
            return step(snapshot, self), False
        except (AuthFailed, Unusable) as error:
            what = "refuses our credential" if isinstance(error, AuthFailed) else "cannot be asked as it is set up"
            return Wait(f"The provider {what}; the operator has been told.", OPERATOR_S, detail=error.detail), False
        except Transient as error:
            return Wait(
                "The provider does not answer as it should; it is tried again.", error.retry_in_s, detail=error.detail
            ), False
        except (NotFound, NoCapacity) as error:
            # One look that does not find it proves nothing; the state's deadline bounds the waiting.
            return Wait("The provider does not show it; it is looked for again.", LOOK_AGAIN_S, detail=error.detail), False
        except ProviderError as error:
            return Fail(error.code, "The provider turned the change down.", detail=error.detail), False
        except Exception as error:
            log.exception(
                "step failed", extra={"step": getattr(step, "__name__", "?"), "resource_id": getattr(snapshot, "id", "?")}
            )
            detail = f"{type(error).__name__}"
            return Wait("Something failed on our side; it is tried again.", min(60.0, 2.0**attempt), detail=detail), True


def _close(adapter: object) -> None:
    """
    The adapter holds nothing any more, also while its provider is cut off: closing is no call to it.
    """
    adapter = adapter.unguarded if isinstance(adapter, Guarded) else adapter
    close = getattr(adapter, "close", None)
    if close is not None:
        close()
