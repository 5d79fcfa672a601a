"""
Controllers behind the toolbox: one that is gone cuts off nobody but itself.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.local.addresses import free_port
from controlplane.nodes.states import ProviderRef
from controlplane.providers.circuits import OPEN_AFTER
from controlplane.providers.errors import NotSent
from controlplane.providers.hardware import Controller
from controlplane.providers.toolbox import Toolbox
from tests.simulators.redfish.server import FakeBmc, serving
from tests.unit.redfish_control.conftest import QUICK, SECRETS


def test_a_controller_that_is_gone_cuts_off_only_itself() -> None:
    """After some silent calls it is not asked any more for a while; the others of the same provider are asked as ever."""
    bmc = FakeBmc()
    tools = Toolbox(deployment="test", now=lambda: datetime.now(UTC), open_secrets=lambda _provider, _sealed: SECRETS)
    provider = ProviderRef("prv_1", "redfish", QUICK, None, 1)
    gone = Controller("nod_gone", f"http://127.0.0.1:{free_port()}")
    try:
        with serving(bmc):
            there = Controller("nod_there", bmc.url)
            for _ in range(OPEN_AFTER):
                with pytest.raises(NotSent):
                    tools.hardware(provider, gone.ref).observe(gone)
            with pytest.raises(NotSent, match="not answered lately"):
                tools.hardware(provider, gone.ref).observe(gone)
            assert tools.hardware(provider, there.ref).observe(there).power in {"on", "off"}
    finally:
        tools.close()


def test_a_toolbox_closes_while_a_provider_is_cut_off() -> None:
    """Closing is no call: an open circuit neither stops it nor what replaces an adapter whose settings changed."""
    tools = Toolbox(deployment="test", now=lambda: datetime.now(UTC), open_secrets=lambda _provider, _sealed: SECRETS)
    gone = Controller("nod_gone", f"http://127.0.0.1:{free_port()}")
    adapter = tools.adapter(ProviderRef("prv_1", "redfish", QUICK, None, 1))
    for _ in range(OPEN_AFTER):
        with pytest.raises(NotSent):
            adapter.observe(gone)
    tools.close()
    with pytest.raises(NotSent):
        adapter.observe(gone)
