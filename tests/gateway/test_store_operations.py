"""How often the store is asked: by turns that are not kept no more than they need for the calls of their history."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.gateway import chat_body, response_body, tool
from toolwire.config.settings import load
from toolwire.gateway.app import Gateway
from toolwire.memory.sql.members import Members
from toolwire.memory.sql.responses import Responses
from toolwire.memory.sql.runs import Runs
from toolwire.memory.sql.values import KeyValues
from toolwire.memory.sqlite import SqliteStore

FIND = [tool("find", q={"type": "string"})]
DUTIES = ("claim", "cancelled", "join", "beat", "leave", "member", "holder", "take_lease", "drop_lease", "advance")
"""What a process also asks when nobody asks it anything. Only turns of a conversation need one of them, a lease."""
COUNTED = [
    name
    for part in (Responses, Runs, Members, KeyValues)
    for name in vars(part)
    if not name.startswith("_") and name not in DUTIES
]


class Counting(SqliteStore):
    """A store that counts what is asked of it on behalf of requests."""

    def __init__(self, url: str) -> None:
        super().__init__(url, 3600, 1_000_000_000)
        self.counts: Counter[str] = Counter()
        for name in COUNTED:
            setattr(self, name, partial(self._counted, name, getattr(self, name)))

    async def _counted(self, name: str, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.counts[name] += 1
        return await work(*given, **named)


class Asked:
    """A gateway whose store counts."""

    def __init__(self, client: TestClient, store: Counting) -> None:
        self._client = client
        self._store = store

    def operations(self, path: str, body: dict[str, Any]) -> dict[str, int]:
        """What one request asks of the store."""
        self._store.counts.clear()
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return dict(self._store.counts)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    store = Counting(f"sqlite:{tmp_path / 'kept.db'}")
    with TestClient(Gateway(load(None, {}), store), base_url="http://127.0.0.1") as client:
        yield Asked(client, store)


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_is_not_kept_asks_nothing_of_the_store(asked, stream):
    message = {"model": "demo", "max_tokens": 100, "messages": [{"role": "user", "content": "Go."}], "stream": stream}
    for path, body in (
        ("/v1/chat/completions", chat_body("demo", stream=stream, tools=FIND)),
        ("/v1/responses", response_body("demo", stream=stream, store=False, tools=FIND)),
        ("/v1/messages", message),
    ):
        for _ in range(2):
            assert asked.operations(path, body) == {}


def test_what_belongs_to_the_calls_of_a_history_is_asked_for_in_one_question(asked):
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        for number in range(5)
    ]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "x"} for each in calls]
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": calls}]
    body = {"model": "demo", "messages": [*messages, *results]}
    for _ in range(2):
        assert asked.operations("/v1/chat/completions", body) == {"get_values": 1}


def test_a_turn_that_is_kept_is_one_write(asked):
    assert asked.operations("/v1/responses", response_body("demo")) == {"save": 1}


def test_a_background_run_is_a_few_operations_however_many_events_it_has(asked):
    counts = asked.operations("/v1/responses", response_body("demo", "word " * 2000, background=True, stream=True))
    assert (counts["queue"], counts["save"]) == (1, 1)
    assert set(counts) <= {"queue", "append", "save", "follow"}
