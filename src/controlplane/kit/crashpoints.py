"""
Named places where a process may die. Nothing happens there unless a test has installed a hook.
"""

from collections.abc import Callable

POINTS = (
    "request.before_commit",
    "request.after_commit",
    "claim.before_commit",
    "claim.after_commit",
    "call.before",
    "call.after",
    "apply.before_commit",
    "apply.after_commit",
    "decide.before_commit",
    "decide.after_commit",
)

_hooks: list[Callable[[str], None]] = []


def reach(point: str) -> None:
    """
    The point was passed; an installed hook may not let us live.
    """
    for hook in _hooks:
        hook(point)


def install(hook: Callable[[str], None]) -> Callable[[], None]:
    """
    The hook is called at every point from now on; the returned function takes it out again. For tests only.
    """
    _hooks.append(hook)
    return lambda: _hooks.remove(hook)
