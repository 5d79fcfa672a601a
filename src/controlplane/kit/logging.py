"""
Logs: one JSON object per line on stderr, and no secret in any of them.
"""

import json
import logging
import re
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

from controlplane.kit.clock import rfc3339

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The request that this thread or task serves now."""
HIDDEN = "[hidden]"
SECRETS = (
    (re.compile(r"\b(cp[a-z]{0,3}_[a-z]{2,12}_[A-Za-z0-9]{4,32})_[A-Za-z0-9_-]{16,}"), rf"\1_{HIDDEN}"),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?(?:bearer\s+|basic\s+|token\s+)?)[^\s\"',;]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(r"([a-z][a-z0-9+.-]*://[^\s:/@\"']*:)[^\s@/\"']+(?=@)"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b((?:password|passwd|secret|token|api_key|master_key)[\"']?\s*[:=]\s*[\"']?)[^\s\"',;&]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(bot_[0-9a-z]{26})\.[A-Za-z0-9_-]{16,}"), rf"\1.{HIDDEN}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), HIDDEN),
)
SUSPECT = re.compile(r"[:=]|cp|bot_|eyJ|[bB][eE][aA][rR][eE][rR]")
"""Stands in every text that any of the patterns finds something in; most of what is logged has none of it."""
SECRET_NAMES = re.compile(r"(?i)(authorization|password|passwd|secret|token|cookie|credential|private|master_key|api_key)")
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
LONGEST_TEXT = 8000


def hide_secrets(text: str) -> str:
    """
    The text without keys, passwords and tokens.
    """
    if SUSPECT.search(text) is None:
        return text
    for pattern, instead in SECRETS:
        text = pattern.sub(instead, text)
    return text


class JsonFormatter(logging.Formatter):
    """
    A record as one line of JSON with time, level, logger, message and the record's extra fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """
        The line.
        """
        line: dict[str, Any] = {
            "at": rfc3339(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _text(_message(record)),
        }
        request_id = REQUEST_ID.get()
        if request_id:
            line["request_id"] = request_id
        for name, value in vars(record).items():
            if name not in OWN and not name.startswith("_"):
                line[name] = HIDDEN if _is_secret(name) else _plain(value)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = _text("".join(traceback.format_exception(*record.exc_info)))
        return json.dumps(line, ensure_ascii=True, default=lambda value: _text(repr(value)))


class _StandardError(logging.Handler):
    """
    Writes to whatever stderr is at that moment: it may be redirected after the start.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - the standard way out: a log line must not fail what it tells of
            self.handleError(record)


def configure(level: str, stream: TextIO | None = None) -> None:
    """
    Everything this process logs is JSON on stderr, from the level up; the web server's own access lines are off, as the edge
    writes one line per request that knows more.
    """
    handler: logging.Handler = logging.StreamHandler(stream) if stream else _StandardError()
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, JsonFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        one = logging.getLogger(name)
        one.handlers.clear()
        one.propagate = True
        one.setLevel(logging.NOTSET)
    access = logging.getLogger("uvicorn.access")
    access.handlers.clear()
    access.propagate = False
    # Clients that log addresses with their queries would repeat what a peer was told in confidence.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))


@lru_cache(maxsize=1000)
def _is_secret(name: str) -> bool:
    return SECRET_NAMES.search(name) is not None


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return str(record.msg)


def _text(text: str) -> str:
    return hide_secrets(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "…")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {str(key): HIDDEN if _is_secret(str(key)) else _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    return _text(repr(value))
