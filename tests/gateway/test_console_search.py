"""Search in the console: in the texts of turns, in the viewer's own turns, and never by a secret."""

# pyright: reportUnknownVariableType=false

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.test_console_recorder import KEYS, Turns, watched
from tests.support.console import ConsoleClient
from tests.support.fleet import Fleet
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, tool
from tests.support.upstream import Reply, Upstream
from toolwire.config.settings import Console, Settings
from toolwire.gateway.console import handlers
from toolwire.gateway.console.access import Viewer
from toolwire.gateway.console.handlers import Handlers
from toolwire.gateway.console.search import MAX_FOUND, Findings, merge_findings

SECRET = "sk-proj-abcdefghijklmnop1234"


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    server = Gateway(tmp_path_factory.mktemp("search"), backend(upstream.url))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def console(gateway: Gateway) -> Iterator[ConsoleClient]:
    with ConsoleClient(gateway) as client:
        yield client


@pytest.fixture(scope="module")
def asked(gateway: Gateway, upstream: Upstream, console: ConsoleClient) -> str:
    """The id of a turn with a text of its own in each part."""
    upstream.replies["found"] = Reply(
        [
            stream(
                created(),
                *map(text, ("It is ha", "zy in Ba", "sel.")),
                call("c7", "fetch_map", '{"pla', 'ce":"Chur"}'),
                completed(),
            )
        ]
    )
    history = [
        {"role": "system", "content": "You know Valais."},
        {"role": "user", "content": 'How is "Zürich"?'},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c6", "type": "function", "function": {"name": "look_up", "arguments": '{"lake":"Walensee"}'}}]},
        {"role": "tool", "tool_call_id": "c6", "content": "Snow on Säntis\nand Rigi"},
    ]  # fmt: skip
    body = chat_body("up/found", stream=True, tools=[tool("fetch_map")], messages=history, user=SECRET)
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=90, trust_env=False)
    ask(gateway, "up/other")
    console.wait_for(model="up/other")
    return console.wait_for(model="up/found")["id"]


def ask(gateway: Gateway, model: str) -> None:
    httpx.post(f"{gateway.url}/v1/chat/completions", json=chat_body(model), timeout=90, trust_env=False)


@pytest.mark.parametrize(
    "words",
    [
        "hazy in basel",  # spread over frames
        'HOW IS "ZÜRICH"',  # escaped in JSON, in another case
        "valais",
        "walensee",
        "säntis\nand",
        '{"place":"chur"}',
        "fetch_map",
        "c7",
    ],
)
def test_words_are_found_in_what_was_asked_and_answered(console: ConsoleClient, asked: str, words: str):
    answer = console.http.get("/console/api/search", params={"q": words}).json()
    assert answer == {"ids": [asked], "more": False}


@pytest.mark.parametrize("words", ["tool_calls", SECRET, SECRET[3:20]])
def test_names_of_fields_and_secrets_find_nothing(console: ConsoleClient, asked: str, words: str):
    assert console.http.get("/console/api/search", params={"q": words}).json()["ids"] == []


def test_the_error_of_a_turn_is_found(gateway: Gateway, upstream: Upstream, console: ConsoleClient):
    upstream.replies["refused"] = Reply(status=400, steps=[b'{"error":{"message":"The moon is \\u00fcber full."}}'])
    ask(gateway, "up/refused")
    row = console.wait_for(model="up/refused")
    assert console.get("search?q=moon is über")["ids"] == [row["id"]]


@pytest.mark.parametrize(
    ("query", "field"), [("", "q"), ("q=", "q"), (f"q={'x' * 201}", "q"), ("q=a&before=soon", "before")]
)
def test_a_search_that_means_nothing_names_its_field(console: ConsoleClient, query: str, field: str):
    answer = console.http.get(f"/console/api/search?{query}")
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_a_key_finds_its_own_turns_in_all_workers(tmp_path: Path):
    names = "\n".join(
        f'[[keys]]\nname = "{name}"\nkey = "{name}-key-123456"\nconsole = true' for name in ("ann", "bob")
    )
    server = Fleet(tmp_path, f'console.keep = "everything"\n{names}')
    try:
        for name in ("ann", "bob") * 4:
            key = {"authorization": f"Bearer {name}-key-123456", "connection": "close"}
            url = f"{server.url}/v1/chat/completions"
            httpx.post(url, json=chat_body("demo"), headers=key, timeout=90, trust_env=False)
        for name in ("ann", "bob"):
            with ConsoleClient(server, f"{name}-key-123456") as viewer:
                rows = viewer.rows()
                assert {row["key"] for row in rows} == {name}
                assert sorted(viewer.get("search?q=go.")["ids"]) == sorted(row["id"] for row in rows)
        with ConsoleClient(server) as viewer:
            assert len(viewer.get("search?q=go.")["ids"]) == 8
    finally:
        server.stop()


def test_a_search_that_takes_long_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch):
    async def use(turns: Turns) -> None:
        ids = [turns.run(request=b'{"messages":[{"role":"user","content":"needle"}]}').id for _ in range(4)]
        search = Handlers(Settings(), turns.recorder, None, None).search  # type: ignore[arg-type]
        monkeypatch.setattr(handlers, "SEARCH_SECONDS", -1.0)
        found, before = [], float(2**53)
        while before:
            answer: Any = await search(Viewer(sees_all=True), words="NEEDLE", before=before)
            found += [id for _, id in answer["found"]]
            before = answer["reached"]
            assert len(answer["found"]) == 1
        assert found == ids[::-1]

    watched(use, Settings(console=Console(keep="everything"), keys=KEYS))


def test_workers_are_merged_up_to_where_each_has_searched():
    one, other = Findings([(9.0, "a"), (5.0, "b")], 5.0), Findings([(8.0, "c"), (2.0, "d")], 0.0)
    assert merge_findings([one, other]) == Findings([(9.0, "a"), (8.0, "c"), (5.0, "b")], 5.0)
    many = Findings([(float(at), str(at)) for at in range(MAX_FOUND + 5, 0, -1)])
    assert merge_findings([many]) == Findings(many.found[:MAX_FOUND], 6.0)


# What was asked, for the list


def test_the_list_shows_what_was_asked_of_the_viewers_own_turns():
    async def use(turns: Turns) -> None:
        body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'
        ann, bob = (turns.run(key, body % key.encode()).id for key in ("ann", "bob"))
        asked = Handlers(Settings(), turns.recorder, None, None).asked  # type: ignore[arg-type]
        shown = {"text": "ann", "is_new": True, "results": 0, "side": ""}
        assert await asked(Viewer("ann"), ids=[ann, bob, "gone"]) == {ann: shown}
        assert set(await asked(Viewer(sees_all=True), ids=[ann, bob])) == {ann, bob}

    watched(use, Settings(console=Console(keep="everything"), keys=KEYS))


def test_what_takes_long_is_left_out_of_the_list_and_can_be_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    async def use(turns: Turns) -> None:
        ids = [turns.run().id for _ in range(3)]
        monkeypatch.setattr(handlers, "ASKED_SECONDS", -1.0)
        asked = Handlers(Settings(), turns.recorder, None, None).asked  # type: ignore[arg-type]
        assert [*await asked(Viewer(sees_all=True), ids=ids)] == ids[:1]

    watched(use, Settings(console=Console(keep="everything"), keys=KEYS))


def test_the_list_asks_for_a_bounded_number_of_turns(console: ConsoleClient, asked: str):
    assert console.get(f"asked?ids={asked},gone")[asked]["text"] == 'How is "Zürich"?'
    answer = console.http.get(f"/console/api/asked?ids={','.join('x' * 101)}")
    assert (answer.status_code, "ids" in answer.json()["error"]["message"]) == (400, True)


def test_a_search_finds_only_what_changed_since_another_one():
    async def use(turns: Turns) -> None:
        body = b'{"messages":[{"role":"user","content":"needle"}]}'
        first = turns.run(request=body)
        search = Handlers(Settings(), turns.recorder, None, None).search  # type: ignore[arg-type]
        since = first.seq
        second = turns.run(request=body)
        answer: Any = await search(Viewer(sees_all=True), words="needle", before=float(2**53), since=since)
        assert [id for _, id in answer["found"]] == [second.id]

    watched(use, Settings(console=Console(keep="everything"), keys=KEYS))


def test_the_results_of_a_turn_are_for_its_key_alone():
    async def use(turns: Turns) -> None:
        messages = b'[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"c1","content":"found"}]'
        id = turns.run("ann", b'{"model":"m","messages":%b}' % messages).id
        results = Handlers(Settings(), turns.recorder, None, None).results  # type: ignore[arg-type]
        assert await results(Viewer("bob"), id=id) is None
        assert [*(await results(Viewer("ann"), id=id) or {})] == ["c1"]

    watched(use, Settings(console=Console(keep="everything"), keys=KEYS))
