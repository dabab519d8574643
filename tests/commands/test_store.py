"""`toolwire store`: what is in it, its version, and copies of it from one engine to the other."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.commands.desk import Desk
from tests.store.examples import ANN, items, record
from tests.store.test_sqlite_file import old_gateway, write_first_version
from tests.support.postgres import database
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import Effects, KeptRow, Member

LARGE = 300
"""Responses that do not fit in one batch."""


def fill(path: Path) -> None:
    """A store with a chain, a run, a value, and a member that is alive."""

    async def keep() -> None:
        store = SqliteStore(f"sqlite:{path}", 0, 0, lease=3600.0)
        await store.join(Member("worker-1", "here", "/run/worker-1.sock"))
        await store.take_lease("sweep", "worker-1")
        for place in range(LARGE):
            previous = f"r{place - 1}" if place else ""
            await store.save(ANN, record(f"r{place}", previous), items(f"in{place}"), items(f"out{place}"))
        queued = record("run", status="queued")
        await store.queue(ANN, queued, items("a"), Effects(), plan=b"\x00plan", member="worker-1")
        await store.put_kept([KeptRow(ANN, "call", b"key", b"\xff value")])
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
    assert "version       2\n" in text
    assert f"responses     {LARGE + 1}\n" in text
    assert "worker-1 here /run/worker-1.sock\n" in text
    assert "sweep worker-1 epoch 1 step 0" in text
    found = json.loads(desk.good("store", "check", "--json", "-c", config))
    assert (found["version"], found["stats"]["runs"], found["stats"]["members"]) == (2, 1, 1)
    assert found["leases"][0]["name"] == "sweep"


def test_a_store_of_the_first_version_is_left_alone_until_it_is_migrated(desk: Desk):
    config = settings(desk, "one", url="sqlite:kept.db")
    write_first_version(desk.folder / "kept.db")
    before = desk.run("store", "check", "-c", config)
    assert before.returncode == 1
    assert "version       1; toolwire store migrate, or serve, brings it to 2" in before.stdout
    assert desk.good("store", "migrate", "-c", config) == f"{desk.folder / 'kept.db'}: version 1 is now version 2\n"
    assert desk.good("store", "migrate", "-c", config) == f"{desk.folder / 'kept.db'}: version 2\n"
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
        (lines[1], "line 1: this is no export"),
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
