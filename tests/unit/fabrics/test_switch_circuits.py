"""
Switches behind the toolbox: one that is gone cuts off nobody but itself.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controlplane.nodes.states import ProviderRef
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.circuits import OPEN_AFTER
from controlplane.providers.errors import NotSent, Unknown, Unsupported
from controlplane.providers.toolbox import SWITCH_CAP, Toolbox

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_switch_that_is_gone_cuts_off_only_itself(tmp_path: Path) -> None:
    """After some silent calls it is not asked any more for a while; the others of the fabric are asked as ever."""
    tools = Toolbox(deployment="test", now=lambda: NOW, open_secrets=lambda _provider, _sealed: {})
    provider = ProviderRef("prv_1", "simulated", {"path": str(tmp_path / "world.sqlite"), "fleet": "demo"}, None, 1)
    gone, there, *_ = sorted({one.ref.switch for one in tools.fabric(provider, "any").observe_fabric().ports})
    control = SimControl(tmp_path / "world.sqlite", now=lambda: NOW)
    control.silence_switch(gone)
    try:
        for _ in range(OPEN_AFTER):
            with pytest.raises(NotSent, match="connection refused"):
                tools.fabric(provider, gone).observe_ports(gone)
        before = len(control.calls(operation="observe_ports"))
        with pytest.raises(NotSent, match="not answered lately"):
            tools.fabric(provider, gone).observe_ports(gone)
        assert len(control.calls(operation="observe_ports")) == before
        assert tools.fabric(provider, there).observe_ports(there)
    finally:
        control.close()
        tools.close()


def test_calls_that_hang_at_one_switch_take_no_place_of_another(tmp_path: Path) -> None:
    """As many calls as a switch is given hang there; one to another switch is answered meanwhile."""
    (tmp_path / "door").write_text(f"#!/bin/sh\necho >>{tmp_path}/came\nread -r word <{tmp_path}/gate\nexit 1\n", encoding="utf-8")
    (tmp_path / "door").chmod(0o755)
    (tmp_path / "answer").write_text("#!/bin/sh\necho broken\n", encoding="utf-8")
    (tmp_path / "answer").chmod(0o755)
    switches = {
        name: {"reach": {"kind": "exec", "argv_prefix": [str(tmp_path / way)]}, "vtep": vtep, "ports": ["swp1"]}
        for name, way, vtep in (("stuck", "door", "10.0.0.1"), ("well", "answer", "10.0.0.2"))
    }
    provider = ProviderRef("prv_1", "frr-evpn", {"switches": switches, "timeout_s": 15.0}, None, 1)
    tools = Toolbox(deployment="test", now=lambda: NOW, open_secrets=lambda _provider, _sealed: {})
    (tmp_path / "came").touch()
    os.mkfifo(tmp_path / "gate")
    with (tmp_path / "gate").open("r+b", buffering=0) as gate, ThreadPoolExecutor(SWITCH_CAP) as pool:
        stuck = [pool.submit(tools.fabric(provider, "stuck").observe_ports, "stuck") for _ in range(SWITCH_CAP)]
        while (tmp_path / "came").stat().st_size < SWITCH_CAP:
            threading.Event().wait(0.01)
        with pytest.raises(Unknown, match="broke off"):
            tools.fabric(provider, "well").observe_ports("well")
        assert not any(one.done() for one in stuck)
        gate.write(b"go on\n" * SWITCH_CAP)
        assert [type(one.exception()) for one in stuck] == [Unknown] * SWITCH_CAP
    tools.close()


def test_a_provider_that_is_no_fabric_says_so() -> None:
    """Asked for its ports, a kind of controllers is unsupported."""
    tools = Toolbox(deployment="test", now=lambda: NOW, open_secrets=lambda _provider, _sealed: {"password": "x"})
    with pytest.raises(Unsupported):
        tools.fabric(ProviderRef("prv_1", "redfish", {}, None, 1), "leaf1")
    tools.close()
