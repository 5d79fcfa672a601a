"""
The virtual drive: finding the slot that takes an image by URL, and telling it in the words that it insists on.

Source: DMTF VirtualMedia schema; vendors' ways after sushy 5.14 (`virtual_media.insert_media`) and Ironic 39.0 (`redfish/boot.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.config import RedfishConfig
from controlplane.providers.adapters.redfish.links import action, inside, link, managers, members, path_of, text
from controlplane.providers.adapters.redfish.quirks import Facts
from controlplane.providers.errors import Busy, NotFound, Refused, Unknown, Unsupported

INSERT, EJECT = "#VirtualMedia.InsertMedia", "#VirtualMedia.EjectMedia"
MOST_INSERTS = 4
DISCS = ("CD", "DVD")
NOT_THIS_SLOT = (Refused, Unsupported, NotFound)


def inserted_image(slot: Reply) -> str | None:
    """
    What is in the drive; None when it is empty.
    """
    if inside(slot.body, "Inserted") is not True:
        return None
    return text(slot.body, "Image") or text(slot.body, "ImageName") or "?"


def read_media(bmc: Bmc, system: Reply) -> str | None:
    """
    The image in the first drive that has one; None also without drives.
    """
    images = (inserted_image(slot) for slot in _drives(bmc, system))
    return next((image for image in images if image is not None), None)


def insert(bmc: Bmc, system: Reply, facts: Facts, url: str, config: RedfishConfig) -> None:
    """
    The image is in a drive, and no other image in any. Raises Unsupported without a drive that takes it, Unknown when it does not show.
    """
    slots = list(_drives(bmc, system))
    images = [inserted_image(slot) for slot in slots]
    if [image for image in images if image is not None] == [url]:
        return
    for slot, image in zip(slots, images, strict=True):
        if image is not None:
            _eject(bmc, slot, config)
    refusals: list[str] = []
    for slot in sorted((slot for slot in slots if _takes_discs(slot)), key=partial(_preference, facts)):
        problem = _insert_into(bmc, bmc.get(path_of(slot)), url, config)
        if problem is None:
            _await(bmc, path_of(slot), config, url=url)
            return
        refusals.append(problem)
    if not refusals:
        raise Unsupported("no virtual drive takes discs", code="provider_no_virtual_media")
    raise Refused("; ".join(refusals)[:500], code="provider_media_refused")


def eject(bmc: Bmc, system: Reply, config: RedfishConfig) -> None:
    """
    All drives are empty; so they are where there are none.
    """
    for slot in _drives(bmc, system):
        if inserted_image(slot) is not None:
            _eject(bmc, slot, config)


def _drives(bmc: Bmc, system: Reply) -> Iterator[Reply]:
    """
    All drives as they are now; one that is gone from where it was listed is left out, and looked for anew the next time.
    """
    for path in _slots(bmc, system):
        slot = bmc.look(path)
        if isinstance(slot.problem(), NotFound):
            bmc.known.pop("slots", None)
        else:
            yield slot.checked()


def _slots(bmc: Bmc, system: Reply) -> tuple[str, ...]:
    """
    Paths of all drives, the system's before its managers': some controllers have them in one place only.
    """
    known = bmc.known.get("slots")
    if isinstance(known, tuple):
        return known
    collections = [link(system.body, "VirtualMedia")]
    collections += [link(bmc.get(path).body, "VirtualMedia") for path in managers(bmc, system)]
    found: dict[str, None] = {}
    for path in dict.fromkeys(one for one in collections if one):
        try:
            found.update(dict.fromkeys(members(bmc, path)))
        except (NotFound, Unsupported):
            continue
    bmc.known["slots"] = tuple(found)
    return tuple(found)


def _kinds(slot: Reply) -> tuple[str, ...]:
    said = inside(slot.body, "MediaTypes")
    if isinstance(said, list) and said:
        return tuple(str(one).upper() for one in said)
    name = f"{text(slot.body, 'Id')} {text(slot.body, 'Name')}".upper()
    return tuple(kind for kind in DISCS if kind in name)


def _takes_discs(slot: Reply) -> bool:
    return any(kind in DISCS for kind in _kinds(slot))


def _preference(facts: Facts, slot: Reply) -> tuple[bool, bool, bool]:
    """
    A drive for addresses before one for uploads, one with an action before one without, a CD before a DVD.
    """
    for_uploads = bool(facts.upload_slots) and re.match(facts.upload_slots, text(slot.body, "Id")) is not None
    return for_uploads, not action(slot.body, INSERT), "CD" not in _kinds(slot)


def _insert_into(bmc: Bmc, slot: Reply, url: str, config: RedfishConfig) -> str | None:
    """
    None when the drive has accepted the image; else why this is not the drive for it.
    """
    target = action(slot.body, INSERT)
    if not target:
        return _insert_by_patch(bmc, slot, url)
    content: dict[str, Any] = {"Image": url}
    reply: Reply | None = None
    for _ in range(MOST_INSERTS):
        reply = bmc.send(target, content)
        if reply.good:
            return None
        if reply.server_fault and bmc.pause(config.poll_s):
            # Dell answers so while an eject is still under way; it may also have taken the image.
            if inserted_image(bmc.get(path_of(slot))) == url:
                return None
            continue
        missing = _missing(reply, content)
        if not missing:
            break
        content |= missing
    assert reply is not None
    return _why_not(reply)


def _why_not(reply: Reply) -> str:
    problem = reply.problem()
    if isinstance(problem, NOT_THIS_SLOT):
        return reply.detail
    assert problem is not None
    raise problem


def _missing(reply: Reply, content: Mapping[str, Any]) -> dict[str, Any]:
    """
    What the drive says that it misses, one thing at a time.
    """
    if not isinstance(reply.problem(), Refused):
        return {}
    url = str(content["Image"])
    answers: dict[str, dict[str, Any]] = {
        "TransferProtocolType": {"TransferProtocolType": url.partition(":")[0].upper()},
        "TransferMethod": {"TransferMethod": "Stream"},
        "UserName": {"UserName": "none", "Password": "none"},
        "Password": {"UserName": "none", "Password": "none"},
        "WriteProtected": {"WriteProtected": True},
        "Inserted": {"Inserted": True},
    }
    for name, more in answers.items():
        if name not in content and reply.names(name):
            return more
    return {}


def _insert_by_patch(bmc: Bmc, slot: Reply, url: str) -> str | None:
    allow = slot.headers.get("allow", "")
    if allow and "PATCH" not in allow.upper():
        return f"{path_of(slot)}: no way to insert"
    content = {"Image": url, "Inserted": True, "WriteProtected": True}
    reply = bmc.patch(path_of(slot), content, etag=slot.etag)
    return None if reply.good else _why_not(reply)


def _eject(bmc: Bmc, slot: Reply, config: RedfishConfig) -> None:
    target = action(slot.body, EJECT)
    if target:
        reply = bmc.send(target, {})
        if isinstance(reply.problem(), Refused):
            reply = bmc.send(target, None)
    else:
        reply = bmc.patch(path_of(slot), {"Image": None, "Inserted": False}, etag=slot.etag)
    if not reply.good and inserted_image(bmc.get(path_of(slot))) is not None:
        reply.checked()
    _await(bmc, path_of(slot), config, url=None)


def _await(bmc: Bmc, path: str, config: RedfishConfig, *, url: str | None) -> None:
    """
    The drive shows what was asked. Raises Busy while an eject, Unknown when an insert takes longer than we wait.
    """
    left_s = config.media_wait_s
    while True:
        image = inserted_image(bmc.get(path))
        if (image is None) if url is None else _shows(image, url):
            return
        left_s -= config.poll_s
        if left_s < 0 or not bmc.pause(config.poll_s):
            break
    if url is None:
        raise Busy(f"{path} still shows an image after it was ejected", retry_in_s=config.media_wait_s)
    raise Unknown(f"{path} has accepted an image and does not show it", retry_in_s=config.media_wait_s)


def _shows(image: str | None, url: str) -> bool:
    """
    Some show the name of the image only, or its address without what follows a question mark.
    """
    if image is None:
        return False
    return image in {url, "?"} or url.partition("?")[0].endswith(image.partition("?")[0])
