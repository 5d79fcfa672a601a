"""
Firmware updates by URL, and following the task that they become.

Source: DMTF UpdateService and Task schemas; DSP0266 1.20, "Asynchronous operations".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Literal

from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.links import action, allowed, inside, link, machine, members, path_of, service, text
from controlplane.providers.errors import NotFound, ProviderError, Refused, Transient, Unknown, Unsupported
from controlplane.providers.hardware import UpdateView

State = Literal["running", "succeeded", "failed", "unknown"]
SIMPLE = "#UpdateService.SimpleUpdate"
PROTOCOLS = ("HTTP", "HTTPS", "NFS", "FTP", "SFTP", "TFTP")
STATES: Mapping[str, State] = {
    "New": "running",
    "Starting": "running",
    "Running": "running",
    "Pending": "running",
    "Service": "running",
    "Stopping": "running",
    "Cancelling": "running",
    "Suspended": "running",
    "Interrupted": "running",
    "Completed": "succeeded",
    "Exception": "failed",
    "Killed": "failed",
    "Cancelled": "failed",
}
GOOD_ANSWERS = 3
TASKS_SEEN = 32


def start(bmc: Bmc, image_url: str, targets: tuple[str, ...]) -> UpdateView:
    """
    The controller has begun, now or when it was asked before. Raises Unsupported where it takes images by upload only.
    """
    body = bmc.read(service(bmc, "UpdateService"))
    target = action(body, SIMPLE)
    if not target:
        raise Unsupported(_no_simple_update(body), code="provider_update_by_upload_only")
    running = _running(bmc, target, image_url)
    if running is not None:
        return running
    protocol = image_url.partition(":")[0].upper()
    known = allowed(bmc, body, SIMPLE, "TransferProtocol")
    if protocol not in (known if known is not None else PROTOCOLS):
        raise Unsupported(f"the controller does not fetch images by {protocol}: only {', '.join(known or PROTOCOLS)}")
    content: dict[str, Any] = {"ImageURI": image_url, "TransferProtocol": protocol}
    if targets:
        content["Targets"] = list(targets)
    reply = bmc.post(target, content)
    task = _task_of(reply)
    if not task:
        return UpdateView("", "unknown", message="accepted without a task to follow: look at the version instead")
    return UpdateView(task, "running", percent=_percent(reply.body), message=_words(reply.body))


def find(bmc: Bmc) -> UpdateView | None:
    """
    An update of any image that the controller calls under way. None, too, where it takes no updates or keeps no tasks.
    """
    try:
        target = action(bmc.read(service(bmc, "UpdateService")), SIMPLE)
    except (NotFound, Unsupported):
        return None
    return _running(bmc, target, "") if target else None


def follow(bmc: Bmc, wanted: str, task: str) -> UpdateView:
    """
    How far the task is. It has succeeded only when the controller, which may restart over it, gives good answers again.
    """
    if not task.startswith("/redfish/"):
        raise Refused("that is no name of a task", code="provider_task_invalid")
    reply = bmc.look(task)
    problem = reply.problem()
    if isinstance(problem, NotFound) or reply.status == HTTPStatus.GONE:
        return UpdateView(task, "unknown", message="the controller has forgotten the task: look at the version instead")
    if isinstance(problem, Transient) and not isinstance(problem, Unknown):
        raise problem
    if isinstance(problem, Refused):
        return UpdateView(task, "failed", message=reply.detail)
    if problem is not None:
        raise problem
    view = UpdateView(task, _state(reply), percent=_percent(reply.body), message=_words(reply.body))
    return _settled(bmc, wanted, view) if view.state == "succeeded" else view


def _no_simple_update(body: Mapping[str, Any]) -> str:
    by = [name for name in ("MultipartHttpPushUri", "HttpPushUri") if text(body, name)]
    if not by:
        return "the controller offers no way to update firmware"
    return f"the controller fetches no images: it takes uploads ({', '.join(by)}), which this adapter does not send"


def _task_of(reply: Reply) -> str:
    """
    The monitor by the header, else the task that is the answer's body.
    """
    location = reply.headers.get("location", "")
    path = "/" + location.partition("://")[2].partition("/")[2] if "://" in location else location
    if path.startswith("/redfish/"):
        return path
    return link(reply.body) if inside(reply.body, "TaskState") is not None or reply.status == HTTPStatus.ACCEPTED else ""


def _running(bmc: Bmc, target: str, image_url: str) -> UpdateView | None:
    """
    An update with the same image, or any where none is named, that is under way: a repeat must not begin another.
    """
    try:
        tasks = link(bmc.read(service(bmc, "TaskService")), "Tasks")
        paths = members(bmc, tasks)[-TASKS_SEEN:] if tasks else ()
        replies = [bmc.look(path) for path in reversed(paths)]
    except (NotFound, Unsupported):
        return None
    for reply in replies:
        payload = inside(reply.body, "Payload")
        same = text(payload, "TargetUri") == target and image_url in text(payload, "JsonBody")
        if same and _state(reply) == "running":
            return UpdateView(path_of(reply), "running", percent=_percent(reply.body), message=_words(reply.body))
    return None


def _state(reply: Reply) -> State:
    said = text(reply.body, "TaskState")
    if said:
        state = STATES.get(said, "unknown")
        return "failed" if state == "succeeded" and text(reply.body, "TaskStatus") == "Critical" else state
    if reply.status == HTTPStatus.ACCEPTED:
        return "running"
    # The monitor's own success is the operation's: it has ended.
    return "succeeded" if reply.status in {HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.CREATED} else "unknown"


def _settled(bmc: Bmc, wanted: str, view: UpdateView) -> UpdateView:
    try:
        for _ in range(GOOD_ANSWERS):
            machine(bmc, wanted)
    except ProviderError:
        return replace(view, state="running", message="done; the controller is not steady yet")
    return view


def _percent(body: Mapping[str, Any] | None) -> int | None:
    said = inside(body, "PercentComplete")
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= 100 else None  # noqa: PLR2004 - percent


def _words(body: Mapping[str, Any] | None) -> str:
    rows = inside(body, "Messages")
    said = [text(row, "Message") or text(row, "MessageId") for row in rows] if isinstance(rows, list) else []
    return "; ".join(one for one in said if one)[:500]
