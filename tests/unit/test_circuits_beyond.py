"""
What a peer's own things do not answer is no silence of the peer.
"""

from __future__ import annotations

import pytest

from controlplane.providers.circuits import OPEN_AFTER, Circuit
from controlplane.providers.errors import NotSent, Unknown, UnknownBeyond
from controlplane.providers.toolbox import Guarded


class Peer:
    """It is asked about one of its clusters."""

    def __init__(self, error: Unknown) -> None:
        self.error = error

    def ask(self) -> None:
        raise self.error


@pytest.mark.parametrize(("error", "after"), [(UnknownBeyond("the cluster"), UnknownBeyond), (Unknown("the peer"), NotSent)])
def test_a_circuit_opens_only_by_the_silence_of_its_peer(error: Unknown, after: type[Exception]) -> None:
    """However often a cluster behind it is silent, the next call is made."""
    guarded = Guarded(Peer(error), Circuit())
    for _ in range(OPEN_AFTER):
        with pytest.raises(type(error)):
            guarded.ask()
    with pytest.raises(after):
        guarded.ask()
