"""Turns that the console keeps in the store: across restarts, in every process, for whom they are."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.test_console_recorder import Turns
from tests.support.console import ConsoleClient
from tests.support.fleet import Fleet, until
from tests.support.gateway import Gateway, chat_body
from toolwire.config.settings import Console, Settings, SettingsError
from toolwire.gateway.console import history as module
from toolwire.gateway.console.history import MAX_WAITING, TurnHistory
from toolwire.gateway.console.recorder import TurnRecorder
from toolwire.gateway.log import Log
from toolwire.gateway.process import Process
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import KeptTurn, StoreFailed, TurnBounds

STORE = '[store]\nurl = "sqlite:kept.db"\n'
KEEP = f'[console]\nkeep = "7d"\n{STORE}'
KEYS = "\n".join(f'[[keys]]\nname = "{name}"\nkey = "{name}-key-123456"\nconsole = true' for name in ("ann", "bob"))
SECRET = "sk-proj-abcdefghijklmnop1234"


def ask(gateway: Gateway, words: str, key: str = "") -> None:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = chat_body("demo", messages=[{"role": "user", "content": words}])
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=90, trust_env=False)
    assert answer.status_code == 200


def stored(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "kept.db")) as database:
        return database.execute("SELECT count(*) FROM turns").fetchone()[0]


def test_turns_survive_a_restart_with_everything_that_can_be_done_with_them(tmp_path: Path):
    first = Gateway(tmp_path, KEEP)
    ask(first, f"Remember the teapot {SECRET}.")
    first.stop()
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("kept.db*"))
    second = Gateway(tmp_path, KEEP)
    try:
        with ConsoleClient(second) as console:
            row = console.wait_for(model="demo")
            id = row["id"]
            assert row["kept"] == "whole"
            whole = console.get(f"turns/{id}")["whole"]
            assert "Remember the teapot [removed]." in whole["request"]["body"]
            assert console.get("search?q=teapot")["ids"] == [id]
            assert [each["title"] for each in console.get("conversations")] == ["Remember the teapot [removed]."]
            assert console.http.get(f"/console/api/turns/{id}/recording").status_code == 200
            assert console.get(f"turns/{id}/case")["differences"] == []
            assert console.post(f"turns/{id}/replay", model="demo")["status"] == 200
            assert console.get("numbers")["start"]["turns"] == 1, "the replay only"
    finally:
        second.stop()


def test_every_gateway_of_a_store_shows_the_turns_of_all(tmp_path: Path):
    one = Gateway(tmp_path, KEEP)
    other = Gateway(tmp_path, KEEP)
    try:
        ask(one, "From the first.")
        ask(other, "From the second.")
        for gateway in (one, other):
            with ConsoleClient(gateway) as console:
                rows = until(lambda console=console: len(rows := console.rows()) == 2 and rows)
                assert all(console.get(f"turns/{row['id']}")["whole"] is not None for row in rows)
    finally:
        one.stop()
        other.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="another platform: workers are looked at in /proc")
def test_turns_of_a_worker_that_was_killed_are_still_shown(tmp_path: Path):
    fleet = Fleet(tmp_path, KEEP)
    try:
        for number in range(20):
            ask(fleet, f"number {number}")
        until(lambda: stored(tmp_path) == 20)
        for pid in fleet.pids:
            os.kill(pid, signal.SIGKILL)
        with ConsoleClient(fleet) as console:

            def listed() -> bool:
                try:
                    return len({row["id"] for row in console.rows()}) == 20
                except (httpx.HTTPError, AssertionError):
                    return False

            until(listed)
    finally:
        fleet.stop()


def test_a_key_sees_its_own_stored_turns_only(tmp_path: Path):
    first = Gateway(tmp_path, f"{KEYS}\n{KEEP}")
    ask(first, "A secret of Ann's.", "ann-key-123456")
    ask(first, "A secret of Bob's.", "bob-key-123456")
    first.stop()
    second = Gateway(tmp_path, f"{KEYS}\n{KEEP}")
    try:
        with ConsoleClient(second) as everything, ConsoleClient(second, "ann-key-123456") as ann:
            rows = until(lambda: len(rows := everything.rows()) == 2 and rows)
            [own] = [row for row in rows if row["key"] == "ann"]
            [foreign] = [row for row in rows if row["key"] == "bob"]
            assert [row["id"] for row in ann.rows()] == [own["id"]]
            assert "Ann's" in ann.get(f"turns/{own['id']}")["whole"]["request"]["body"]
            for path in ("", "/recording", "/case"):
                assert ann.http.get(f"/console/api/turns/{foreign['id']}{path}").status_code == 404
            assert ann.get("search?q=secret")["ids"] == [own["id"]]
    finally:
        second.stop()


def test_nothing_is_stored_unless_the_settings_say_so(tmp_path: Path):
    gateway = Gateway(tmp_path, f'[console]\nkeep = "everything"\n{STORE}')
    ask(gateway, "Hello.")
    gateway.stop()
    assert not (tmp_path / "kept.db").exists() or stored(tmp_path) == 0


# Without a gateway


Use = Callable[[Turns, TurnHistory, SqliteStore], Coroutine[Any, Any, None]]


def keeping(use: Use, max_size: str = "64MB") -> list[int]:
    """Use a recorder with a history; returns how many turns were dropped, each time some were."""
    dropped: list[int] = []

    async def main() -> None:
        log = Log("info", asyncio.get_running_loop())
        store = SqliteStore("memory:", 0, 0)
        history = TurnHistory(store, TurnBounds(), log, dropped.append)
        settings = Settings(console=Console(keep="7d", max_size=max_size))
        try:
            await asyncio.wait_for(
                use(Turns(TurnRecorder(settings, "t" * 40, Process("v"), log, history)), history, store), 60
            )
        finally:
            await store.close()

    asyncio.run(main())
    return dropped


def test_turns_are_written_in_batches_packed_and_without_secrets():
    async def use(turns: Turns, history: TurnHistory, store: SqliteStore) -> None:
        for _ in range(100):
            turns.run(request=f'{{"messages":"{SECRET} {"lorem " * 500}"}}'.encode())
        await history.write(turns.recorder)
        found = await store.recent_turns(TurnBounds(), 999)
        assert len(found) == 100
        content = await store.turn_content("", found[0][0].id)
        assert content is not None
        assert len(content) < 1000
        assert SECRET.encode() not in content

    assert keeping(use) == []


def test_what_cannot_be_written_is_counted_and_stays_in_memory(monkeypatch: pytest.MonkeyPatch):
    async def refuse(*_: object) -> None:
        raise StoreFailed("full", "no room")

    monkeypatch.setattr(SqliteStore, "put_turns", refuse)

    async def use(turns: Turns, history: TurnHistory, _: SqliteStore) -> None:
        rows = [turns.run() for _ in range(10)]
        with pytest.raises(StoreFailed):
            await history.write(turns.recorder)
        assert await turns.recorder.find(rows[0].id) is not None

    assert keeping(use) == [10]


def test_turns_that_find_no_room_while_the_store_is_slow_are_counted():
    async def use(turns: Turns, history: TurnHistory, store: SqliteStore) -> None:
        for _ in range(MAX_WAITING + 100):
            turns.run()
        await history.write(turns.recorder)
        assert (await store.stats()).turns == MAX_WAITING

    assert sum(keeping(use)) == 100


def test_a_turn_that_the_ring_drops_before_it_is_written_is_counted():
    async def use(turns: Turns, history: TurnHistory, store: SqliteStore) -> None:
        for _ in range(100):
            turns.run(request=b"x" * 10_000)
        await history.write(turns.recorder)
        assert 0 < (await store.stats()).turns < 20

    assert sum(keeping(use, max_size="100kB")) > 80


def test_content_from_the_store_is_held_for_a_while_and_takes_no_room_in_the_ring(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_LOADED_SIZE", 1000)

    async def use(turns: Turns, history: TurnHistory, store: SqliteStore) -> None:
        row = turns.run(request=b'{"messages":[]}')
        await history.write(turns.recorder)
        [(kept, _)] = await store.recent_turns(TurnBounds(), 9)
        content = await store.turn_content("", row.id)
        assert content
        facts = [msgspec.msgpack.encode(msgspec.structs.replace(row, id=f"other{number}")) for number in range(50)]
        await store.put_turns([KeptTurn(f"other{n}", kept.owner, each, content) for n, each in enumerate(facts)])
        await history.list_new(turns.recorder.ring)
        await history.list_new(turns.recorder.ring)
        ring = turns.recorder.ring
        assert len(ring) == 51
        before = ring.size
        for turn in ring:
            found = await turns.recorder.find(turn.row.id)
            assert found is turn
            assert turn.packed
        assert ring.size == before
        assert sum(len(turn.packed) for turn in ring if turn.is_stored) <= 1000

    assert keeping(use) == []


def test_a_listed_turn_that_has_expired_has_its_metadata_only():
    def empty(database: sqlite3.Connection) -> int:
        return database.execute("DELETE FROM turns").rowcount

    async def use(turns: Turns, history: TurnHistory, store: SqliteStore) -> None:
        row = turns.run()
        facts = msgspec.msgpack.encode(msgspec.structs.replace(row, id="other"))
        await store.put_turns([KeptTurn("other", "", facts, b"content")])
        await history.list_new(turns.recorder.ring)
        await store.in_writer(empty)
        found = await turns.recorder.find("other")
        assert found is not None
        assert (found.row.kept, found.has_content) == ("metadata", False)

    keeping(use)


@pytest.mark.parametrize(
    ("console", "store", "said"),
    [
        (
            {"keep": "7 days"},
            {},
            "console.keep: '7 days' is not one of auto, everything, metadata, or a time such as",
        ),
        ({"keep": "0d"}, {}, "console.keep: '0d' is not one of"),
        (
            {"keep": "7d"},
            {"url": "memory:"},
            "console.keep: turns cannot be kept for a time in a store that is in memory",
        ),
        ({"max_history": "many"}, {}, "console.max_history: 'many' is not a size"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(console: dict[str, Any], store: dict[str, Any], said: str):
    with pytest.raises(SettingsError, match=said.replace("(", r"\(")):
        Settings.from_dict({"console": console, "store": store})
