"""
Tokens of boots: only ours are accepted, and only for what they were made.
"""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.boots.states import BootLinks, hide_tokens
from controlplane.kit.ids import new_id

MASTER = base64.b64encode(bytes(range(32))).decode()
OTHER = base64.b64encode(bytes(32)).decode()
LINKS = BootLinks.from_master("https://cp.example/", MASTER, "cp")
BOOT = "bot_01k5x7p3r8w2v6t9q4n0m1c2d3"


def test_a_token_opens_its_boot() -> None:
    """The address holds the token, the token the boot."""
    assert LINKS.url(BOOT) == f"https://cp.example/v1/boot/{LINKS.token(BOOT)}/"
    assert LINKS.verify(LINKS.token(BOOT)) == BOOT
    assert LINKS.token(BOOT) != LINKS.token(new_id("bot"))


@given(st.integers(min_value=0, max_value=len(LINKS.token(BOOT)) - 1), st.characters(max_codepoint=0x2FF))
def test_no_changed_token_is_accepted(place: int, instead: str) -> None:
    """Any one character changed, and the token opens nothing."""
    token = LINKS.token(BOOT)
    changed = token[:place] + instead + token[place + 1 :]
    assert LINKS.verify(changed) == (BOOT if changed == token else None)


@given(st.text(max_size=100))
def test_no_text_is_accepted_or_fails(text: str) -> None:
    """Whatever stands in the path is answered with none."""
    assert LINKS.verify(text) is None
    assert LINKS.verify(f"{BOOT}.{text}") is None
    assert LINKS.verify_session(text, BOOT, 0) is False


def test_other_keys_and_deployments_make_other_tokens() -> None:
    """A token is good under one master key, in one deployment, and a session's is no boot's."""
    for other in (
        BootLinks.from_master("https://cp.example", OTHER, "cp"),
        BootLinks.from_master("https://cp.example", MASTER, "dev"),
    ):
        assert other.verify(LINKS.token(BOOT)) is None
    session = LINKS.session_token(BOOT, 100)
    assert LINKS.verify_session(session, BOOT, 99)
    assert not LINKS.verify_session(session, BOOT, 100)
    assert not LINKS.verify_session(session, new_id("bot"), 99)
    assert not LINKS.verify_session(session.replace("100", "200"), BOOT, 99)
    assert LINKS.verify(f"{BOOT}.{session.partition('.')[2]}") is None


def test_nothing_shows_the_key() -> None:
    """Neither repr nor an error repeats a key; without an address there is no link."""
    assert MASTER not in repr(LINKS)
    with pytest.raises(ValueError, match="base64") as caught:
        BootLinks.from_master("https://cp.example", "not base64!", "cp")
    assert "not base64!" not in str(caught.value)
    with pytest.raises(ValueError, match="no address"):
        BootLinks.from_master("", MASTER, "cp").url(BOOT)


def test_tokens_are_hidden_in_words() -> None:
    """A token anywhere in a text is taken out, and nothing else."""
    assert hide_tokens(f"see {LINKS.url(BOOT)}files, {BOOT}.") == f"see https://cp.example/v1/boot/[hidden]/files, {BOOT}."
