"""
The text form of keys.
"""

from __future__ import annotations

import string
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from controlplane.identity.keytext import KINDS, mint, parse
from controlplane.kit.access import ScopeKind
from controlplane.kit.ids import new_id

LEVELS = st.sampled_from(sorted(KINDS))


@given(LEVELS)
def test_a_minted_key_names_its_row_and_level(level: ScopeKind) -> None:
    """
    What is minted parses back to its id, its level and the stored hash.
    """
    key_id = new_id("key")
    text, secret_hash = mint(key_id, level)
    parsed = parse(text)
    assert parsed is not None
    assert (parsed.key_id, parsed.scope_kind, parsed.secret_hash) == (key_id, level, secret_hash)
    assert len(secret_hash) == sha256().digest_size
    assert text.split("_")[3] not in key_id


@given(LEVELS, st.data())
def test_any_changed_character_is_refused(level: ScopeKind, data: st.DataObject) -> None:
    """
    Whatever single character is replaced, dropped or added, the checksum or the form refuses the key without a query.
    """
    text, _ = mint(new_id("key"), level)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(sorted(set(string.printable) - {text[place]})))
    assert parse(text[:place] + other + text[place + 1 :]) is None
    assert parse(text[:place] + text[place + 1 :]) is None or text[place] == text[place + 1 : place + 2]
    assert parse(text[:place] + other + text[place:]) is None


@given(st.text(max_size=200))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    """
    Anything that is not a key is simply not one.
    """
    assert parse(text) is None


def test_secrets_never_repeat() -> None:
    """
    Two keys of one id share neither secret nor hash.
    """
    key_id = new_id("key")
    made = [mint(key_id, "tenant") for _ in range(200)]
    assert len({text for text, _ in made}) == len({secret_hash for _, secret_hash in made}) == 200
