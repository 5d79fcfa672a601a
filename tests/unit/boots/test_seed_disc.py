"""
The image for virtual media.
"""

from __future__ import annotations

import time
from io import BytesIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycdlib.pycdlib import PyCdlib

from controlplane.boots.disc import burn

NAMES = ("meta-data", "user-data", "vendor-data", "network-config")


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=10_000), min_size=1))
def test_what_was_burnt_is_read(documents: dict[str, bytes]) -> None:
    """Label, names and contents are there for whoever reads ISO 9660 with Joliet names."""
    image = PyCdlib()
    image.open_fp(BytesIO(burn(documents)))
    assert image.pvd.volume_identifier.decode().strip() == "CIDATA"
    for name, content in documents.items():
        out = BytesIO()
        image.get_file_from_iso_fp(out, joliet_path=f"/{name}")
        assert out.getvalue() == content
    image.close()


def test_the_clock_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same documents make the same bytes on another day."""
    documents = {"meta-data": b"a", "user-data": b"b" * 5000}
    today = burn(documents)
    later = time.time() + 86_400 * 400
    monkeypatch.setattr(time, "time", lambda: later)
    assert burn(documents) == today
