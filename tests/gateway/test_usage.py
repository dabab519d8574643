"""What turns used, from the gateway to the reports: each turn once, with the numbers that its client got."""

import asyncio
import csv
import io
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.commands.desk import Desk, desk  # noqa: F401 - a fixture
from tests.gateway.test_embedding import served
from tests.gateway.test_issued_keys import ADMIN, Client, close_clients  # noqa: F401 - a fixture
from tests.support.fleet import until
from tests.support.frames import completed, created, stream, text
from tests.support.gateway import Gate, chat_body, response_body
from tests.support.upstream import Reply, Upstream
from toolwire import Settings, create_app
from toolwire.core.notes import TurnStats
from toolwire.gateway import usage
from toolwire.gateway.keys import Keys
from toolwire.gateway.usage import UsageRecorder
from toolwire.memory.sqlite import SqliteStore
from toolwire.memory.store import StoreFailed, UsageRow
from toolwire.turns.observers import TurnOutcome, TurnReport

USAGE = "/admin/v1/usage"
TOLD = {
    "input_tokens": 100,
    "output_tokens": 20,
    "total_tokens": 120,
    "input_tokens_details": {"cached_tokens": 60},
    "output_tokens_details": {"reasoning_tokens": 5},
}


def make_settings(upstream: Upstream, place: str, **more: Any) -> Settings:
    backend = {"name": "up", "kind": "responses", "base_url": upstream.url, "retries": 0}
    table = {
        "access": {"issued_keys": True, "admin_key_env": "ADMIN"},
        "usage": {"enabled": True},
        "store": {"url": place},
        "debug": {"level": "error"},
        "console": {"enabled": False},
        "backends": [backend],
        **more,
    }
    return Settings.from_dict(table, {"ADMIN": ADMIN})


@pytest.fixture(scope="module")
def admin(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    upstream.replies["used"] = Reply([stream(created(), text("Hi."), completed(usage=TOLD))])
    upstream.replies["broken"] = Reply([b"{}"], status=500, content_type="application/json")
    with served(create_app(make_settings(upstream, f"sqlite:{tmp_path_factory.mktemp('usage') / 'kept.db'}"))) as url:
        yield Client(url, ADMIN)


def issue(admin: Client, name: str, **fields: Any) -> Client:
    client = Client(admin.url, admin.create(name, **fields))
    until(client.is_known)
    return client


def report(admin: Client, by: str, **query: str) -> list[dict[str, Any]]:
    answer = admin.http.get(USAGE, params={"by": by, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def turns_of(admin: Client, name: str, by: str = "key", least: int = 1) -> list[dict[str, Any]]:
    """The rows of a key, once they have this many turns."""

    def find() -> list[dict[str, Any]]:
        found = [row for row in report(admin, f"key,{by}" if by != "key" else by) if row["key"] == name]
        return found if sum(row["turns"] for row in found) >= least else []

    return until(find)


def test_every_turn_of_every_dialect_is_counted_with_its_tokens(admin: Client):
    client = issue(admin, "ann", team="blue")
    paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
    for path in paths:
        for is_stream in (False, True):
            body = response_body("up/used") if path == paths[2] else {**chat_body("up/used"), "max_tokens": 9}
            assert client.http.post(path, json={**body, "stream": is_stream}).status_code == 200
    rows = turns_of(admin, "ann", "dialect,team,model,backend,outcome", 6)
    assert {row["dialect"] for row in rows} == {"chat", "messages", "responses"}
    for row in rows:
        assert (row["team"], row["model"], row["backend"], row["outcome"]) == ("blue", "up/used", "up", "completed")
        assert (row["turns"], row["input"], row["output"]) == (2, 200, 40)
        assert (row["cached"], row["reasoning"], row["calls"]) == (120, 10, 0)


def test_failed_cancelled_and_background_turns_count_once_and_refused_requests_do_not(
    admin: Client, upstream: Upstream
):
    client = issue(admin, "ben", models=["used", "broken", "held"])
    gate = Gate(stream(created(), text("a")), after=(stream(text("b"), completed()),))
    upstream.replies["held"] = Reply(gate)
    assert client.ask("up/broken").status_code >= 500
    assert client.ask("up/other").status_code == 403
    assert client.ask("").status_code >= 400
    made = client.http.post("/v1/responses", json=response_body("up/used", background=True)).json()
    until(lambda: client.http.get(f"/v1/responses/{made['id']}").json()["status"] == "completed")
    with client.http.stream("POST", "/v1/chat/completions", json=chat_body("up/held", stream=True)) as answer:
        next(answer.iter_lines())
    rows = {row["outcome"]: row["turns"] for row in turns_of(admin, "ben", "outcome", 3)}
    assert rows == {"failed": 1, "completed": 1, "cancelled": 1}
    gate.open()


def test_a_model_name_with_any_character_is_stored(admin: Client, upstream: Upstream):
    name = "a\x00b\u202e" + "x" * 400
    upstream.replies[name] = Reply([stream(created(), text("Hi."), completed())])
    client = issue(admin, "odd")
    assert client.ask(f"up/{name}").status_code == 200
    [row] = turns_of(admin, "odd", "model")
    assert row["model"] == ("up/a?b?" + "x" * 400)[:256]


def test_numbers_that_no_server_means_do_not_spoil_the_sums(admin: Client, upstream: Upstream):
    upstream.replies["absurd"] = Reply(
        [stream(created(), text("Hi."), completed(usage={**TOLD, "input_tokens": 9 * 10**18, "output_tokens": -7}))]
    )
    client = issue(admin, "absurd")
    assert client.ask("up/absurd").status_code == 200
    [row] = turns_of(admin, "absurd")
    assert (row["input"], row["output"]) == (10**12, 0)


def test_a_report_is_about_a_time(admin: Client):
    client = issue(admin, "timely")
    client.ask("up/used")
    turns_of(admin, "timely")
    assert report(admin, "key", since="2001-01-31", until="2001-02-01") == []
    assert report(admin, "", since=str(int(time.time()) + 1000), until=str(int(time.time()) + 2000)) == []
    [day, *_] = [row for row in report(admin, "day,hour,key") if row["key"] == "timely"]
    assert day["hour"].startswith(day["day"])


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"by": "secret"}, "by"),
        ({"by": "key,key"}, "by"),
        ({"by": "key; DROP TABLE usage"}, "by"),
        ({"since": "soon"}, "since"),
        ({"since": "9" * 99}, "since"),
        ({"until": "2001-99-99"}, "until"),
    ],
)
def test_an_invalid_question_is_named(admin: Client, query: dict[str, str], param: str):
    answer = admin.http.get(USAGE, params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_usage_is_for_the_admin_only(admin: Client):
    client = issue(admin, "curious")
    assert client.http.get(USAGE).status_code == 401
    assert httpx.get(admin.url + USAGE, trust_env=False).status_code == 401


def test_what_was_not_written_yet_is_written_at_the_end(upstream: Upstream, tmp_path: Path, desk: Desk):  # noqa: F811
    upstream.replies["last"] = Reply([stream(created(), text("Hi."), completed(usage=TOLD))])
    settings = make_settings(upstream, f"sqlite:{tmp_path / 'kept.db'}", access={})
    with served(create_app(settings)) as url:
        client = Client(url)
        for _ in range(3):
            assert client.ask("up/last").status_code == 200
    desk.configure(f'[usage]\nenabled = true\n[store]\nurl = "sqlite:{tmp_path / "kept.db"}"\n')
    [row] = json.loads(desk.good("usage", "--by", "model", "--format", "json"))["usage"]
    assert (row["model"], row["turns"], row["input"], row["output"]) == ("up/last", 3, 300, 60)
    table = [line.split() for line in desk.good("usage", "--by", "model").splitlines()]
    [of_csv] = csv.DictReader(io.StringIO(desk.good("usage", "--by", "model", "--format", "csv")))
    assert dict(zip(*table, strict=True)) == of_csv == {name: str(value) for name, value in row.items()}
    assert desk.good("usage", "--since", "30m", "--until", "2001-01-31", "--format", "csv").count("\n") == 1
    wrong = desk.run("usage", "--by", "secret")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "'secret' is repeated or none of key, team" in wrong.stderr


def test_without_the_setting_nothing_is_written(upstream: Upstream, tmp_path: Path, desk: Desk):  # noqa: F811
    settings = make_settings(upstream, f"sqlite:{tmp_path / 'kept.db'}", usage={}, access={})
    upstream.replies["unseen"] = Reply([stream(created(), text("Hi."), completed(usage=TOLD))])
    with served(create_app(settings)) as url:
        assert Client(url).ask("up/unseen", "/v1/responses").status_code == 200
    desk.configure(f'[store]\nurl = "sqlite:{tmp_path / "kept.db"}"\n')
    done = desk.run("usage", "--format", "json")
    assert json.loads(done.stdout) == {"usage": []}
    assert "enabled = true in [usage]" in done.stderr


class FailingStore(SqliteStore):
    """A store in memory that fails a number of times: before it writes, or after, so that the answer is lost."""

    def __init__(self, failures: list[bool]) -> None:
        super().__init__("memory:", 0.0, 0)
        self.failures = failures
        self.works = asyncio.Event()

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:  # type: ignore[override]
        is_lost_after = self.failures.pop() if self.failures else None
        if is_lost_after is not False:
            await super().put_usage(rows)
        if not self.failures:
            self.works.set()
        if is_lost_after is not None:
            raise StoreFailed("unreachable", "on demand")


@pytest.mark.parametrize("failures", [[False], [True], [False, True, False]])
def test_a_failing_store_loses_no_turn_and_counts_none_twice(failures: list[bool], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage, "RETRY_DELAY", 0.0)
    monkeypatch.setattr(usage, "DELAY", 0.0)

    async def play() -> None:
        store, dropped = FailingStore(list(failures)), list[int]()
        recorder = UsageRecorder(store, Keys(Settings()), dropped.append, lambda: 7200.0)
        for number in range(usage.MAX_BATCH + 3):
            report = TurnReport(f"t{number}", "req_1", "chat", backend="up")
            recorder.end(report, TurnOutcome(TurnStats(), 0.5, "", None))
        await store.works.wait()
        await recorder.close()
        [group] = await store.sum_usage(["hour"], 0.0, 1e9)
        assert (group.values, group.turns, group.duration) == ((2,), usage.MAX_BATCH + 3, 500 * (usage.MAX_BATCH + 3))
        assert dropped == []
        await store.close()

    asyncio.run(play())


def test_turns_for_which_there_is_no_room_are_counted_as_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage, "MAX_WAITING", 2)

    async def play() -> None:
        store, dropped = SqliteStore("memory:", 0.0, 0), list[int]()
        recorder = UsageRecorder(store, Keys(Settings()), dropped.append)
        for number in range(5):
            report = TurnReport(f"t{number}", "req_1", "chat", backend="up")
            recorder.end(report, TurnOutcome(TurnStats(), 0.5, "", None))
        await recorder.close()
        assert sum(dropped) == 3
        assert [group.turns for group in await store.sum_usage([], 0.0, 1e10)] == [2]
        await store.close()

    asyncio.run(play())
