"""`toolwire store`: what is in it, its version, and copies of it from one engine to the other."""

import asyncio
import base64
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands.desk import Desk
from tests.store.examples import ANN, ids_of, items, record
from tests.store.test_sqlite_file import old_gateway, write_first_version
from tests.support.postgres import database
from toolwire.config.settings import Settings
from toolwire.config.stores import make_store
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.sqlite.schema import VERSION
from toolwire.memory.store import Effects, KeyValue, Member

LARGE = 300
"""Responses that do not fit in one batch."""


def fill(path: Path) -> None:
    """A store with a chain, a run, a value, and a member that is alive."""

    async def keep() -> None:
        store = SqliteStore(f"sqlite:{path}", 0, 0, lease=3600.0)
        await store.join(Member("worker-1", "here"))
        await store.take_lease("sweep", "worker-1")
        for place in range(LARGE):
            previous = f"r{place - 1}" if place else ""
            await store.save(ANN, record(f"r{place}", previous), items(f"in{place}"), items(f"out{place}"))
        queued = record("run", status="queued")
        await store.queue(ANN, queued, items("a"), Effects(), plan=b"\x00plan", member="worker-1")
        await store.put_values([KeyValue(ANN, "call", b"key", b"\xff value")])
        await store.close()

    asyncio.run(keep())


def settings(desk: Desk, name: str, **store: Any) -> str:
    """A settings file with this store."""
    path = desk.folder / f"{name}.toml"
    path.write_text("[store]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in store.items()))
    path.chmod(0o600)
    return str(path)


def test_a_store_is_described_for_people_and_for_programs(desk: Desk):
    config = settings(desk, "one", url="sqlite:kept.db")
    kept = desk.folder / "kept.db"
    assert "there is no" not in desk.good("store", "check", "-c", config)
    assert not kept.exists(), "looking makes nothing"
    fill(kept)
    text = desk.good("store", "check", "-c", config)
    assert "engine        sqlite\n" in text
    assert f"store         {kept}\n" in text
    assert f"version       {VERSION}\n" in text
    assert f"responses     {LARGE + 1}\n" in text
    assert "worker-1 here\n" in text
    assert "sweep worker-1 epoch 1" in text
    found = json.loads(desk.good("store", "check", "--json", "-c", config))
    assert (found["version"], found["stats"]["runs"], found["stats"]["members"]) == (VERSION, 1, 1)
    assert found["leases"][0]["name"] == "sweep"


def test_a_store_of_the_first_version_is_left_alone_until_it_is_migrated(desk: Desk):
    config = settings(desk, "one", url="sqlite:kept.db")
    write_first_version(desk.folder / "kept.db")
    before = desk.run("store", "check", "-c", config)
    assert before.returncode == 1
    assert f"version       1; toolwire store migrate, or serve, upgrades it to {VERSION}" in before.stdout
    assert (
        desk.good("store", "migrate", "-c", config)
        == f"{desk.folder / 'kept.db'}: version 1 is now version {VERSION}\n"
    )
    assert desk.good("store", "migrate", "-c", config) == f"{desk.folder / 'kept.db'}: version {VERSION}\n"
    assert "responses     4\n" in desk.good("store", "check", "-c", config)


def test_a_store_that_a_gateway_of_the_first_version_uses_is_not_migrated_by_a_copy(desk: Desk):
    config = settings(desk, "one", url="sqlite:kept.db")
    kept, copy = desk.folder / "kept.db", desk.folder / "copy.jsonl"
    write_first_version(kept)
    copy.write_text("the copy of yesterday")
    old = old_gateway(kept)
    assert old.stdout is not None
    assert old.stdout.readline() == "alone\n"
    refused = desk.run("store", "export", str(copy), "-c", config)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "a gateway of an older version uses this file; stop it, then run toolwire store migrate" in refused.stderr
    assert copy.read_text() == "the copy of yesterday"
    assert "version       1;" in desk.run("store", "check", "-c", config).stdout
    old.communicate()
    desk.good("store", "export", str(copy), "-c", config)
    assert len(copy.read_text().splitlines()) > 2


def test_a_copy_is_for_its_owner_alone_and_whole(desk: Desk):
    fill(desk.folder / "kept.db")
    one, two = settings(desk, "one", url="sqlite:kept.db"), settings(desk, "two", url="sqlite:two.db")
    copy = desk.folder / "copy.jsonl"
    copy.touch(0o644)
    desk.good("store", "export", str(copy), "-c", one)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    desk.good("store", "import", str(copy), "-c", two)
    piped = desk.good("store", "export", "-", "-c", two)
    assert piped == copy.read_text()
    again = desk.run("store", "import", "-", "-c", two, stdin=piped)
    assert again.stderr == f"toolwire: imported {len(piped.splitlines()) - 2} rows\n"
    assert desk.good("store", "export", "-", "-c", two) == piped


def test_a_copy_that_is_cut_or_none_is_one_clear_line(desk: Desk):
    fill(desk.folder / "kept.db")
    one, two = settings(desk, "one", url="sqlite:kept.db"), settings(desk, "two", url="sqlite:two.db")
    lines = desk.good("store", "export", "-", "-c", one).splitlines(keepends=True)
    cut = desk.run("store", "import", "-", "-c", two, stdin="".join(lines[:-1]))
    assert (cut.returncode, cut.stderr.count("\n")) == (2, 1)
    assert "the export has no end" in cut.stderr
    for text, fault in (
        ("".join([lines[0], *lines[2:]]), "rows were exported, and"),
        ("".join([lines[0], lines[1].replace('"holder"', '"nothing"')]), "line 2: Invalid value 'nothing'"),
        (lines[1], "line 1: this is not an export"),
        ("hello\n", "line 1: JSON is malformed"),
    ):
        done = desk.run("store", "import", "-", "-c", two, stdin=text)
        assert (done.returncode, fault in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


def test_what_cannot_be_copied_is_said(desk: Desk):
    memory = settings(desk, "memory", url="memory:")
    assert "ends with its process" in desk.run("store", "import", "-", "-c", memory).stderr
    assert "there is no store yet" in desk.run("store", "export", "-", "-c", memory).stderr


@pytest.mark.parametrize("command", [("check",), ("migrate",), ("export", "-")])
def test_a_database_that_cannot_be_reached_is_named_without_its_password(desk: Desk, command: tuple[str, ...]):
    config = settings(desk, "away", url="postgresql://ann:secret@127.0.0.1:1/kept")
    done = desk.run("store", *command, "-c", config)
    said = "toolwire: store.url: postgresql://127.0.0.1:1/kept cannot be used: Connect call failed ('127.0.0.1', 1)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def rows(text: str) -> list[Any]:
    """The lines of a copy in an order of their own. PostgreSQL keeps times to the microsecond."""
    read = sorted((json.loads(line) for line in text.splitlines()), key=lambda row: json.dumps({**row, "used": 0}))
    return [{**row, "used": pytest.approx(row.get("used", 0), abs=0.001)} for row in read]


def test_a_store_moves_to_postgres_and_back_with_all_that_is_in_it(desk: Desk, postgres: Any):
    fill(desk.folder / "kept.db")
    with database(postgres) as name:
        one = settings(desk, "one", url="sqlite:kept.db")
        fleet = settings(desk, "fleet", url_env="FLEET_STORE")
        back = settings(desk, "back", url="sqlite:back.db")
        url = {"FLEET_STORE": postgres.url(name)}
        first = desk.good("store", "export", "-", "-c", one)
        desk.good("store", "migrate", "-c", fleet, **url)
        desk.good("store", "import", "-", "-c", fleet, stdin=first, **url)
        found = json.loads(desk.good("store", "check", "--json", "-c", fleet, **url))
        assert (found["engine"], found["stats"]["responses"], found["stats"]["runs"]) == ("postgresql", LARGE + 1, 1)
        second = desk.good("store", "export", "-", "-c", fleet, **url)
    desk.good("store", "import", "-", "-c", back, stdin=second)
    assert rows(second) == rows(first)
    assert rows(desk.good("store", "export", "-", "-c", back)) == rows(first)


@pytest.fixture(params=["sqlite", "postgres"])
def two_stores(request: pytest.FixtureRequest, desk: Desk) -> Iterator[tuple[str, str]]:
    """The URLs of two empty stores of an engine."""
    if request.param == "sqlite":
        yield f"sqlite:{desk.folder}/one.db", f"sqlite:{desk.folder}/two.db"
        return
    server = request.getfixturevalue("postgres")
    with database(server) as one, database(server) as two:
        yield server.url(one), server.url(two)


def test_a_store_takes_its_own_export(desk: Desk, two_stores: tuple[str, str]):
    odd = "an id\0of a client"

    async def keep() -> None:
        store = make_store(Settings.from_dict({"store": {"url": two_stores[0]}}))
        await store.save(ANN, record("a"), items("a-in", odd), items("a-out"))
        await store.save(ANN, record("b", "a"), items("b-in"), items("b-out"))
        assert await store.delete(ANN, "a")
        await store.close()

    async def continued() -> list[str]:
        store = make_store(Settings.from_dict({"store": {"url": two_stores[1]}}))
        try:
            assert await store.load(ANN, "a") is None
            return ids_of(await store.load_chain(ANN, "b") or [])
        finally:
            await store.close()

    asyncio.run(keep())
    one, two = (settings(desk, name, url=url) for name, url in zip(("one", "two"), two_stores, strict=True))
    first = desk.good("store", "export", "-", "-c", one)
    desk.good("store", "import", "-", "-c", two, stdin=first)
    assert rows(desk.good("store", "export", "-", "-c", two)) == rows(first)
    assert asyncio.run(continued()) == ["a-in", odd, "a-out", "b-in", "b-out"]


def changed(line: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**line, **fields}


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


HOLDER: dict[str, Any] = {
    "table": "holder", "id": "resp_1", "owner": "ann", "kind": "response", "created": 1.0, "used": 2.0, "size": 10,
    "status": "completed", "previous": "", "conversation": "", "continuation": "",
    "fields": base64_of("{}"), "body": base64_of('{"id":"resp_1"}'),
}  # fmt: skip
ITEM: dict[str, Any] = {
    "table": "item", "holder": "resp_1", "owner": "ann", "made": True, "place": 0, "id": "i1", "item": base64_of("{}"),
}  # fmt: skip
EVENT: dict[str, Any] = {
    "table": "event", "holder": "resp_1", "owner": "ann", "first": 0, "count": 1, "frames": base64_of("data: {}\n\n"),
}  # fmt: skip
RUN: dict[str, Any] = {
    "table": "run", "id": "resp_1", "owner": "ann", "epoch": 1, "is_over": True, "is_started": False,
    "is_cancelled": False, "plan": "",
}  # fmt: skip
VALUE: dict[str, Any] = {"table": "kept", "owner": "ann", "kind": "k", "key": "YQ==", "value": "YQ==", "used": 1.0}


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (changed(HOLDER, id=""), "id"),
        (changed(HOLDER, kind="reply"), "kind"),
        (changed(HOLDER, created=-1.0), "created"),
        (changed(HOLDER, used=1e300), "used"),
        (changed(HOLDER, size=-5), "size"),
        (changed(HOLDER, size=2**70), "size"),
        (changed(HOLDER, status="odd"), "status"),
        (changed(HOLDER, body=base64_of("not JSON")), "body"),
        (changed(HOLDER, fields=base64_of("[1]")), "fields"),
        (changed(HOLDER, owner="a\0b"), "owner"),
        (changed(HOLDER, previous="\ud800"), "surrogate"),
        (changed(ITEM, place=-1), "place"),
        (changed(ITEM, place=2**63), "place"),
        (changed(ITEM, item=base64_of("{")), "item"),
        (changed(EVENT, first=-1), "first"),
        (changed(EVENT, count=7), "count"),
        (changed(RUN, epoch=2**64), "epoch"),
        (changed(RUN, is_over=3), "is_over"),
        (changed(VALUE, used=-1.0), "used"),
        (changed(VALUE, key=5), "key"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["table"],
)
def test_a_value_that_cannot_be_is_one_line_that_names_it_and_nothing_of_its_batch_is_kept(
    desk: Desk, row: dict[str, Any], name: str
):
    config = settings(desk, "into", url="sqlite:into.db")
    good = HOLDER if row["table"] != "holder" else changed(HOLDER, id="resp_0")
    lines = [{"table": "export", "format": 1, "version": "0"}, good, row, {"table": "end", "rows": 2}]
    path = desk.folder / "export.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = desk.run("store", "import", str(path), "-c", config)
    said = done.stderr
    assert done.returncode == 2
    assert said.startswith("toolwire: line 3: ")
    assert name in said
    assert len(said.splitlines()) == 1
    assert "version       none" in desk.good("store", "check", "-c", config)


def test_rows_as_they_are_exported_are_taken(desk: Desk):
    config = settings(desk, "into", url="sqlite:into.db")
    rows = [HOLDER, changed(HOLDER, id="conv_1", kind="conversation", fields="", status=""), ITEM, EVENT, RUN, VALUE]
    lines = [{"table": "export", "format": 1, "version": "0"}, *rows, {"table": "end", "rows": len(rows)}]
    path = desk.folder / "export.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    desk.good("store", "import", str(path), "-c", config)
    assert "responses     1\n" in desk.good("store", "check", "-c", config)
