"""
Which of a controller's systems the machine is, and when that is not said.
"""

from __future__ import annotations

import pytest

from controlplane.providers.adapters.redfish.reading import find_system
from controlplane.providers.errors import AuthFailed, NotFound, ProviderError, Refused, Unknown
from tests.unit.redfish.controllers import BOARD, HOST, V1, Controller, Resources, collection, hgx, resource

RESET: dict[str, dict[str, str]] = {"#ComputerSystem.Reset": {}}


def _machines(count: int) -> Resources:
    tree: Resources = {}
    resource(tree, V1, Systems={"@odata.id": f"{V1}/Systems"})
    paths = [
        resource(tree, f"{V1}/Systems/{at}", UUID=f"0000000{at % 10}-1111-4000-8000-0000000000{at:02}", Actions=RESET)
        for at in range(count)
    ]
    collection(tree, f"{V1}/Systems", *paths)
    return tree


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", HOST),
        ("System_0", HOST),
        ("system_0", HOST),
        ("0b6c1a6e-0000-4000-8000-00000000ABCD", HOST),
        ("HGX_Baseboard_0", BOARD),
    ],
)
def test_a_system_is_found_by_id_or_uuid_or_because_it_can_be_switched_on(wanted: str, found: str) -> None:
    """Ids and UUIDs in any case."""
    assert find_system(Controller(hgx()), wanted) == found


def test_an_id_that_differs_from_the_path_is_found() -> None:
    """The controller's own word for it."""
    tree = hgx()
    tree[HOST]["Id"] = "Blade 1"
    assert find_system(Controller(tree), "Blade 1") == HOST


def test_no_such_system_is_not_found() -> None:
    """Only after all of them answered."""
    with pytest.raises(NotFound, match="no system 'x'"):
        find_system(Controller(hgx()), "x")


def test_no_system_that_can_be_switched_on_is_not_found() -> None:
    """A board alone is no machine."""
    tree = hgx()
    collection(tree, f"{V1}/Systems", BOARD)
    with pytest.raises(NotFound, match="can be switched on"):
        find_system(Controller(tree), "")


def test_several_systems_that_can_be_switched_on_are_refused() -> None:
    """Words name them, and what to do."""
    with pytest.raises(Refused, match="0, 1; the machine's must be named"):
        find_system(Controller(_machines(2)), "")


def test_one_of_very_many_is_found_by_its_path_with_two_calls() -> None:
    """An emulator of a thousand machines names them by UUID; without a name, they are too many to look at."""
    controller = Controller(_machines(50))
    assert find_system(controller, "49") == f"{V1}/Systems/49"
    assert len(controller.asked) == 2
    with pytest.raises(Refused, match="50 systems"):
        find_system(controller, "")


def test_a_silent_board_hides_no_machine() -> None:
    """Its own controller restarts by itself."""
    controller = Controller(hgx())
    controller.faults[BOARD] = Unknown("timeout")
    assert find_system(controller, "") == HOST


@pytest.mark.parametrize("path", [V1, f"{V1}/Systems", HOST])
@pytest.mark.parametrize("error", [Unknown("timeout"), AuthFailed("401")])
def test_silence_is_not_absence(path: str, error: ProviderError) -> None:
    """What could not be read is raised."""
    controller = Controller(hgx())
    controller.faults[path] = error
    with pytest.raises(type(error)):
        find_system(controller, "")


def test_a_list_that_is_not_complete_proves_nothing() -> None:
    """A member that leads nowhere may have been the machine."""
    tree = hgx()
    tree[f"{V1}/Systems"]["Members"] = [None]
    with pytest.raises(Unknown):
        find_system(Controller(tree), "")
