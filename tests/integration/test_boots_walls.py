"""
Nothing of one machine is given to another: wrong tokens, addresses and headers by the thousand, and the shape of 169.254.169.254.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from controlplane.boots.states import BootLinks, Facts
from controlplane.kit.ids import new_id
from tests.conftest import Database
from tests.factories.boots import KEY, Answer, Booting, Machine, ask, booting
from tests.factories.serving import MASTER_KEY

TRIES = 10_000
QUIET = {"log_level": "WARNING"}
MINE, THEIRS, OUTSIDE = "10.9.0.11", "10.9.0.12", "172.16.0.5"
NAMES = ("meta-data", "user-data", "vendor-data", "network-config", "seed.iso", "files")
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
BELIEVABLE = ("X_Forwarded_For", "Forwarded", "X_Real_IP", "X_Client_IP", "Authorization", "X_aws_ec2_metadata_token", "Cookie")
CANARIES = (b"munge-canary", KEY.encode(), b"instance-id", b"vision")
OTHER_DEPLOYMENT = BootLinks.from_master("http://x", MASTER_KEY, "other")


@pytest.fixture
def ground(database: Database, tmp_path: Path) -> Iterator[Booting]:
    """Three machines; addresses are believed in one network."""
    with booting(
        database, tmp_path, metadata_networks=("10.9.0.0/16", "fd00:9::/32"), trusted_proxies=("172.16.0.0/16",), **QUIET
    ) as one:
        yield one


def wrong_token(chance: random.Random, machine: Machine) -> str:
    """A token that opens nothing, made from one that does."""
    boot_id, _, mark = machine.token.partition(".")
    place = chance.randrange(len(mark) - 1)  # the last character holds two bits that say nothing
    other = chance.choice([one for one in ALPHABET if one != mark[place]])
    return chance.choice(
        [
            f"{boot_id}.{mark[:place]}{other}{mark[place + 1 :]}",
            f"{new_id('bot')}.{mark}",
            f"{boot_id}.",
            boot_id,
            f"{boot_id}.{mark[: chance.randrange(1, 42)]}",
            f"{machine.token}{other}",
            machine.token.upper(),
            OTHER_DEPLOYMENT.token(boot_id),
            f".{mark}",
            "%20" + machine.token,
            "".join(chance.choices(ALPHABET, k=74)),
        ]
    )


def wrong_headers(chance: random.Random, machine: Machine) -> dict[str, str]:
    """Headers that somebody might believe."""
    value = chance.choice([MINE, THEIRS, machine.token, machine.boot_id, f"for={MINE}", "127.0.0.1"])
    names = (
        "X_Forwarded_For",
        "Forwarded",
        "X_Real_IP",
        "X_Client_IP",
        "Authorization",
        "X_aws_ec2_metadata_token",
        "Cookie",
        "True_Client_IP",
    )
    return {chance.choice(names): value}


def test_ten_thousand_wrong_ways_in_open_nothing(ground: Booting) -> None:
    """Every one is answered with the same 404, gives nothing away, and costs no query where no boot is named rightly."""
    facts = Facts("n1", address=MINE, tags={"team": "vision"})
    mine, ended = ground.begin(0, facts=facts), ground.begin(1)
    ground.begin(1, facts=Facts("n2", address=THEIRS))
    chance = random.Random(7)
    queries: list[str] = []
    event.listen(ground.fleet.engine, "before_cursor_execute", lambda *given: queries.append(given[2]))

    async def probe() -> Counter[int]:
        seen: Counter[int] = Counter()
        for number in range(TRIES):
            headers = wrong_headers(chance, mine) if number % 3 else {}
            peer = chance.choice([OUTSIDE, "10.8.255.255", "10.10.0.0", "192.0.2.1", "::1", "fd00:8::1"])
            if number % 4:
                path = f"/v1/boot/{wrong_token(chance, mine)}/{chance.choice(NAMES)}"
            else:
                path = chance.choice(["/latest/meta-data/", "/latest/user-data", "/latest/meta-data/instance-id"])
            answer = await ask(ground.app, "GET", path, peer=peer, **headers)
            seen[answer.status] += 1
            assert not any(one in answer.body for one in CANARIES), path
        return seen

    assert asyncio.run(probe()) == {404: TRIES}
    assert queries == []
    assert ended.get("user-data").status == 404
    assert mine.get("user-data").status == 200


def test_writes_under_a_wrong_token_change_nothing(ground: Booting) -> None:
    """Phone-homes, reports, consoles and versions under wrong tokens are the same 404 and leave no trace."""
    mine = ground.begin()
    chance = random.Random(8)
    for name, kind in (("phone-home", "form"), ("report", "json"), ("console", "octets"), ("applied", "json")):
        del kind
        for _ in range(25):
            thief = Machine(ground.app, mine.boot_id, wrong_token(chance, mine))
            answer = thief.post(name, b"{}", "application/json")
            assert answer.status == 404
    view = ground.view(mine.boot_id)
    assert (view.state, view.phoned_at) == ("made", None)


def latest(ground: Booting, path: str, peer: str, method: str = "GET", **headers: str) -> Answer:
    """What is answered at the metadata address."""
    return asyncio.run(ask(ground.app, method, f"/latest/{path}", peer=peer, **headers))


def session_of(ground: Booting, peer: str, ttl: str = "60") -> dict[str, str]:
    """The header with a fresh token of the machine at the address."""
    answer = latest(ground, "api/token", peer, "PUT", X_aws_ec2_metadata_token_ttl_seconds=ttl)
    assert answer.status == 200, answer.body
    return {"X_aws_ec2_metadata_token": answer.body.decode()}


def test_the_metadata_address_knows_its_machine(ground: Booting) -> None:
    """With a token of its own a machine reads its facts by path, each list with what is below it, and its user-data."""
    facts = Facts("n1.example", address=MINE, mac="52:54:00:00:00:01", tags={"team": "vision"})
    machine = ground.begin(facts=facts)
    token = session_of(ground, MINE)
    names = latest(ground, "meta-data/", MINE, **token).body.decode().split("\n")
    assert names == ["instance-id", "hostname", "local-hostname", "local-ipv4", "mac", "public-keys/", "tags/"]
    assert latest(ground, "meta-data/instance-id", MINE, **token).body == machine.boot_id.encode()
    assert latest(ground, "meta-data/public-keys/0/openssh-key", MINE, **token).body == KEY.encode()
    assert latest(ground, "meta-data/tags/instance", MINE, **token).body == b"team"
    assert latest(ground, "meta-data/tags/instance/team", MINE, **token).body == b"vision"
    assert latest(ground, "meta-data/iam", MINE, **token).status == 404
    assert latest(ground, "user-data", MINE, **token).body == machine.get("user-data").body
    assert ground.view(machine.boot_id).state == "fetched"


def test_a_session_is_for_one_machine_and_a_time(ground: Booting, database: Database) -> None:
    """Without a token, with another machine's, with a forged or old one: 401, and never a byte; a proxy is not a machine."""
    ground.begin(0, facts=Facts("n1", address=MINE))
    ground.begin(1, facts=Facts("n2", address=THEIRS))
    clock = database.virtual_clock()
    try:
        mine, theirs = session_of(ground, MINE), session_of(ground, THEIRS)
        until, _, mark = mine["X_aws_ec2_metadata_token"].partition(".")
        later = {"X_aws_ec2_metadata_token": f"{int(until) + 999}.{mark}"}
        for headers in ({}, theirs, later, {"X_aws_ec2_metadata_token": "x"}):
            assert latest(ground, "user-data", MINE, **headers).status == 401
        assert latest(ground, "user-data", MINE, **mine, X_Forwarded_For=MINE).status == 404
        assert latest(ground, "user-data", MINE, **mine).status == 200
        clock.advance(61)
        assert latest(ground, "user-data", MINE, **mine).status == 401
    finally:
        clock.stop()
    for ttl in ("0", "21601", "x", ""):
        assert latest(ground, "api/token", MINE, "PUT", X_aws_ec2_metadata_token_ttl_seconds=ttl).status == 422


def test_an_address_that_two_machines_have_is_nobodys(ground: Booting) -> None:
    """Two open boots at one address are answered like none; once one has ended, the other is known again."""
    ground.begin(0, facts=Facts("n1", address=MINE))
    assert session_of(ground, MINE)
    ground.begin(1, facts=Facts("n2", address=MINE))
    assert latest(ground, "api/token", MINE, "PUT", X_aws_ec2_metadata_token_ttl_seconds="60").status == 404
    ground.begin(1, facts=Facts("n2", address=THEIRS))
    assert session_of(ground, MINE)


def test_without_configured_networks_no_address_is_believed(database: Database, tmp_path: Path) -> None:
    """By default the metadata address does not exist, for a machine whose address is known too."""
    with booting(database, tmp_path) as ground:
        ground.begin(0, facts=Facts("n1", address=MINE))
        assert latest(ground, "api/token", MINE, "PUT", X_aws_ec2_metadata_token_ttl_seconds="60").status == 404
