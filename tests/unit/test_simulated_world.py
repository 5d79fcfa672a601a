"""
Fleet files, durations, settings and the clock of the simulated provider.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.simulated.adapter import build
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.durations import MICROS, OPERATIONS, PROFILES, duration_us
from controlplane.providers.adapters.simulated.world import MAX_FILE_BYTES, FleetError, load_fleet, parse_fleet, shipped_fleets
from controlplane.providers.errors import Permanent
from controlplane.providers.registry import AdapterInput

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_the_demo_fleet_is_two_sites_and_one_rack_domain() -> None:
    """64 machines of 8 H100 in blocks and leaves over two sites, and 18 of 4 GB200 that share one NVLink domain."""
    machines = list(load_fleet("demo").machines())
    kinds = Counter((one.instance_type, one.gpu_model, one.gpus) for one in machines)
    assert kinds == {("hgx-h100-8", "H100-SXM5-80GB", 8): 64, ("gb200-nvl72-4", "GB200-NVL72-186GB", 4): 18}
    hgx = [one for one in machines if one.gpus == 8]
    assert len({one.site for one in hgx}) == 2
    assert len({one.block for one in hgx}) == 4
    assert len({one.leaf for one in hgx}) == 8
    assert {one.nvlink_domain for one in hgx} == {one.ref for one in hgx}
    assert len({one.nvlink_domain for one in machines if one.gpus == 4}) == 1


@pytest.mark.parametrize("name", shipped_fleets())
def test_a_shipped_fleet_has_unique_names_serials_and_addresses(name: str) -> None:
    """Every machine is itself, and the count is what the file says."""
    fleet = load_fleet(name)
    machines = list(fleet.machines())
    assert len(machines) == fleet.count()
    for of in ("ref", "serial", "bmc_address"):
        assert len({getattr(one, of) for one in machines}) == len(machines), of


def test_the_large_cloud_has_ten_thousand_machines() -> None:
    """Written compactly, read whole."""
    assert load_fleet("cloud-10k").count() == 10_000


def test_a_fleet_has_the_same_machines_every_time() -> None:
    """Seeding a region and building its world from one file name the same machines."""
    assert list(load_fleet("demo").machines()) == list(load_fleet("demo").machines())


def _document() -> dict[str, object]:
    template = {"instance_type": "x-8", "gpu_model": "X", "gpus": 8, "memory_gib": 1, "cpus": 1, "power_w": 100}
    block = {"template": "x", "leaves": 1, "racks_per_leaf": 1, "nodes_per_rack": 2}
    return {"fleet": "f", "region": "r", "templates": {"x": template}, "sites": [{"name": "s1", "blocks": [block]}]}


def test_the_adapter_tells_where_each_machine_stands(tmp_path: Path) -> None:
    """The place of every listed machine, from the same fleet file; only a shared NVLink domain is named."""
    sim = build(AdapterInput("prv_1", {"path": str(tmp_path / "w.sqlite")}, {}, "test", lambda: START))
    places = {one.ref: one for one in sim.list_positions()}
    assert set(places) == {one.ref for one in sim.list_machines().machines}
    assert places["ams1-b2-l1-r2-n03"].leaf == "ams1-b2-l1"
    assert places["ams1-b2-l1-r2-n03"].nvlink_domain is None
    assert places["ams1-b3-l1-r1-n18"].nvlink_domain == "ams1-b3-l1-r1"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("fleet",), "Not A Name", "fleet.fleet"),
        (("extra",), 1, "'extra' is unknown"),
        (("templates", "x", "gpus"), "eight", "templates.x.gpus: must be a whole number"),
        (("templates", "x", "gpus"), True, "templates.x.gpus"),
        (("templates", "x", "nvlink_domain"), "block", "must be node, rack or none"),
        (("templates", "x", "colour"), "red", "'colour' is unknown"),
        (("sites",), [], "at least one entry"),
        (("sites",), [{"name": "s1"}], "blocks is missing"),
        (("sites", 0, "blocks", 0, "template"), "y", "no template is called 'y'"),
        (("sites", 0, "blocks", 0, "nodes_per_rack"), 0, "nodes_per_rack"),
        (("sites", 0, "blocks", 0, "leaves"), 10**9, "leaves"),
        (("sites", 0, "blocks", 0), {"template": "x", "leaves": 1000, "racks_per_leaf": 1000, "nodes_per_rack": 2}, "at most"),
    ],
)
def test_a_wrong_fleet_file_is_refused_with_the_place(path: tuple[str | int, ...], value: object, words: str) -> None:
    """The message names what is wrong and where."""
    document = _document()
    parse_fleet(document)
    here: object = document
    for step in path[:-1]:
        here = here[step]  # type: ignore[index]
    here[path[-1]] = value  # type: ignore[index]
    with pytest.raises(FleetError) as caught:
        parse_fleet(document)
    assert words in caught.value.detail


def test_two_sites_of_one_name_are_refused() -> None:
    """Names are unique in a fleet."""
    document = _document()
    document["sites"] = [*document["sites"], *document["sites"]]  # type: ignore[misc]
    with pytest.raises(FleetError, match="one name"):
        parse_fleet(document)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_document_breaks_the_reader(document: object) -> None:
    """Anything YAML can say is either a fleet or a FleetError."""
    with pytest.raises(FleetError):
        parse_fleet(document)


def test_files_that_are_no_fleet_are_refused(tmp_path: Path) -> None:
    """Unknown names, missing files, no YAML, tags that would run code, and files too large."""
    large, broken, tagged = (tmp_path / name for name in ("large.yaml", "broken.yaml", "tagged.yaml"))
    large.write_text("#" * (MAX_FILE_BYTES + 1))
    broken.write_text("a: [1")
    tagged.write_text("!!python/object/apply:os.getcwd []")
    for name in ("nope", str(tmp_path / "missing.yaml"), str(large), str(broken), str(tagged)):
        with pytest.raises(FleetError):
            load_fleet(name)


def test_a_duration_is_a_function_of_its_arguments() -> None:
    """The same for the same, another for another seed, machine, operation or token."""
    base = duration_us("realistic", "deploy", seed=1, target="n1", token="t1")
    assert base == duration_us("realistic", "deploy", seed=1, target="n1", token="t1")
    assert base != duration_us("realistic", "deploy", seed=2, target="n1", token="t1")
    assert base != duration_us("realistic", "deploy", seed=1, target="n2", token="t1")
    assert base != duration_us("realistic", "deploy", seed=1, target="n1", token="t2")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_durations_have_their_median_and_their_bounds(operation: str) -> None:
    """Over many machines the median is the profile's, and nothing is beyond the cut."""
    figure = PROFILES["realistic"][operation]
    drawn = [duration_us("realistic", operation, seed=1, target=f"n{number}", token="t") / MICROS for number in range(2000)]
    assert median(drawn) == pytest.approx(figure.median_s, rel=0.05)
    assert figure.median_s / figure.longest_factor <= min(drawn) < max(drawn) <= figure.median_s * figure.longest_factor + 1e-6


def test_the_instant_profile_takes_no_time() -> None:
    """For benchmarks and state tests."""
    assert {duration_us("instant", operation, seed=1, target="n", token="t") for operation in OPERATIONS} == {0}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"path": ""},
        {"colour": "red"},
        {"profile": "slow"},
        {"clock": "atomic"},
        {"seed": "one"},
        {"seed": True},
        {"requeue": 1},
        {"keep_read_calls": -1},
        {"fleet": "no-such-fleet"},
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, config: dict[str, object]) -> None:
    """Permanent, with the key named."""
    whole = {"path": str(tmp_path / "w.sqlite"), **config} if config else {}
    with pytest.raises(Permanent) as caught:
        build(AdapterInput("prv_1", whole, {}, "test", lambda: START))
    assert not config or next(iter(config)) in caught.value.detail


def test_a_file_with_another_world_is_refused(tmp_path: Path) -> None:
    """Another seed or fleet over the same file would silently change what its machines are."""
    path = str(tmp_path / "w.sqlite")
    build(AdapterInput("prv_1", {"path": path}, {}, "test", lambda: START))
    build(AdapterInput("prv_1", {"path": path, "profile": "fast"}, {}, "test", lambda: START))
    with pytest.raises(Permanent, match="seed"):
        build(AdapterInput("prv_1", {"path": path, "seed": 2}, {}, "test", lambda: START))


def test_the_files_clock_stands_moves_and_is_seen_by_all(tmp_path: Path) -> None:
    """Frozen, advanced, and the same for an adapter that was built before."""
    path = tmp_path / "w.sqlite"
    adapter = build(AdapterInput("prv_1", {"path": str(path), "clock": "file", "profile": "realistic"}, {}, "test", lambda: START))
    control = SimControl(path)
    control.freeze(START)
    ref = adapter.list_machines().machines[0].ref
    adapter.inspect(ref, "i1")
    assert adapter.observe(ref).inventory is None
    assert control.advance(3600) == START + timedelta(hours=1)
    assert SimControl(path).now() == START + timedelta(hours=1)
    assert adapter.observe(ref).inventory is not None
    control.set_clock(START, rate=1000.0)
    first = control.now()
    assert control.now() > first


def test_a_world_on_its_callers_clock_cannot_be_moved(tmp_path: Path) -> None:
    """Two clocks in one world would be a riddle."""
    path = tmp_path / "w.sqlite"
    build(AdapterInput("prv_1", {"path": str(path)}, {}, "test", lambda: START))
    with pytest.raises(ValueError, match="clock"):
        SimControl(path).advance(1)
