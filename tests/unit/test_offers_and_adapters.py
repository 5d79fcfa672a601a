"""
What an operator says to sell products of one's own on bare machines is ours to read: no adapter of machines is told, or minds.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.nodes.states import ProviderRef
from controlplane.providers.errors import NotSent
from controlplane.providers.hardware import Controller
from controlplane.providers.toolbox import Toolbox
from controlplane.rendering.kubernetes.offer import SETTING as KUBERNETES
from controlplane.rendering.slurm.offer import SETTING as SLURM
from tests.unit.redfish_control.conftest import QUICK, SECRETS


@pytest.mark.parametrize("setting", [SLURM, KUBERNETES])
def test_an_offer_keeps_no_controller_from_being_asked(setting: str) -> None:
    """The settings with an offer among them are good ones, so that the controller is asked, which is away here."""
    tools = Toolbox(deployment="test", now=lambda: datetime.now(UTC), open_secrets=lambda _provider, _sealed: SECRETS)
    provider = ProviderRef("prv_1", "redfish", {**QUICK, setting: {"shapes": {}}}, None, 1)
    away = Controller("nod_away", "http://127.0.0.1:9")
    with pytest.raises(NotSent):
        tools.hardware(provider, away.ref).observe(away)
    tools.close()
