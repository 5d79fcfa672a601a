"""
What a tenant may send as user-data, and of what kind it is. Pure.

Source: cloud-init, "User data formats". Kinds that fetch something or change how later parts are read (`#include`, `#part-handler`,
`#cloud-config-jsonp`) are refused: a failing fetch would end the machine's first boot before it can say why.
"""

from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from typing import Any

import yaml

from controlplane.kit.errors import FieldError, Invalid

LONGEST_BYTES = 65_536
KINDS = (
    ("#cloud-config-archive", "text/cloud-config-archive"),
    ("#cloud-config-jsonp", ""),
    ("#cloud-config", "text/cloud-config"),
    ("#cloud-boothook", "text/cloud-boothook"),
    ("## template: jinja", "text/jinja2"),
    ("#!", "text/x-shellscript"),
)
ACCEPTED = frozenset(kind for _, kind in KINDS if kind)
UNDECIDED = frozenset({"text/plain", "text/x-not-multipart"})
OURS_TOO = ("users", "ssh_authorized_keys")
"""Lists that ours are added to; of any other type they would push ours out."""
DEEPEST = 3
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""In C it is ten times as fast and bounded in depth."""


def kind_of(text: str, *, where: str = "user_data") -> str:
    """
    The media type of user-data that a machine can be given, `multipart/mixed` for one in parts. Raises Invalid.
    """
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST_BYTES:
        raise _invalid(where, "too_long", f"User-data holds at most {LONGEST_BYTES} bytes.")
    if not _is_storable(text):
        raise _invalid(where, "invalid_text", "User-data is UTF-8 text without NUL characters.")
    return _kind(text, where, 0)


def _kind(text: str, where: str, depth: int) -> str:
    if depth > DEEPEST:
        raise _invalid(where, "too_deep", f"Parts within parts go {DEEPEST} levels deep at most.")
    if "mime-version:" in text[:4096].lower():
        _check_parts(text, where, depth)
        return "multipart/mixed"
    kind = next((kind for prefix, kind in KINDS if text.startswith(prefix)), "")
    if not kind:
        words = (
            "User-data begins with #cloud-config, #!, #cloud-boothook, #cloud-config-archive, ## template: jinja or a MIME header."
        )
        raise _invalid(where, "unknown_user_data", words)
    _check(kind, text, where, depth)
    return kind


def _check(kind: str, text: str, where: str, depth: int) -> None:
    if kind == "text/x-shellscript" and not text.startswith("#!"):
        raise _invalid(where, "invalid_script", "A shell script begins with #!.")  # cloud-init would look for another kind
    if kind == "text/cloud-config":
        _check_config(_read_yaml(text, where), where)
    elif kind == "text/cloud-config-archive":
        for number, (named, content) in enumerate(_entries(_read_yaml(text, where), where)):
            _check_part(named or _kind(content, f"{where}.{number}", depth + 1), content, f"{where}.{number}", depth + 1)


def _check_part(kind: str, content: str, where: str, depth: int) -> None:
    if kind not in ACCEPTED:
        raise _invalid(where, "unknown_user_data", "A part is of a kind that is not taken.")
    _check(kind, content, where, depth)


def _entries(archive: Any, where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(archive, list):
        raise _invalid(where, "invalid_archive", "#cloud-config-archive is followed by a list.")
    for one in archive:
        entry = {"content": one} if isinstance(one, str) else one
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise _invalid(where, "invalid_archive", "An entry of #cloud-config-archive is text, or an object with content.")
        named = entry.get("type") or ""
        if not isinstance(named, str):
            raise _invalid(where, "invalid_archive", "The type of an entry is text.")
        yield named, entry["content"]


def _check_parts(text: str, where: str, depth: int) -> None:
    message = message_from_string(text)
    if not message.is_multipart() or any(part.defects for part in message.walk()):
        raise _invalid(where, "invalid_mime", "The MIME message has no parts, or is damaged.")
    for number, part in enumerate(one for one in message.walk() if not one.is_multipart()):
        content, named = _payload(part), part.get_content_type()
        kind = _kind(content, f"{where}.{number}", depth + 1) if named in UNDECIDED else named
        _check_part(kind, content, f"{where}.{number}", depth + 1)


def _payload(part: Message) -> str:
    raw = part.get_payload(decode=True)
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""


def _read_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=LOADER)  # noqa: S506 - a safe loader, which one depends on the installation
    except (yaml.YAMLError, ValueError, RecursionError):
        raise _invalid(where, "invalid_yaml", "The cloud-config is not valid YAML.") from None


def _check_config(config: Any, where: str) -> None:
    if not isinstance(config, dict) or not config:
        raise _invalid(where, "invalid_cloud_config", "#cloud-config is followed by at least one key with a value.")
    for name in OURS_TOO:
        if name in config and not isinstance(config[name], list):
            raise _invalid(where, "invalid_cloud_config", f"{name} must be a list: the operator's entries are added to it.")


def _is_storable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _invalid(where: str, code: str, words: str) -> Invalid:
    return Invalid(words, errors=[FieldError(where, code, words)])
