"""
Log lines: JSON, complete, and without a secret.
"""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.identity.keytext import mint
from controlplane.kit.ids import new_id
from controlplane.kit.logging import REQUEST_ID, SECRETS, configure, hide_secrets


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Everything logged goes here; the logging of the test run is put back afterwards."""
    names = ("", "uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access", "httpx", "httpcore")
    before = {name: (one.handlers[:], one.level, one.propagate) for name in names for one in [logging.getLogger(name)]}
    stream = io.StringIO()
    configure("INFO", stream)
    yield stream
    for name, (handlers, level, propagate) in before.items():
        one = logging.getLogger(name)
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    """The lines as JSON."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_its_request(lines: io.StringIO) -> None:
    """Time, level, logger, message, extra fields and the present request's id stand in one line."""
    token = REQUEST_ID.set("req_7")
    logging.getLogger("controlplane.x").info("moved %s", "clu_1\nfake line", extra={"count": 3, "tags": ["a"]})
    REQUEST_ID.reset(token)
    logging.getLogger("controlplane.x").debug("too quiet")
    (line,) = read(lines)
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "controlplane.x",
        "message": "moved clu_1\nfake line",
        "request_id": "req_7",
        "count": 3,
        "tags": ["a"],
    }


def test_no_secret_passes(lines: io.StringIO) -> None:
    """A key, a bearer, a password in an address, in a field, in a nested value or in a traceback is not in the output."""
    key, _ = mint(new_id("key"), "tenant")
    password = "hunter2-canary"
    log = logging.getLogger("x")
    log.info("called with %s", key)
    log.info("Authorization: Bearer %s", "abcdef-canary-token")
    log.info("postgresql://app:%s@db.example/cp and redis://:%s@cache/0", password, password)
    log.info("x", extra={"password": password, "headers": {"Authorization": f"Bearer {key}"}, "items": [key], "thing": object()})
    trouble = ValueError(f"cannot reach postgresql://app:{password}@db/cp with {key} and token={password}")
    log.error("failed", exc_info=trouble)
    text = lines.getvalue()
    assert len(read(lines)) == 5
    assert key.split("_")[3] not in text
    assert "canary" not in text
    assert "ValueError" in text


def test_ordinary_words_stay() -> None:
    """Ids, addresses without a password and sentences about secrets are left alone."""
    for words in ("clu_01k5x7p3r8w2v6t9q4n0m1c2d3", "https://slurm.example:6820/slurm/v0.0.42", "the secret was renewed", "a:b@c"):
        assert hide_secrets(words) == words
    key_id = new_id("key")
    assert hide_secrets(key_id) == key_id


PIECES = (
    "cpk_tn_Ab12Cd34_",
    "authorization",
    "Bearer ",
    "beareR ",
    "postgresql://a:",
    "@",
    "password",
    "token",
    "=",
    ": ",
    "bot_",
    "eyJ",
    ".",
    " ",
)
PIECE = st.sampled_from((*PIECES, "k" * 26, "0123456789abcdefghijklmnop", "GET", "/v1/boot/{token}/meta-data")) | st.text(
    max_size=4
)


@settings(deadline=None)
@given(st.lists(PIECE, max_size=12))
def test_a_text_that_is_not_searched_holds_no_secret(pieces: list[str]) -> None:
    """Passing over texts that hold nothing like a secret hides exactly what searching every text would."""
    words = searched = "".join(pieces)
    for pattern, instead in SECRETS:
        searched = pattern.sub(instead, searched)
    assert hide_secrets(words) == searched


def test_the_servers_own_access_lines_are_off(lines: io.StringIO) -> None:
    """The web server's access log is silent, and its errors come as JSON."""
    logging.getLogger("uvicorn.access").info("GET / 200")
    logging.getLogger("uvicorn.error").warning("something")
    assert [line["message"] for line in read(lines)] == ["something"]
