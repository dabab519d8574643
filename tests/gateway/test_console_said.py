"""What a turn says as a conversation: the user's words, the steps since, and what a repair would make of its calls."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.test_console_conversations import REMINDER, kept, model, result, texts, user
from tests.support.console import ConsoleClient
from tests.support.frames import call, completed, created, stream
from tests.support.gateway import Gateway, backend, chat_body, tool
from tests.support.upstream import Reply, Upstream
from toolwire.core.request import Message, Request, TextPart
from toolwire.gateway.console.content import unpack
from toolwire.gateway.console.prompts import decode_request
from toolwire.gateway.console.said import MAX_ENTRIES, MAX_TEXT_LENGTH, MAX_TEXTS_LENGTH, view_request, view_results

WEATHER = [tool("get_weather", city={"type": "string"}, days={"type": "integer"})]
CALLED = model("Let me look.", ("c1", '{"at":"here"}'))


def request(*messages: dict[str, Any], dialect: str = "chat") -> Request | None:
    body = {"messages": messages, "max_tokens": 9}
    return decode_request(dialect, unpack(kept(body, None, dialect).packed).request)


def said(*messages: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(each.by, each.text, each.is_new) for each in view_request(request(*messages)).entries]


def test_a_turn_shows_what_was_said_since_the_users_last_words():
    history = [{"role": "system", "content": "Be brief."}, user("Hi"), model("Hello."), user("Look.")]
    assert said(*history) == [("user", "Look.", True)]
    assert view_request(request(*history)).before == 3
    assert said(*history, CALLED, result("c1", "A tree."), user(REMINDER)) == [
        ("user", "Look.", False),
        ("assistant", "Let me look.", False),
        ("call", '{"at":"here"}', False),
        ("result", "A tree.", True),
        ("user", "", True),
    ]


def test_what_the_client_added_to_the_users_words_is_apart_from_them():
    found = view_request(request(texts(REMINDER, "Look."), dialect="messages")).entries
    assert [(each.text, each.added) for each in found] == [("Look.", f"{REMINDER}Look.")]
    assert view_request(request(user(" Look. "))).entries[0].added == ""


def test_an_image_beside_the_users_words_is_named():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    content = [{"type": "text", "text": "What is it?"}, image]
    assert said({"role": "user", "content": content}) == [("user", "What is it?\n(image)", True)]


def test_texts_are_shown_up_to_a_bound_and_have_their_sizes():
    [found] = view_request(request(user("x" * (MAX_TEXT_LENGTH + 5)))).entries
    assert (len(found.text), found.size) == (MAX_TEXT_LENGTH, MAX_TEXT_LENGTH + 5)
    many = Request("m", tuple(Message("assistant", (TextPart("y" * MAX_TEXT_LENGTH),)) for _ in range(MAX_ENTRIES + 5)))
    shown = view_request(many)
    assert (len(shown.entries), shown.before) == (MAX_ENTRIES, 5)
    assert sum(len(each.text) for each in shown.entries) == MAX_TEXTS_LENGTH
    assert shown.entries[-1].text


def test_a_body_that_is_no_request_says_nothing():
    assert view_request(None).entries == []
    assert view_results(None) == {}


def test_results_are_found_before_words_that_follow_them():
    found = view_results(request(user("Look."), CALLED, result("c1", "A tree."), user("Wait.")))
    assert {id: each.text for id, each in found.items()} == {"c1": "A tree."}


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    server = Gateway(tmp_path_factory.mktemp("said"), backend(upstream.url), PROXY_TOOL_ARGUMENTS="check")
    yield server
    server.stop()


def test_a_call_with_invalid_arguments_shows_what_repair_would_make_of_it(gateway: Gateway, upstream: Upstream):
    calls = (
        call("c1", "get_weather", "{'city': 'Oslo', days: '3',}"),
        call("c2", "get_weather", '{"city":"Rome"}'),
        call("c3", "get_weather", '{"days": "many"}'),
    )
    upstream.replies["invalid"] = Reply([stream(created(), *calls, completed())])
    body = chat_body("up/invalid", tools=WEATHER, stream=True)
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=90, trust_env=False)
    with ConsoleClient(gateway) as console:
        whole = console.turn(model="up/invalid")["whole"]
    assert whole["repairs"]["c1"]["text"] == '{"city":"Oslo","days":3}'
    assert "quotes" in whole["repairs"]["c1"]["fixes"]
    assert whole["repairs"]["c3"] == {"text": ""}
    assert "c2" not in whole["repairs"]


def test_the_results_that_a_turn_brought_are_for_those_who_see_it(gateway: Gateway):
    history = [user("Look."), CALLED, result("c1", "A tree.")]
    body = chat_body("demo", messages=history)
    httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=90, trust_env=False)
    with ConsoleClient(gateway) as console:
        id = console.wait_for(model="demo")["id"]
        found = console.get(f"turns/{id}/results")
        assert console.http.get("/console/api/turns/gone/results").status_code == 404
    assert {call: each["text"] for call, each in found.items()} == {"c1": "A tree."}
