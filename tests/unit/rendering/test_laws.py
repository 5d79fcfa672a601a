"""
Laws of rendering: order does not matter, growing adds, shrinking takes away, and no word of a plan can become a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.slurm.hostlist import expand
from controlplane.rendering.slurm.changes import grown, shrunk
from controlplane.rendering.slurm.checking import check_plan
from controlplane.rendering.slurm.conf import line
from controlplane.rendering.slurm.files import Bundle
from controlplane.rendering.slurm.hostlist import compress
from controlplane.rendering.slurm.keys import ClusterKeys, new_keys, read_keys
from controlplane.rendering.slurm.plan import Containers, Host, Partition, Position, Shape, SlurmPlan, User, Worker
from controlplane.rendering.slurm.roles import head_bundle, login_bundle, worker_bundle
from controlplane.rendering.slurm.settings import adapter_settings
from controlplane.rendering.slurm.words import BadPlan
from tests.factories.slurm_plans import HGX, KEYS, PLAIN, TRAY, leaf_spine, nvl_rack, with_accounting

HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,6}[a-z0-9]", fullmatch=True)
CONF = "/etc/slurm/slurm.conf"
HOSTILE = st.text(alphabet=st.sampled_from("a1=# \n\r\t\"'\\,[]()%$`;|&-./:\x00é"), min_size=1, max_size=12)


def conf(plan: SlurmPlan) -> list[str]:
    """slurm.conf's lines."""
    return head_bundle(plan, KEYS).file(CONF).content.decode().splitlines()


@st.composite
def mixed_plans(draw: st.DrawFn) -> SlurmPlan:
    """Clusters of three shapes at places of all kinds."""
    count = draw(st.integers(1, 14))
    workers = tuple(
        Worker(
            f"{draw(st.sampled_from(['n', 'gpu-', 'r1-n']))}{number:0{draw(st.sampled_from([1, 3]))}d}",
            f"10.9.0.{number}",
            draw(st.sampled_from([HGX.name, TRAY.name, PLAIN.name])),
            draw(
                st.sampled_from(
                    [Position(), Position("b1"), Position("b1", "l1"), Position("b1", "l2"), Position("b2", "l1", "r", "d1")]
                )
            ),
        )
        for number in range(1, count + 1)
    )
    partitions = (Partition("main", default=True), Partition("big", (HGX.name, TRAY.name), priority_tier=5))
    users = (User("tn_b", 20_002), User("tn_a", 20_001))
    return replace(leaf_spine(), workers=workers, shapes=(HGX, TRAY, PLAIN), partitions=partitions, users=users)


@given(mixed_plans(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_a_plan_does_not_matter(plan: SlurmPlan, chance: Any) -> None:
    """The same workers, shapes, partitions and users in any order give the same bytes on every host, and the same settings."""

    def shuffled(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(chance.sample(values, len(values)))

    other = replace(
        plan,
        workers=shuffled(plan.workers),
        shapes=shuffled(plan.shapes),
        partitions=shuffled(plan.partitions),
        users=shuffled(plan.users),
    )
    assert head_bundle(other, KEYS) == head_bundle(plan, KEYS)
    assert login_bundle(other, KEYS, "login-1") == login_bundle(plan, KEYS, "login-1")
    assert worker_bundle(other, KEYS, plan.workers[0].name) == worker_bundle(plan, KEYS, plan.workers[0].name)
    assert adapter_settings(other) == adapter_settings(plan)


@given(mixed_plans(), st.integers(0, 13))
@settings(max_examples=40, deadline=None)
def test_growing_adds_one_line_for_each_worker_and_shrinking_takes_it_away(plan: SlurmPlan, keep: int) -> None:
    """In slurm.conf every old line stays in its order, each new one is of a new worker; the way back gives the old bytes."""
    kept, added = plan.workers[: keep + 1], plan.workers[keep + 1 :]
    # the topology is the operator's choice here, so that a first leaf does not switch the plug-in
    small = replace(plan, workers=kept, topology="tree")
    big = grown(small, added)
    before, after = conf(small), conf(big)
    new = [text for text in after if text not in set(before)]
    assert [text for text in after if text in set(before)] == before
    assert sorted(text.split()[0] for text in new) == sorted(f"NodeName={worker.name}" for worker in added)
    assert head_bundle(shrunk(big, [worker.name for worker in added]), KEYS) == head_bundle(small, KEYS)


def _worker(**change: Any) -> Callable[[SlurmPlan], SlurmPlan]:
    return lambda plan: replace(plan, workers=(replace(plan.workers[0], **change), *plan.workers[1:]))


def _position(part: str, text: str) -> Callable[[SlurmPlan], SlurmPlan]:
    return lambda plan: _worker(position=replace(plan.workers[0].position, **{part: text}))(plan)


def _shape(change: Callable[[Shape], Shape]) -> Callable[[SlurmPlan], SlurmPlan]:
    return lambda plan: replace(plan, shapes=(change(plan.shapes[0]), *plan.shapes[1:]))


def _partition(**change: Any) -> Callable[[SlurmPlan], SlurmPlan]:
    return lambda plan: replace(plan, partitions=(replace(plan.partitions[0], **change), *plan.partitions[1:]))


def _gpus(shape: Shape, **change: Any) -> Shape:
    assert shape.gpus is not None
    return replace(shape, gpus=replace(shape.gpus, **change))


def _cores(shape: Shape, text: str) -> Shape:
    assert shape.gpus is not None
    return _gpus(shape, groups=(replace(shape.gpus.groups[0], cores=text), *shape.gpus.groups[1:]))


def _rdma(shape: Shape, **change: Any) -> Shape:
    assert shape.rdma is not None
    return replace(shape, rdma=replace(shape.rdma, **change))


def _layout(name: str, text: str) -> Callable[[SlurmPlan], SlurmPlan]:
    return lambda plan: replace(plan, layout=replace(plan.layout, **{name: text}))


PLACES: dict[str, Callable[[str], Callable[[SlurmPlan], SlurmPlan]]] = {
    "cluster": lambda text: lambda plan: replace(plan, cluster=text),
    "head name": lambda text: lambda plan: replace(plan, heads=(Host(text, "10.20.0.2"),)),
    "head address": lambda text: lambda plan: replace(plan, heads=(Host("head-1", text),)),
    "login name": lambda text: lambda plan: replace(plan, logins=(Host(text, "10.20.0.3"),)),
    "worker name": lambda text: _worker(name=text),
    "worker address": lambda text: _worker(address=text),
    "worker hostname": lambda text: _worker(hostname=text),
    "worker shape": lambda text: _worker(shape=text),
    "shape": lambda text: _shape(lambda shape: replace(shape, name=text)),
    "gres type": lambda text: _shape(lambda shape: _gpus(shape, gres_type=text)),
    "device prefix": lambda text: _shape(lambda shape: _gpus(shape, device_prefix=text)),
    "cores": lambda text: _shape(lambda shape: _cores(shape, text)),
    "rdma device": lambda text: _shape(lambda shape: _rdma(shape, devices=(text,))),
    "interface": lambda text: _shape(lambda shape: _rdma(shape, interface=text)),
    "partition": lambda text: _partition(name=text),
    "group": lambda text: _partition(groups=(text,)),
    "user": lambda text: lambda plan: replace(plan, users=(User(text, 20_001),)),
    "scheduler": lambda text: lambda plan: replace(plan, scheduler=(text,)),
    "plug-in": lambda text: lambda plan: replace(plan, containers=Containers(plugin=text)),
    "scratch": lambda text: lambda plan: replace(plan, containers=Containers(scratch_dir=text)),
    "account": lambda text: lambda plan: replace(plan, accounting=replace(with_accounting().accounting, account=text)),  # type: ignore[type-var]
    **{part: lambda text, part=part: _position(part, text) for part in ("block", "leaf", "rack", "nvlink_domain")},  # type: ignore[misc]
    **{name: lambda text, name=name: _layout(name, text) for name in leaf_spine().layout.__slots__},  # type: ignore[misc]
}


def skeleton(bundle: Bundle) -> dict[str, list[str]]:
    """Each file's lines by their first key alone, as a parser would see them."""
    return {
        file.path.rpartition("/")[2]: [re.split(r"[= ]", text)[0] for text in file.content.decode("utf-8", "replace").splitlines()]
        for file in bundle.files
        if not file.secret and not file.path.endswith(("topology.conf", "/hosts"))
    }


@pytest.mark.parametrize("place", PLACES)
@given(text=HOSTILE)
@settings(max_examples=15, deadline=None)
def test_no_text_becomes_a_line_or_a_key(place: str, text: str) -> None:
    """Whatever stands in a plan's words: it is refused, or the files have the same lines and keys as with a harmless word."""
    plan = PLACES[place](text)(leaf_spine())
    try:
        bundle = head_bundle(plan, KEYS)
    except BadPlan:
        return
    harmless = PLACES[place]("a1")(leaf_spine()) if place not in _PATHS else leaf_spine()
    try:
        wanted = head_bundle(harmless, KEYS)
    except BadPlan:
        wanted = head_bundle(leaf_spine(), KEYS)
    assert skeleton(bundle) == skeleton(wanted)


@pytest.mark.parametrize("place", PLACES)
def test_words_that_mean_more_elsewhere_are_refused(place: str) -> None:
    """Hostlists, lists, Slurm's patterns, comments, other lines, shell: nothing of them is a word of a plan."""
    for text in ("n[1-2]", "a,b", "a b", "a\nb", "a\n", "a#b", "a;b", "$(a)", "a'b", "%n", "-a", "", "a/../b", "/a/../b", "é"):
        if text == "" and place in {"worker hostname", "cores", "block", "leaf", "rack", "nvlink_domain"}:
            continue
        with pytest.raises(BadPlan):
            check_plan(PLACES[place](text)(leaf_spine()))


_PATHS = frozenset({"device prefix", "plug-in", "scratch", *leaf_spine().layout.__slots__})


@given(st.text(max_size=20))
@settings(max_examples=50)
def test_a_line_holds_one_word_for_each_key(text: str) -> None:
    """The last check before a line is made: no value can end its word, its line, or begin a comment."""
    try:
        made = line(("Key", text))
    except BadPlan:
        return
    assert made == f"Key={text}"
    assert made.split() == [made]
    assert not set(made) & set("#\"'\\")


@given(st.sets(HOSTS, max_size=30), st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_hostlists_read_back_and_have_one_spelling(names: set[str], chance: Any) -> None:
    """The adapter's own reader finds the same names, each once, and order does not change a letter."""
    listed = sorted(names)
    chance.shuffle(listed)
    text = compress(listed)
    assert sorted(expand(text)) == sorted(names)
    assert text == compress(sorted(names))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1", "n2", "n3", "n7"], "n[1-3,7]"),
        (["n01", "n1", "n002"], "n1,n01,n002"),
        (["head", "n9", "n10"], "head,n9,n10"),
        ([f"r{rack}-t{tray:02d}" for rack in (1, 2) for tray in (1, 2, 3)], "r1-t[01-03],r2-t[01-03]"),
        ([], ""),
    ],
)
def test_hostlists_are_short(names: list[str], text: str) -> None:
    """Runs are folded; other widths are other names."""
    assert compress(names) == text


@given(st.binary(min_size=1024, max_size=1024), st.binary(min_size=64, max_size=64))
@settings(max_examples=10)
def test_keys_are_kept_as_text_and_never_shown(munge: bytes, jwt: bytes) -> None:
    """What is sealed gives the same keys back; neither a repr of the keys nor of a bundle has any of it."""
    keys = ClusterKeys(munge, jwt)
    assert read_keys(keys.secrets()) == keys
    shown = repr(keys) + repr(head_bundle(nvl_rack(), keys))
    assert all(secret not in shown for secret in keys.secrets().values())
    assert repr(munge) not in shown
    assert repr(jwt) not in shown


def test_keys_are_made_of_the_given_source() -> None:
    """1024 bytes for munge, 64 for tokens, each drawn anew."""
    asked: list[int] = []

    def source(size: int) -> bytes:
        asked.append(size)
        return bytes([len(asked)]) * size

    keys = new_keys(source)
    assert asked == [1024, 64]
    assert keys.munge[:1] != keys.jwt[:1]


@pytest.mark.parametrize("secrets", [{}, {"munge_key": "!", "jwt_key": "!"}, {"munge_key": "QUJD", "jwt_key": "QUJD"}])
def test_what_is_no_key_is_refused_without_being_shown(secrets: dict[str, str]) -> None:
    """Missing, not base64, or too short."""
    with pytest.raises(BadPlan) as caught:
        read_keys(secrets)
    assert "QUJD" not in str(caught.value)
