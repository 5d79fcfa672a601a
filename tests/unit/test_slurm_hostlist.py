"""
Hostlists: what Slurm prints is read, and what we print reads back.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.slurm.hostlist import BadHostlist, compress, expand

HOSTS = st.from_regex(r"[a-z][a-z-]{0,5}(0{0,2}[0-9]{1,4})?(-[a-z]{1,3})?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n[1-4,7]", ("n1", "n2", "n3", "n4", "n7")),
        ("n[08-11],login", ("n08", "n09", "n10", "n11", "login")),
        ("r[1-2]n[1,3]-ib", ("r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib")),
    ],
)
def test_what_slurm_prints_is_expanded_in_order(text: str, hosts: tuple[str, ...]) -> None:
    """Ranges, padding, several brackets and plain names."""
    assert expand(text) == hosts


@given(st.sets(HOSTS, max_size=60))
def test_compressed_hosts_expand_to_themselves(hosts: set[str]) -> None:
    """The round trip loses and adds nothing, whatever the padding."""
    back = expand(compress(hosts))
    assert set(back) == hosts
    assert len(back) == len(hosts)


@given(st.text(alphabet="n0123456789[]-, ", max_size=40))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    """No text makes another error, or an endless list."""
    with suppress(BadHostlist):
        assert all(expand(text))


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[[1]]", "n[4-1]", "n[1-9999999]", "a,,b", "n[1-4]x[1-99999]", "n 1", "n[]"])
def test_what_is_no_hostlist_is_refused(text: str) -> None:
    """Broken brackets, backward and boundless ranges."""
    with pytest.raises(BadHostlist):
        expand(text)
