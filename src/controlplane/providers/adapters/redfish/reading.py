"""
One look at a controller's tree: every resource at most once, failures noted instead of raised, and an end to everything.

Source: DSP0266 (Redfish specification), sections on collections, `Members@odata.nextLink` and the `$expand` query parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.redfish.values import Json, identity, items, last_step, path_in, record, text, whole
from controlplane.providers.errors import AuthFailed, NotFound, Permanent, ProviderError, Refused, Transient, Unknown

Read = Callable[[str], dict[str, Any]]
"""GET of a path such as `/redfish/v1/Systems/System_0`: its parsed JSON, or an error of `providers.errors`."""

ROOT = "/redfish/v1"
RESOURCES = 1500
"""GETs one look may take; a tray with two GPUs that expands nothing needs about 500."""
SYSTEMS = 16
"""Systems looked at on one controller; one with more is an emulator or an aggregator, and its boards are not searched."""
SILENCES = 3
"""Answers in a row that may fail to come before the rest is not asked for: each costs the whole timeout."""
NOTES = 64
"""Unread parts that are named one by one."""
_EXPAND_FAILURES = 2
_BOARD = "HGX_"


@dataclass(frozen=True, slots=True)
class Part:
    """
    One resource that was read.
    """

    path: str
    """Where it is."""
    body: Json
    """What it says."""

    @property
    def name(self) -> str:
        """
        The controller's id of it, as in its path.
        """
        return last_step(self.path)


class Tree:
    """
    The resources of one controller as they are now. Not safe for threads; made for one call and dropped.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._seen: dict[str, Json | None] = {}
        self._left = RESOURCES
        self._silences = 0
        self._expand_failures = 0
        self._notes: dict[str, str] = {}
        self._partial: set[str] = set()

    @property
    def unread(self) -> dict[str, str]:
        """
        What did not answer (a path under the root, or words) to why; at most `NOTES` and one that says there are more.
        """
        return dict(self._notes)

    def note(self, what: str, why: str) -> None:
        """
        The part is named as unread.
        """
        what = what.removeprefix(ROOT + "/")
        if what in self._notes or len(self._notes) < NOTES:
            self._notes.setdefault(what, why)
        else:
            self._notes.setdefault("others", f"more than {NOTES} parts did not answer")

    def need(self, path: str) -> Json:
        """
        The resource, without which there is nothing to say. Raises what reading it raises.
        """
        body = self._read(path)
        if not isinstance(body, dict):
            raise Unknown(f"{path} is no JSON object")
        self._seen[path] = body
        return body

    def get(self, link: object, *, of: str = "", optional: bool = False) -> Part | None:
        """
        The resource behind a link, a path, or in place of a link; None where there is no link, and, noted, where it cannot be read.

        `of` names the link in notes. With `optional` a resource that does not exist is not noted. Raises AuthFailed only.
        """
        path = path_in(link)
        if not path:
            if link is not None:
                self.note(of or "a link", "leads nowhere")
            return None
        if _expanded(link) and self._seen.get(path) is None:
            self._seen[path] = record(link)
        if path not in self._seen:
            self._seen[path] = self._fetch(path, optional=optional)
        body = self._seen[path]
        return None if body is None else Part(path, body)

    def linked(self, parent: Part, key: str, *, optional: bool = False) -> Part | None:
        """
        What the parent's property links to. A property that is there and is no link, null among it, is noted.
        """
        of = f"{parent.path}#{key}"
        if key in parent.body and parent.body[key] is None and not optional:
            self.note(of, "leads nowhere")
        return self.get(parent.body.get(key), of=of, optional=optional)

    def members(self, parent: Part, key: str, *, levels: int = 1) -> tuple[Part, ...]:
        """
        The members of the collection that the parent's property links to, in the controller's order; what cannot be read is noted.

        Where the service expands, `levels` below the collection come with one call.
        """
        if key not in parent.body:
            return ()
        path = path_in(parent.body[key])
        if not path:
            self.note(f"{parent.path}#{key}", "leads nowhere")
            return ()
        found: dict[str, Part] = {}
        for page in self.pages(path, levels=levels):
            for at, link in enumerate(items(page.get("Members"))):
                part = self.get(link if link is not None else "", of=f"{path}#Members/{at}")
                if part is None:
                    self._partial.add(path)
                else:
                    found[part.path] = part
        return tuple(found.values())

    def is_partial(self, parent: Part, key: str) -> bool:
        """
        Whether the collection behind the property, once it was read by `members`, may have more in it than was found.
        """
        path = path_in(parent.body.get(key))
        return not path or path in self._partial

    def parts(self, parent: Part, *keys: str) -> tuple[Part, ...]:
        """
        What the links under nested properties lead to, for example `("Links", "Chassis")`; a single link is a list of one.
        """
        value: object = parent.body
        of = f"{parent.path}#{'/'.join(keys)}"
        for key in keys:
            if not isinstance(value, dict):
                self.note(of, "leads nowhere")
                return ()
            if key not in value:
                return ()
            value = value[key]
        links = value if isinstance(value, list) else [value]
        return tuple(part for link in links if (part := self.get(link if link is not None else "", of=of)) is not None)

    def pages(self, path: str, *, levels: int = 1) -> Iterator[Json]:
        """
        The pages of a collection, unexpanded for 0 `levels`; noted when one does not answer or members are missing.
        """
        page = self._first_page(path, levels)
        gone, seen = {path}, 0
        while page is not None:
            members = page.get("Members")
            if not isinstance(members, list):
                self._miss(path, "has no list of members")
                return
            seen += len(members)
            yield page
            if "Members@odata.nextLink" not in page:
                counted = whole(page.get("Members@odata.count"))
                if counted is not None and counted > seen:
                    self._miss(path, f"lists {seen} of {counted} members")
                return
            following = path_in(page["Members@odata.nextLink"])
            if not following or following in gone:
                self._miss(path, "has pages that lead nowhere")
                return
            gone.add(following)
            part = self.get(following)
            page = None if part is None else part.body
        self._partial.add(path)

    def _miss(self, path: str, why: str) -> None:
        self._partial.add(path)
        self.note(path, why)

    def _first_page(self, path: str, levels: int) -> Json | None:
        if path in self._seen:
            return self._seen[path]
        query = self._expansion(levels) if levels else ""
        if query and self._may_ask(path):
            failures = 1
            try:
                self._seen[path] = self._ask(path + query)
            except AuthFailed:
                raise
            except (Permanent, NotFound):
                failures = _EXPAND_FAILURES
            except ProviderError:
                pass
            else:
                return self._seen[path]
            part = self.get(path)
            self._expand_failures += failures if part is not None else 0
        part = self.get(path)
        return None if part is None else part.body

    def _expansion(self, levels: int) -> str:
        if self._expand_failures >= _EXPAND_FAILURES:
            return ""
        root = self.get(ROOT)
        offered = record(record(root.body if root else None).get("ProtocolFeaturesSupported"))
        expand = record(offered.get("ExpandQuery"))
        kind = "." if expand.get("NoLinks") is True else "*" if expand.get("ExpandAll") is True else ""
        if not kind or expand.get("Levels") is not True:
            return f"?$expand={kind}" if kind else ""
        return f"?$expand={kind}($levels={min(levels, whole(expand.get('MaxLevels')) or 1)})"

    def _fetch(self, path: str, *, optional: bool) -> Json | None:
        if not self._may_ask(path):
            return None
        try:
            return self._ask(path)
        except AuthFailed:
            raise
        except NotFound as error:
            if not optional:
                self.note(path, error.code)
        except ProviderError as error:
            self.note(path, error.code)
        return None

    def _may_ask(self, path: str) -> bool:
        if self._silences >= SILENCES:
            self.note("controller", "stopped answering")
            self.note(path, "not asked for")
        elif self._left <= 0:
            self.note("controller", f"has more than {RESOURCES} resources")
            self.note(path, "not asked for")
        else:
            return True
        return False

    def _ask(self, path: str) -> Json:
        self._left -= 1
        try:
            body = self._read(path)
        except Transient:
            self._silences += 1
            raise
        except ProviderError:
            self._silences = 0
            raise
        self._silences = 0
        if not isinstance(body, dict):
            raise Unknown(f"{path} is no JSON object")
        return body


@dataclass(frozen=True, slots=True)
class Machine:
    """
    The resources of one controller that belong to one machine.
    """

    host: Part
    """The system that is switched on and booted."""
    boards: tuple[Part, ...]
    """Systems that cannot be switched on and hold its accelerators, such as `HGX_Baseboard_0`."""
    chassis: tuple[Part, ...]
    """What it is built of."""
    root: Part | None
    """The service; None when it did not answer."""
    alone: bool
    """Whether all that the controller shows is this machine's."""

    @property
    def systems(self) -> tuple[Part, ...]:
        """
        Boards first: their names of the GPUs are the vendor's.
        """
        return (*self.boards, self.host)


def open_machine(tree: Tree, system_path: str) -> Machine:
    """
    The machine whose system is at the path. Raises what reading the system raises, NotFound for what is no path.

    On a controller with several machines only what the system links to is its own; whose a board is cannot be told and is noted.
    """
    path = path_in(system_path)
    if not path:
        raise NotFound(f"{system_path!r} is no path of a system")
    host = Part(path, tree.need(path))
    root = tree.get(ROOT)
    others: tuple[Part, ...] = ()
    alone = False
    if root is not None:
        links = _member_paths(tree, root)
        alone = len(links) <= SYSTEMS
        if alone:
            others = tuple(part for part in tree.members(root, "Systems") if part.path != path)
    boards = tuple(part for part in others if not _can_be_switched_on(part.body))
    if len(boards) < len(others):
        for board in boards:
            tree.note(board.path, "belongs to one of several machines")
        boards, alone = (), False
    return Machine(host, boards, _chassis(tree, root, host, alone=alone), root, alone)


def managers(tree: Tree, machine: Machine) -> tuple[Part, ...]:
    """
    The controllers that manage the machine, the host's first.
    """
    found = {part.path: part for system in (machine.host, *machine.boards) for part in tree.parts(system, "Links", "ManagedBy")}
    return tuple(found.values())


def find_system(read: Read, wanted: str) -> str:
    """
    The path of the machine's system: the one with this id or UUID or, for an empty one, the one that can be switched on.

    Raises NotFound when there is none, Refused when several could be meant, and what reading raises: absence is never concluded
    from silence. Only a silent HGX board, which is never the machine, keeps nobody from it.
    """
    tree = Tree(read)
    root = Part(ROOT, tree.need(ROOT))
    if collection := path_in(root.body.get("Systems")):
        tree.need(collection)
    paths = _member_paths(tree, root)
    complete = not tree.unread
    if named := [path for path in paths if wanted and last_step(path).lower() == wanted.lower()]:
        return named[0]
    systems = [part for path in paths[:SYSTEMS] if (part := _candidate(tree, path))]
    found = [part.path for part in systems if (_is_called(part.body, wanted) if wanted else _can_be_switched_on(part.body))]
    if wanted and found:
        return found[0]
    if len(paths) > SYSTEMS:
        raise Refused(f"the controller has {len(paths)} systems: the machine's must be named by its id")
    if len(found) > 1:
        raise Refused(f"several systems can be switched on: {', '.join(map(last_step, found))}; the machine's must be named")
    if not found and not complete:
        raise Unknown("the controller does not list its systems completely")
    if not found:
        raise NotFound(f"no system {wanted!r}" if wanted else "no system that can be switched on")
    return found[0]


def _candidate(tree: Tree, path: str) -> Part | None:
    try:
        return Part(path, tree.need(path))
    except AuthFailed:
        raise
    except NotFound:
        return None
    except ProviderError:
        if last_step(path).startswith(_BOARD):
            return None
        raise


def _is_called(body: Json, wanted: str) -> bool:
    return wanted == text(body.get("Id")) or (identity(wanted) != "" and identity(wanted) == identity(body.get("UUID")))


def _member_paths(tree: Tree, root: Part) -> list[str]:
    path = path_in(root.body.get("Systems"))
    if not path:
        tree.note(f"{ROOT}#Systems", "leads nowhere")
        return []
    found: dict[str, None] = {}
    for page in tree.pages(path):
        for link in items(page["Members"]):
            if member := path_in(link):
                found[member] = None
            else:
                tree.note(path, "has a member that leads nowhere")
    return list(found)


def _chassis(tree: Tree, root: Part | None, host: Part, *, alone: bool) -> tuple[Part, ...]:
    own = {part.path: part for part in tree.parts(host, "Links", "Chassis")}
    if alone and root is not None:
        return tuple((own | {part.path: part for part in tree.members(root, "Chassis")}).values())
    waiting = list(own.values())
    while waiting:
        for part in tree.parts(waiting.pop(), "Links", "Contains"):
            if part.path not in own:
                own[part.path] = part
                waiting.append(part)
    return tuple(own.values())


def _can_be_switched_on(body: Json) -> bool:
    return "#ComputerSystem.Reset" in record(body.get("Actions"))


def _expanded(link: object) -> bool:
    return isinstance(link, dict) and ("@odata.type" in link or "Id" in link)
