"""A real `codex app-server` as the backend: what its model is shown, what clients see of its turns, and its accidents.

The model at the far end is scripted; everything else is what users run.
"""

import base64
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.clients.app_server import (
    USUAL,
    AppServer,
    called,
    history,
    message,
    result,
    running,
    table,
    tells,
    thread_of,
    worker_of,
)
from tests.clients.codex import needs_codex
from tests.support.client_readers import PATHS, Refused
from tests.support.conversations import AGENTS, CLIENTS, PIXEL, Client, Result, ScriptedConversation, Step, dialect_of
from tests.support.frames import call, completed, created, rs, stream, text
from tests.support.gateway import Gate, Responses, calls_of, leave_when, text_of
from tests.support.routes import question
from tests.support.scripts import (
    DECLARED,
    FIND,
    LOOK,
    NAMES,
    Call,
    Calls,
    Declared,
    Name,
    Says,
    Script,
    Seen,
    Thinks,
    Tokens,
)
from tests.support.upstream import Asked, Cut, Hold, Pause, Reply
from toolwire.adapt.history import OPENING

Json = dict[str, Any]
DIALECTS = pytest.mark.parametrize("dialect", NAMES)
STREAMS = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS)

ODD = 'Zürich ☃ 東京 🌦️ 👩‍👩‍👧 "quoted" \\ back\tslash\n \u0000 end'
IMAGE = f"data:image/png;base64,{PIXEL}"
NO_TURN = Script()


@pytest.fixture(scope="module", autouse=True)
def codex_is_there() -> None:
    needs_codex()


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[AppServer]:
    with running(tmp_path_factory.mktemp("app-server"), http) as stand:
        yield stand


def shown_tool(name: str, **properties: Any) -> Json:
    """A tool as the model is shown it."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "name": name, "description": "", "strict": False, "parameters": parameters}


def shown_image(detail: str) -> Json:
    return {"type": "input_image", "image_url": IMAGE, "detail": detail}


PATH = {"path": {"type": "string"}}


# What goes upstream


@STREAMS
@DIALECTS
def test_the_model_has_the_clients_tools_and_no_others(stand: AppServer, dialect: Name, streamed: bool):
    model = stand.model(tells(Says("Hello.")))
    stand.ask(dialect, question(dialect, model, (LOOK, FIND), stream=streamed))
    [asked] = stand.asked(model)
    assert asked.body["tools"] == [shown_tool("look", **PATH), shown_tool("find", **PATH)]


@DIALECTS
def test_a_client_without_tools_gives_the_model_none(stand: AppServer, dialect: Name):
    model = stand.model(tells(Says("Hello.")))
    stand.ask(dialect, question(dialect, model, (), stream=False))
    [asked] = stand.asked(model)
    assert not asked.body.get("tools")


@DIALECTS
def test_nothing_is_added_to_what_the_user_said(stand: AppServer, dialect: Name):
    model = stand.model(tells(Says("Hello.")))
    stand.ask(dialect, question(dialect, model, (LOOK,), stream=False))
    [asked] = stand.asked(model)
    assert history(asked) == [message("user", "Go.")]
    assert "instructions" not in asked.body


CHAT_HISTORY: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": ODD},
    {"role": "assistant", "content": "Of course."},
    {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
    {
        "role": "assistant",
        "content": "Both.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "a"}'}},
            {"id": "c2", "type": "function", "function": {"name": "find", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": ODD},
    {"role": "tool", "tool_call_id": "c2", "content": ""},
    {"role": "assistant", "content": ""},  # which says nothing, and is nothing
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE}}]},
    {"role": "system", "content": "Be quick."},
    {"role": "user", "content": "And now?"},
]


def test_a_chat_history_arrives_whole_and_in_order(stand: AppServer):
    model = stand.model(tells(Says("Well.")))
    body = {"model": model, "messages": CHAT_HISTORY, "tools": DECLARED["chat"]((LOOK, FIND))}
    assert stand.says("chat", body) == "Well."
    [asked] = stand.asked(model)
    assert history(asked) == [
        message("developer", "Be brief."),
        message("developer", "Be kind."),
        message("user", ODD),
        message("assistant", "Of course."),
        message("user", "One.", "Two."),
        message("assistant", "Both."),
        called("c1", "look", '{"path": "a"}'),
        called("c2", "find", "{}"),
        result("c1", ODD),
        result("c2", ""),
        {"type": "message", "role": "user", "content": [shown_image("auto")]},
        message("developer", "Be quick."),
        message("user", "And now?"),
    ]


NOTHING = message("assistant", "")
RESPONSES_HISTORY: list[Json] = [
    message("developer", "Be kind."),
    message("user", ODD),
    message("assistant", "Of course."),
    message("user", "One.", "Two."),
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": ODD}], "encrypted_content": "signed"},
    message("assistant", "Both."),
    called("c1", "look", '{"path" : "a", "n": 1.50}'),
    called("c2", "find", "{}"),
    result("c2", "second"),
    result("c1", [{"type": "input_text", "text": ODD}, shown_image("auto")]),
    NOTHING,
    {"type": "message", "role": "user", "content": [shown_image("high")]},
    message("developer", "Be quick."),
    message("user", "And now?"),
]


def test_a_responses_history_arrives_whole_and_in_order(stand: AppServer):
    model = stand.model(tells(Says("Well.")))
    body = {"model": model, "instructions": "Be brief.", "input": RESPONSES_HISTORY, "store": False}
    assert stand.says("responses", {**body, "tools": DECLARED["responses"]((LOOK, FIND))}) == "Well."
    [asked] = stand.asked(model)
    said = [item for item in RESPONSES_HISTORY if item != NOTHING]
    assert history(asked) == [message("developer", "Be brief."), *said]


MESSAGES_HISTORY: list[Json] = [
    {"role": "user", "content": ODD},
    {"role": "assistant", "content": [{"type": "text", "text": "Of course."}]},
    {"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Both."},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"path": "ä"}},
            {"type": "tool_use", "id": "c2", "name": "find", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c2", "content": "No such thing.", "is_error": True},
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [
                    {"type": "text", "text": ODD},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                ],
            },
            {"type": "text", "text": "And now?"},
        ],
    },
]


def test_a_messages_history_arrives_whole_and_in_order(stand: AppServer):
    model = stand.model(tells(Says("Well.")))
    body = {"model": model, "max_tokens": 99, "system": "Be brief.", "messages": MESSAGES_HISTORY}
    assert stand.says("messages", {**body, "tools": DECLARED["messages"]((LOOK, FIND))}) == "Well."
    [asked] = stand.asked(model)
    assert history(asked) == [
        message("developer", "Be brief."),
        message("user", ODD),
        message("assistant", "Of course."),
        message("user", "One.", "Two."),
        message("assistant", "Both."),
        called("c1", "look", '{"path":"ä"}'),
        called("c2", "find", "{}"),
        result("c2", "Error: No such thing."),
        result("c1", [{"type": "input_text", "text": ODD}, shown_image("auto")]),
        message("user", "And now?"),
    ]


def test_what_the_model_thought_comes_back_to_it(stand: AppServer):
    model = stand.model(tells(Thinks("Hm.", "signed"), Says("Yes.")), tells(Says("Still.")))
    agent = AGENTS["responses"](stand, model, ScriptedConversation((), thinks=True), stream=True)
    agent.take(Step(NO_TURN, user="Is it so?"))
    agent.take(Step(NO_TURN, user="Really?"))
    thought, said = history(stand.asked(model)[1])[2:4]
    assert (thought["summary"], thought["encrypted_content"]) == ([{"type": "summary_text", "text": "Hm."}], "signed")
    assert said == message("assistant", "Yes.")


def test_two_megabytes_of_a_user_arrive_whole(stand: AppServer):
    model = stand.model(tells(Says("Long.")))
    words = "0123456789abcdé" * (2 * 65536)
    body = {"model": model, "messages": [{"role": "user", "content": words}]}
    assert stand.says("chat", body) == "Long."
    [asked] = stand.asked(model)
    assert history(asked) == [message("user", words)]


@pytest.mark.parametrize("live", [True, False], ids=["live", "rebuilt"])
def test_three_megabytes_of_a_result_arrive_whole(stand: AppServer, live: bool):
    model = stand.model(*([tells(Calls("c1", "look", "{}"))] if live else []), tells(Says("Long.")))
    output = "0123456789abcdé" * (3 * 65536)
    agent = AGENTS["chat"](stand, model, ScriptedConversation((), system=""), stream=False)
    if live:
        agent.take(Step(NO_TURN, user="Go."))
    else:
        calling = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        agent.request(Step(NO_TURN, user="Go."))["messages"].append({"role": "assistant", "tool_calls": [calling]})
    assert agent.take(Step(NO_TURN, results=(Result("c1", output),))).text == "Long."
    assert history(stand.asked(model)[-1]) == [message("user", "Go."), called("c1", "look", "{}"), result("c1", output)]


@EACH_CLIENT
def test_a_long_conversation_is_not_summarised(stand: AppServer, client: Client):
    much = Tokens(900_000, 50)
    model = stand.model(
        tells(Calls("c1", "look", "{}"), tokens=much), tells(Says("Yes."), tokens=much), tells(Says("Still."))
    )
    agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=True)
    agent.take(Step(NO_TURN, user="Go."))
    agent.take(Step(NO_TURN, results=(Result("c1", "there"),)))
    assert agent.take(Step(NO_TURN, user="Really?")).text == "Still."
    assert [len(asked.body["input"]) for asked in stand.asked(model)] == [1, 3, 5]


# What a model is asked for


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh"])
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_effort_arrives(stand: AppServer, dialect: Name, effort: str):
    model = stand.model(tells(Says("Hello.")))
    fields: Json = {"reasoning_effort": effort} if dialect == "chat" else {"reasoning": {"effort": effort}}
    stand.ask(dialect, question(dialect, model, (), stream=False, **fields))
    [asked] = stand.asked(model)
    assert asked.body["reasoning"]["effort"] == effort


@pytest.mark.parametrize("verbosity", ["low", "medium", "high"])
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_verbosity_arrives(stand: AppServer, dialect: Name, verbosity: str):
    model = stand.model(tells(Says("Hello.")))
    fields: Json = {"verbosity": verbosity} if dialect == "chat" else {"text": {"verbosity": verbosity}}
    stand.ask(dialect, question(dialect, model, (), stream=False, **fields))
    [asked] = stand.asked(model)
    assert asked.body["text"]["verbosity"] == verbosity


ANSWER = {
    "type": "object",
    "properties": {"z": {"type": "string", "pattern": "^x"}, "a": {"type": "integer", "minimum": 3}},
    "required": ["z", "a"],
    "additionalProperties": False,
}
FORMATS: dict[str, Json] = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}},
    "responses": {"text": {"format": {"type": "json_schema", "name": "answer", "schema": ANSWER}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": ANSWER}}},
    "gemini": {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": ANSWER}},
}


@DIALECTS
def test_the_schema_of_an_answer_arrives(stand: AppServer, dialect: Name):
    model = stand.model(tells(Says('{"z":"x","a":3}')))
    stand.ask(dialect, question(dialect, model, (), stream=False, **FORMATS[dialect]))
    [asked] = stand.asked(model)
    assert (asked.body["text"]["format"]["type"], asked.body["text"]["format"]["schema"]) == ("json_schema", ANSWER)


CHOICES: dict[str, dict[str, Any]] = {
    "none": {"chat": "none", "responses": "none", "messages": {"type": "none"}, "gemini": {"mode": "NONE"}},
    "required": {"chat": "required", "responses": "required", "messages": {"type": "any"}, "gemini": {"mode": "ANY"}},
    "named": {
        "chat": {"type": "function", "function": {"name": "find"}},
        "responses": {"type": "function", "name": "find"},
        "messages": {"type": "tool", "name": "find"},
        "gemini": {"mode": "ANY", "allowedFunctionNames": ["find"]},
    },
}
OFFERED = {"none": [], "required": ["look", "find"], "named": ["find"]}
TOLD = {
    "none": [],
    "required": [message("developer", "Call a tool before you answer.")],
    "named": [message("developer", "Call the tool find before you answer.")],
}


@pytest.mark.parametrize("choice", CHOICES)
@DIALECTS
def test_the_choice_of_tools_is_in_what_is_offered(stand: AppServer, dialect: Name, choice: str):
    model = stand.model(tells(Says("Hello.")))
    given = CHOICES[choice][dialect]
    fields = {"toolConfig": {"functionCallingConfig": given}} if dialect == "gemini" else {"tool_choice": given}
    stand.ask(dialect, question(dialect, model, (LOOK, FIND), stream=False, **fields))
    [asked] = stand.asked(model)
    assert [tool["name"] for tool in asked.body["tools"]] == OFFERED[choice]
    assert history(asked) == [*TOLD[choice], message("user", "Go.")]


# Images


def with_image(dialect: Name, model: str, address: str, detail: str = "auto") -> Json:
    """A request with an image and nothing else."""
    head, _, data = address.removeprefix("data:").partition(";base64,")
    source = {"type": "base64", "media_type": head, "data": data} if data else {"type": "url", "url": address}
    parts: dict[str, Json] = {
        "chat": {"type": "image_url", "image_url": {"url": address, "detail": detail}},
        "responses": {"type": "input_image", "image_url": address, "detail": detail},
        "messages": {"type": "image", "source": source},
        "gemini": {"inlineData": {"mimeType": head, "data": data}} if data else {"fileData": {"fileUri": address}},
    }
    body = question(dialect, model, (), stream=False)
    if dialect == "gemini":
        body["contents"] = [{"role": "user", "parts": [parts[dialect]]}]
        return body
    body["input" if dialect == "responses" else "messages"] = [{"role": "user", "content": [parts[dialect]]}]
    return body


@DIALECTS
def test_an_image_arrives(stand: AppServer, dialect: Name):
    model = stand.model(tells(Says("A pixel.")))
    stand.ask(dialect, with_image(dialect, model, IMAGE))
    [asked] = stand.asked(model)
    assert history(asked) == [{"type": "message", "role": "user", "content": [shown_image("auto")]}]


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_an_image_of_low_detail_arrives(stand: AppServer, dialect: Name):
    model = stand.model(tells(Says("A pixel.")))
    stand.ask(dialect, with_image(dialect, model, IMAGE, "low"))
    [asked] = stand.asked(model)
    assert history(asked)[0]["content"][0]["type"] == "input_image"


@DIALECTS
def test_an_image_that_is_elsewhere_is_left_out_with_a_note(stand: AppServer, dialect: Name):
    model = stand.model(tells(Says("What image?")))
    assert stand.says(dialect, with_image(dialect, model, "https://example.com/cat.png")) == "What image?"
    assert [notes.get("part_dropped") for notes in stand.notes(model)] == [1]
    [asked] = stand.asked(model)
    assert history(asked) == [message("user", OPENING)]


# Turns


@STREAMS
@DIALECTS
def test_a_text_turn_arrives(stand: AppServer, dialect: Name, streamed: bool):
    model = stand.model(tells(Says(ODD)))
    held = stand.ask(dialect, question(dialect, model, (), stream=streamed))
    assert held.seen == Seen(text=ODD, tokens=USUAL)


def test_text_arrives_while_it_is_made(stand: AppServer):
    gate = Gate(created(), text_begun("Half of it"), after=(text_done("Half of it, and the rest."), completed()))
    model = stand.model(Reply(gate))
    with stand.stream("chat", question("chat", model, (), stream=True)) as lines:
        until(lines, "Half of it")
        gate.open()
        assert "and the rest." in "".join(lines)


@STREAMS
@DIALECTS
def test_what_a_model_thinks_arrives(stand: AppServer, dialect: Name, streamed: bool):
    model = stand.model(tells(Thinks("Let me think.", "signed"), Says("Done.")))
    fields: Json = {"include": ["reasoning.encrypted_content"]} if dialect == "responses" else {}
    if dialect == "messages":
        fields = {"thinking": {"type": "enabled", "budget_tokens": 2048}, "max_tokens": 4096}
    held = stand.ask(dialect, question(dialect, model, (), stream=streamed, **fields))
    signed = 0 if dialect == "chat" else 1
    assert held.seen == Seen(text="Done.", reasoning="Let me think.", signed=signed, tokens=USUAL)


def test_a_responses_client_gets_the_seal_of_a_thought(stand: AppServer):
    model = stand.model(tells(Thinks("Let me think.", "signed"), Says("Done.")))
    fields = {"include": ["reasoning.encrypted_content"]}
    held = stand.ask("responses", question("responses", model, (), stream=True, **fields))
    assert held.own["output"][0]["encrypted_content"] == "signed"
    deltas = [data for data in held.came if data["type"] == "response.reasoning_summary_text.delta"]
    assert "".join(data["delta"] for data in deltas) == "Let me think."


MEGABYTE = json.dumps({"path": "0123456789abcdef" * 65536})
CALLS: dict[str, tuple[Calls, ...]] = {
    "one": (Calls("c1", "look", '{"path":"a"}'),),
    "three": tuple(Calls(f"c{n}", "look", json.dumps({"path": str(n)})) for n in range(3)),
    "of-two-tools": (Calls("c1", "look", '{"path":"a"}'), Calls("c2", "find", '{"path":"b"}')),
    "odd-letters": (Calls("c1", "look", json.dumps({"path": ODD}, ensure_ascii=False)),),
    "a-megabyte": (Calls("c1", "look", MEGABYTE),),
    "no-arguments": (Calls("c1", "look", "{}"),),
    "spaces": (Calls("c1", "look", '{ "path" : "a" }'),),
}


@pytest.mark.parametrize("name", CALLS)
@DIALECTS
def test_calls_arrive_whole_and_in_order(stand: AppServer, dialect: Name, name: str):
    model = stand.model(tells(Says("Let me see."), *CALLS[name]))
    held = stand.ask(dialect, question(dialect, model, (LOOK, FIND), stream=True))
    assert (held.seen.text, held.seen.finish) == ("Let me see.", "calls")
    assert [(call.id, call.name, json.loads(call.arguments)) for call in held.seen.calls] == [
        (call.id, call.name, json.loads(call.arguments)) for call in CALLS[name]
    ]
    if dialect != "messages":
        assert [call.arguments for call in held.seen.calls] == [call.arguments for call in CALLS[name]]


def test_arguments_of_no_letters_are_answered_by_app_server(stand: AppServer):
    model = stand.model(tells(Calls("c1", "look", "")), tells(Says("Sorry.")))
    assert stand.ask("chat", question("chat", model, (LOOK,), stream=False)).seen.text == "Sorry."


@STREAMS
@EACH_CLIENT
def test_results_in_any_order_reach_their_calls(stand: AppServer, client: Client, streamed: bool):
    calls = CALLS["three"]
    model = stand.model(tells(Says("All three."), *calls), tells(Says("There.")))
    agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=streamed)
    assert len(agent.take(Step(NO_TURN, user="Go.")).calls) == 3
    results = tuple(Result(call.id, f"result of {call.id}") for call in reversed(calls))
    assert agent.take(Step(NO_TURN, results=results)).text == "There."
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)
    assert history(second) == [
        message("user", "Go."),
        message("assistant", "All three."),
        *(called(call.id, "look", call.arguments) for call in calls),
        *(result(call.id, f"result of {call.id}") for call in calls),
    ]


@STREAMS
@EACH_CLIENT
def test_a_loop_of_several_rounds_stays_in_its_thread(stand: AppServer, client: Client, streamed: bool):
    rounds = [tells(Thinks(f"Hm {n}.", f"signature-{n}"), Calls(f"c{n}", "look", "{}")) for n in range(3)]
    model = stand.model(*rounds, tells(Says("There.")), tells(Says("Still.")))
    agent = AGENTS[client](stand, model, ScriptedConversation((), thinks=True), stream=streamed)
    seen = [agent.take(Step(NO_TURN, user="Go."))]
    seen += [agent.take(Step(NO_TURN, results=(Result(f"c{n}", f"r{n}"),))) for n in range(3)]
    assert [each.tokens for each in seen] == [USUAL] * 4  # each answer has the tokens of its own round
    assert len({thread_of(asked) for asked in stand.asked(model)}) == 1
    assert agent.take(Step(NO_TURN, user="Really?")).text == "Still."
    *_, last, later = stand.asked(model)
    assert thread_of(last) != thread_of(later)
    assert history(later) == [*history(last), message("assistant", "There."), message("user", "Really?")]
    signatures = [item["encrypted_content"] for item in history(later) if item["type"] == "reasoning"]
    assert signatures == ["signature-0", "signature-1", "signature-2"]


@EACH_CLIENT
def test_what_the_user_says_beside_results_comes_once_and_last(stand: AppServer, client: Client):
    model = stand.model(tells(Calls("c1", "look", "{}")), tells(Says("There.")))
    agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=True)
    agent.take(Step(NO_TURN, user="Go."))
    agent.take(Step(NO_TURN, results=(Result("c1", "one"),), user="And quickly."))
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)
    assert history(second)[1:] == [called("c1", "look", "{}"), result("c1", "one"), message("user", "And quickly.")]


@EACH_CLIENT
def test_a_failed_result_arrives(stand: AppServer, client: Client):
    model = stand.model(tells(Calls("c1", "look", "{}")), tells(Says("Sorry.")))
    agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=False)
    agent.take(Step(NO_TURN, user="Go."))
    agent.take(Step(NO_TURN, results=(Result("c1", "No such thing.", failed=True),)))
    told = "Error: No such thing." if client in ("messages", "gemini", "nameless") else "No such thing."
    assert history(stand.asked(model)[1])[-1] == result("c1", told)


@pytest.mark.parametrize("client", ["responses", "messages", "chained"])
def test_an_image_in_a_result_arrives(stand: AppServer, client: Client):
    model = stand.model(tells(Calls("c1", "look", "{}")), tells(Says("A pixel.")))
    agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=False)
    agent.take(Step(NO_TURN, user="Go."))
    assert agent.take(Step(NO_TURN, results=(Result("c1", "See:", image=True),))).text == "A pixel."
    told, image = history(stand.asked(model)[1])[-1]["output"]
    assert (told, image["image_url"]) == ({"type": "input_text", "text": "See:"}, IMAGE)


@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
def test_an_edited_history_is_told_anew(stand: AppServer, client: Client):
    model = stand.model(tells(Calls("c1", "look", "{}")), tells(Says("There.")))
    agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=False)
    agent.take(Step(NO_TURN, user="Go."))
    body = agent.request(Step(NO_TURN, results=(Result("c1", "one"),)))
    body["input" if client == "responses" else "messages"][0]["content"] = "Go on."
    assert stand.ask(dialect_of(client), body, model).seen.text == "There."
    first, second = stand.asked(model)
    assert thread_of(first) != thread_of(second)
    assert history(second) == [message("user", "Go on."), called("c1", "look", "{}"), result("c1", "one")]


def test_two_conversations_with_the_same_ids_are_not_mixed_up(stand: AppServer):
    model = stand.model(*(tells(Calls("call_0", "look", "{}")) for _ in range(2)), tells(Says("There.")))
    agents = [AGENTS["chat"](stand, model, ScriptedConversation((), system=""), stream=False) for _ in range(2)]
    for number, agent in enumerate(agents):
        agent.take(Step(NO_TURN, user=f"Go {number}."))
    for number, agent in enumerate(agents):
        agent.take(Step(NO_TURN, results=(Result("call_0", f"result {number}"),)))
    begun, ended = stand.asked(model)[:2], stand.asked(model)[2:]
    assert [*map(thread_of, begun)] == [*map(thread_of, ended)]
    for number, asked in enumerate(ended):
        calling = called("call_0", "look", "{}")
        assert history(asked) == [message("user", f"Go {number}."), calling, result("call_0", f"result {number}")]


def test_outputs_can_be_submitted(stand: AppServer, http: httpx.Client):
    model = stand.model(tells(Calls("c1", "look", "{}"), Calls("c2", "look", "{}")), tells(Says("There.")))
    responses = Responses(http, stand.gateway)
    first = responses.create(model, tools=DECLARED["responses"]((LOOK,)))
    assert text_of(responses.submit(first["id"], {"c2": "two", "c1": "one"}).json()) == "There."
    one, two = stand.asked(model)
    assert thread_of(one) == thread_of(two)
    assert history(two)[-2:] == [result("c1", "one"), result("c2", "two")]


@pytest.mark.parametrize("store", [True, False])
def test_a_loop_goes_over_a_socket(stand: AppServer, store: bool):
    model = stand.model(tells(Calls("c1", "look", "{}")), tells(Says("There.")))
    with connect(stand.gateway.url.replace("http", "ws", 1) + PATHS["responses"], proxy=None) as socket:

        def ask(**fields: Any) -> Json:
            body = {"model": model, "tools": DECLARED["responses"]((LOOK,)), "store": store, **fields}
            socket.send(json.dumps({"type": "response.create", **body}))
            while True:
                event = json.loads(socket.recv(90))
                if event["type"] in ("response.completed", "response.failed", "error"):
                    return event["response"]

        first = ask(input="Go.")
        assert [call["call_id"] for call in calls_of(first)] == ["c1"]
        second = ask(previous_response_id=first["id"], input=[result("c1", "one")])
    assert text_of(second) == "There."
    one, two = stand.asked(model)
    assert thread_of(one) == thread_of(two)
    assert history(two) == [message("user", "Go."), called("c1", "look", "{}"), result("c1", "one")]


# Names


def test_a_custom_tool_goes_both_ways(stand: AppServer):
    run = Declared("run", "custom")
    model = stand.model(tells(Calls("c1", "run", json.dumps({"input": "print(1)\n"}))), tells(Says("It is 1.")))
    agent = AGENTS["responses"](stand, model, ScriptedConversation((), system="", tools=(run,)), stream=True)
    [made] = agent.take(Step(NO_TURN, user="Go.")).calls
    assert made == Call("c1", "run", "print(1)\n", "custom")
    agent.take(Step(NO_TURN, results=(Result("c1", "1"),)))
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)
    assert [(tool["type"], tool["name"]) for tool in first.body["tools"]] == [("function", "run")]
    assert history(second)[-1] == result("c1", "1")


def test_a_namespace_goes_both_ways(stand: AppServer):
    there, here = Declared("look", namespace="files"), Declared("find")
    model = stand.model(calls_the_last_tool)
    agent = AGENTS["responses"](stand, model, ScriptedConversation((), system="", tools=(here, there)), stream=True)
    [made] = agent.take(Step(NO_TURN, user="Go.")).calls
    assert (made.name, made.namespace) == ("look", "files")
    assert agent.take(Step(NO_TURN, results=(Result("c1", "there"),))).text == "There."
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)


def calls_the_last_tool(asked: Asked) -> Reply:
    if asked.body["input"][-1]["type"] == "function_call_output":
        return tells(Says("There."))
    return tells(Calls("c1", asked.body["tools"][-1]["name"], '{"path":"a"}'))


ORDINARY = ("mcp__files__look", "files.look", "a" * 64, "-look_9", "shell", "apply_patch", "view_image", "web_search")
RESERVED = ("exec_command", "shell_command", "mcp")
"""App-server leaves out tools of the first two names without a word, and refuses the third."""


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        (dialect, name)
        for dialect in NAMES
        for name in (*ORDINARY, *RESERVED)
        if dialect != "messages" or "." not in name  # which a client of Messages may not give
    ],
)
def test_a_tool_keeps_the_name_that_its_client_gave_it(stand: AppServer, dialect: Name, name: str):
    model = stand.model(calls_the_last_tool)
    agent = AGENTS[dialect](stand, model, ScriptedConversation((), tools=(Declared(name),)), stream=True)
    [made] = agent.take(Step(NO_TURN, user="Go.")).calls
    assert made.name == name
    assert agent.take(Step(NO_TURN, results=(Result("c1", "there"),))).text == "There."
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)


# What is not as it should be


@DIALECTS
@pytest.mark.parametrize("made", [Calls("c1", "forget", "{}"), Calls("c1", "look", '{"path":')], ids=["name", "json"])
def test_a_call_that_cannot_be_made_stays_with_the_model(stand: AppServer, dialect: Name, made: Calls):
    model = stand.model(tells(made), tells(Says("Sorry.")))
    held = stand.ask(dialect, question(dialect, model, (LOOK,), stream=True))
    assert (held.seen.calls, held.seen.text, held.seen.finish) == ((), "Sorry.", "stop")
    assert held.seen.tokens == Tokens(40, 10, 16, 0, 4)  # both rounds
    assert len(stand.asked(model)) == 2


def test_a_good_call_beside_a_bad_one_is_made(stand: AppServer):
    calls = (Calls("c1", "forget", "{}"), Calls("c2", "look", "{}"))
    model = stand.model(tells(*calls), tells(Says("There.")))
    agent = AGENTS["chat"](stand, model, ScriptedConversation((), system=""), stream=True)
    assert [call.id for call in agent.take(Step(NO_TURN, user="Go.")).calls] == ["c2"]
    assert agent.take(Step(NO_TURN, results=(Result("c2", "there"),))).text == "There."
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)
    assert [item.get("call_id") for item in history(second)[1:]] == ["c1", "c2", "c1", "c2"]


ENDINGS = {"max_output_tokens": "length", "content_filter": "filter"}


@pytest.mark.parametrize("reason", ENDINGS)
@STREAMS
@DIALECTS
def test_an_answer_that_was_cut_short_says_so(stand: AppServer, dialect: Name, streamed: bool, reason: str):
    model = stand.model(Reply([stream(created(), text_begun("And then"), text_done("And then"), incomplete(reason))]))
    held = stand.ask(dialect, question(dialect, model, (), stream=streamed))
    expected = "refused" if (dialect, reason) == ("messages", "content_filter") else ENDINGS[reason]
    assert (held.seen.text, held.seen.finish) == ("And then", expected)
    if reason == "max_output_tokens":  # of the others app-server does not tell
        assert held.seen.tokens == Tokens(20, 5)


@STREAMS
@DIALECTS
def test_rate_limits_arrive_as_headers(stand: AppServer, dialect: Name, streamed: bool):
    limits = {"x_codex_primary_used_percent": "42", "x_codex_primary_window_minutes": "300"}
    model = stand.model(tells(Says("Hello."), **limits))
    body = question(dialect, model, (), stream=streamed)
    stand.post(dialect, body)
    answer = stand.post(dialect, body)  # of a stream the first is under way before they are known
    assert answer.headers["x-codex-primary-used-percent"] == "42"
    assert answer.headers["x-codex-primary-window-minutes"] == "300"


def test_a_client_that_leaves_before_anything_came_stops_the_model(stand: AppServer):
    model = stand.model(Reply([created(), Hold()]))
    stand.upstream.gone.clear()
    asked = len(stand.upstream.asked)
    body = question("chat", model, (), stream=False)
    leave_when(stand.gateway, PATHS["chat"], body, lambda: len(stand.upstream.asked) > asked)
    assert stand.upstream.gone.wait(60)


@DIALECTS
def test_a_client_that_leaves_stops_the_model(stand: AppServer, dialect: Name):
    model = stand.model(Reply([stream(created(), text_begun("Half of it")), Hold()]))
    stand.upstream.gone.clear()
    with stand.stream(dialect, question(dialect, model, (), stream=True)) as lines:
        until(lines, "Half of it")
    assert stand.upstream.gone.wait(60)
    assert len(stand.asked(model)) == 1


def text_begun(words: str) -> bytes:
    return stream(rs("output_item.added", output_index=0, item={**MESSAGE, "content": []}), text(words))


def text_done(words: str) -> bytes:
    item = {**MESSAGE, "content": [{"type": "output_text", "text": words}]}
    return rs("output_item.done", output_index=0, item=item)


MESSAGE: Json = {"type": "message", "id": "msg_1", "role": "assistant"}
USAGE: Json = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}


def incomplete(reason: str) -> bytes:
    response = {"id": "resp_1", "status": "incomplete", "incomplete_details": {"reason": reason}, "usage": USAGE}
    return rs("incomplete", response=response)


def until(lines: Iterator[str], words: str) -> str:
    """The first line with these words."""
    return next(line for line in lines if words in line)


# What goes wrong at the model's server


def refusing(status: int, error: Json, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([json.dumps({"error": error}).encode()], status, "application/json", named)


def failing(code: str, words: str = "It broke.", before: bytes = b"") -> Reply:
    error = {"code": code, "message": words}
    response = {"id": "resp_1", "status": "failed", "error": error}
    return Reply([stream(created(), before), Pause(0.05), rs("failed", response=response)])


class Trouble:
    """What the model's server answers, and what the client must be told."""

    def __init__(self, reply: Reply, status: int, code: str, word: str, *, again: bool = False) -> None:
        self.reply, self.status, self.code, self.word, self.again = reply, status, code, word, again


TROUBLES: dict[str, Trouble] = {
    "500": Trouble(refusing(500, {"message": "Kaput."}), 502, "server_error", "api_error", again=True),
    "overloaded": Trouble(
        refusing(503, {"message": "Full.", "code": "server_is_overloaded"}),
        503,
        "server_is_overloaded",
        "overloaded_error",
        again=True,
    ),
    "429": Trouble(
        refusing(429, {"message": "Slow down.", "code": "rate_limit_exceeded"}, retry_after="1"),
        429,
        "rate_limit_exceeded",
        "rate_limit_error",
        again=True,
    ),
    "usage-limit": Trouble(
        refusing(429, {"message": "Enough.", "type": "usage_limit_reached", "resets_at": 1_900_000_000}),
        429,
        "usage_limit_reached",
        "rate_limit_error",
    ),
    "400": Trouble(
        refusing(400, {"message": "Bad input.", "type": "invalid_request_error", "code": "bad_input"}),
        400,
        "bad_input",
        "invalid_request_error",
    ),
    "401": Trouble(
        refusing(401, {"message": "No key.", "code": "invalid_api_key"}), 401, "unauthorized", "authentication_error"
    ),
    "no-model": Trouble(
        refusing(404, {"message": "No such model.", "code": "model_not_found"}),
        404,
        "model_not_found",
        "not_found_error",
    ),
    "cut": Trouble(Reply([stream(created()), Cut()]), 502, "stream_cut", "api_error", again=True),
    "no-end": Trouble(Reply([stream(created())]), 502, "stream_cut", "api_error", again=True),
    "too-long": Trouble(failing("context_length_exceeded"), 400, "context_length_exceeded", "invalid_request_error"),
    "limited-inside": Trouble(
        failing("rate_limit_exceeded", "Slow down."), 429, "rate_limit_exceeded", "rate_limit_error", again=True
    ),
    "no-quota": Trouble(failing("insufficient_quota"), 429, "usage_limit_reached", "rate_limit_error"),
}


def word_of(dialect: Name, refused: Refused) -> str:
    """What a refusal says of its reason."""
    error = refused.body["error"]
    if dialect == "gemini":
        return error["details"][0]["reason"].lower()
    return error["type" if dialect == "messages" else "code"]


@pytest.mark.parametrize("name", TROUBLES)
@DIALECTS
def test_a_failure_has_its_status_and_is_not_asked_for_again(stand: AppServer, dialect: Name, name: str):
    trouble = TROUBLES[name]
    model = stand.model(trouble.reply)
    refused = stand.refused(dialect, question(dialect, model, (LOOK,), stream=True))
    told = word_of(dialect, refused)
    assert (refused.status, told) == (trouble.status, trouble.word if dialect == "messages" else trouble.code)
    assert len(stand.asked(model)) == 1


@pytest.mark.parametrize("name", TROUBLES)
def test_only_what_may_pass_is_tried_again(stand: AppServer, name: str):
    trouble = TROUBLES[name]
    model = stand.model(trouble.reply, tells(Says("Better now.")), backend="patient")
    answer = stand.post("chat", question("chat", model, (LOOK,), stream=False))
    assert answer.status_code == (200 if trouble.again else trouble.status)
    assert len(stand.asked(model)) == (2 if trouble.again else 1)


def test_a_request_at_fault_is_quoted(stand: AppServer):
    error = {"message": "Bad input.", "type": "invalid_request_error", "param": "input[3]", "code": "bad_input"}
    model = stand.model(refusing(400, error))
    assert stand.refused("responses", question("responses", model, (), stream=False)).body["error"] == error


def test_a_limit_that_says_how_long_is_told(stand: AppServer):
    model = stand.model(failing("rate_limit_exceeded", "Please try again in 17s."), backend="patient")
    refused = stand.refused("chat", question("chat", model, (), stream=False))
    assert refused.headers["retry-after"] == "17"
    assert len(stand.asked(model)) == 1  # that is longer than we wait


ACCIDENTS = {
    "cut": Reply([stream(created(), text_begun("Half of it")), Pause(0.05), Cut()]),
    "no-end": Reply([stream(created(), text_begun("Half of it")), Pause(0.05)]),
    "failed": failing("server_error", before=text_begun("Half of it")),
}


@pytest.mark.parametrize("name", ACCIDENTS)
@DIALECTS
def test_what_was_shown_is_not_asked_for_again(stand: AppServer, dialect: Name, name: str):
    model = stand.model(ACCIDENTS[name], backend="patient")
    held = stand.ask(dialect, question(dialect, model, (), stream=True))
    assert (held.seen.text, held.seen.finish) == ("Half of it", "failed")
    assert held.error is not None
    assert len(stand.asked(model)) == 1


@DIALECTS
def test_a_server_that_is_not_there_is_told(stand: AppServer, dialect: Name):
    refused = stand.refused(
        dialect, question(dialect, stand.model(tells(Says("Hello.")), backend="nowhere"), (), stream=True)
    )
    told = word_of(dialect, refused)
    assert (refused.status, told) == (502, "api_error" if dialect == "messages" else "backend_unreachable")


def test_a_failure_between_two_rounds_is_told(stand: AppServer):
    model = stand.model(tells(Calls("c1", "look", "{}")), refusing(400, {"message": "No."}))
    agent = AGENTS["chat"](stand, model, ScriptedConversation((), system=""), stream=True)
    agent.take(Step(NO_TURN, user="Go."))
    with pytest.raises(Refused, match=r"No\."):
        agent.take(Step(NO_TURN, results=(Result("c1", "there"),)))
    assert len(stand.asked(model)) == 2


def test_a_failure_between_two_rounds_may_pass(stand: AppServer):
    sorry = refusing(500, {"message": "Kaput."})
    model = stand.model(tells(Calls("c1", "look", "{}")), sorry, tells(Says("There.")), backend="patient")
    agent = AGENTS["chat"](stand, model, ScriptedConversation((), system=""), stream=True)
    agent.take(Step(NO_TURN, user="Go."))
    assert agent.take(Step(NO_TURN, results=(Result("c1", "there"),))).text == "There."
    shown = [message("user", "Go."), called("c1", "look", "{}"), result("c1", "there")]
    assert [history(asked) for asked in stand.asked(model)[1:]] == [shown, shown]


# A worker that dies


def test_a_worker_that_dies_in_mid_turn_is_told_and_replaced(stand: AppServer):
    model = stand.model(Reply([stream(created(), text_begun("Half of it")), Hold()]), tells(Says("Whole.")))
    with stand.stream("chat", question("chat", model, (), stream=True)) as lines:
        until(lines, "Half of it")
        stand.kill_worker(model)
        assert "backend_broke_off" in "".join(lines)
    assert stand.says("chat", question("chat", model, (), stream=False)) == "Whole."


def test_a_worker_that_dies_before_anything_was_shown_is_not_noticed(stand: AppServer):
    model = stand.model(Reply([created(), Hold()]), tells(Says("Whole.")), backend="patient")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stand.says, "chat", question("chat", model, (), stream=False))
        stand.kill_worker(model)
        assert answer.result(90) == "Whole."


@pytest.mark.parametrize("backend", ["codex", "patient"])
@pytest.mark.parametrize("client", ["chat", "chained"])
def test_a_worker_that_dies_while_calls_wait_is_not_noticed(stand: AppServer, client: Client, backend: str):
    model = stand.model(tells(Calls("c1", "look", "{}")), tells(Says("There.")), backend=backend)
    agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=False)
    agent.take(Step(NO_TURN, user="Go."))
    stand.kill_worker(model)
    assert agent.take(Step(NO_TURN, results=(Result("c1", "there"),))).text == "There."
    assert history(stand.asked(model)[1]) == [message("user", "Go."), called("c1", "look", "{}"), result("c1", "there")]


# Workers come and go


def test_a_model_that_no_worker_knows_is_asked_all_the_same(stand: AppServer):
    model = stand.model(tells(Calls("c1", "look", "{}")), tells(Says("There.")))
    agent = AGENTS["chat"](stand, model, ScriptedConversation((), system=""), stream=False)
    agent.take(Step(NO_TURN, user="Go."))
    stand.upstream.replies["unheard-of"] = tells(Says("Hello."), tokens=Tokens(900_000, 5))
    assert stand.says("chat", question("chat", "codex/unheard-of", (LOOK,), stream=False)) == "Hello."
    [other] = stand.upstream.of("unheard-of")
    assert agent.take(Step(NO_TURN, results=(Result("c1", "there"),))).text == "There."
    first, second = stand.asked(model)
    assert thread_of(first) == thread_of(second)  # the old worker waits for what was begun
    assert worker_of(other) != worker_of(first)  # workers know models from the start, so there is another


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, http: httpx.Client) -> Iterator[AppServer]:
    """A gateway that asks soon after threads that are silent."""
    config = table("codex", base_url='"{url}"', profile="{ silence = 0.3 }", retries=1)
    with running(tmp_path_factory.mktemp("hasty"), http, f"[timeouts]\nidle = 1.5\nprogress = 6\n{config}") as stand:
        yield stand


def test_a_model_that_is_silent_for_long_is_waited_for(hasty: AppServer):
    model = hasty.model(Reply([created(), Pause(0.8), *tells(Says("At last.")).steps]))
    assert hasty.says("chat", question("chat", model, (LOOK,), stream=True)) == "At last."


def test_calls_that_come_slowly_are_all_waited_for(hasty: AppServer):
    calls = call("c1", "look", "{}", index=0), call("c2", "look", "{}", index=1)
    model = hasty.model(Reply([stream(created(), calls[0]), Pause(0.8), stream(calls[1], completed(usage=USAGE))]))
    seen = hasty.ask("chat", question("chat", model, (LOOK,), stream=True)).seen
    assert [call.id for call in seen.calls] == ["c1", "c2"]


def test_a_stream_that_breaks_behind_a_call_is_not_waited_for(hasty: AppServer):
    # App-server says nothing of it before the call is answered.
    model = hasty.model(Reply([stream(created(), call("c1", "look", "{}")), Pause(0.1), Cut()]), tells(Says("There.")))
    agent = AGENTS["chat"](hasty, model, ScriptedConversation((), system=""), stream=True)
    assert [call.id for call in agent.take(Step(NO_TURN, user="Go.")).calls] == ["c1"]
    assert agent.take(Step(NO_TURN, results=(Result("c1", "there"),))).text == "There."
    assert history(hasty.asked(model)[1]) == [message("user", "Go."), called("c1", "look", "{}"), result("c1", "there")]


# Logins


def token(**claims: Any) -> str:
    """A token such as ChatGPT's, signed by nobody."""
    account = {"chatgpt_plan_type": "plus", "chatgpt_user_id": "user-1", "chatgpt_account_id": "account-1"}
    body = {"email": "a@example.com", "https://api.openai.com/auth": account, "exp": 4_102_444_800, **claims}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, body)]
    return b".".join((*parts, b"c2lnbmF0dXJl")).decode()


def chatgpt(access: str, refreshed: str) -> Json:
    tokens = {"id_token": token(), "access_token": access, "refresh_token": "refresh-1", "account_id": "account-1"}
    return {"OPENAI_API_KEY": None, "tokens": tokens, "last_refresh": refreshed}


ACCESS = token(use="access")
LOGINS: dict[str, tuple[Json, str]] = {
    "key": ({"OPENAI_API_KEY": "sk-of-the-login"}, "sk-of-the-login"),
    "chatgpt": (chatgpt(ACCESS, "2099-01-01T00:00:00Z"), ACCESS),
}
ELSEWHERE = '{ model_providers = { toolwire = { base_url = "{url}" } } }'
"""The login's own server is this one."""


class Login:
    """A gateway whose worker uses the login of its user, and the words with which that goes upstream."""

    def __init__(self, stand: AppServer, name: str, key: str) -> None:
        self.stand, self.name, self.key = stand, name, key


@pytest.fixture(scope="module", params=LOGINS)
def login(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, http: httpx.Client
) -> Iterator[Login]:
    folder = tmp_path_factory.mktemp(f"login-{request.param}")
    auth, key = LOGINS[request.param]
    with running(folder, http, table("codex", overrides=ELSEWHERE), login=auth) as stand:
        yield Login(stand, request.param, key)


OWN_PROVIDER = '{ model_provider = "mine", model_providers = { mine = { name = "mine", base_url = "{url}" } } }'


def test_a_provider_of_the_operators_own_is_asked(tmp_path: Path, http: httpx.Client):
    with running(tmp_path, http, table("codex", overrides=OWN_PROVIDER)) as stand:
        model = stand.model(tells(Says("Hello.")))
        held = stand.ask("chat", question("chat", model, (), stream=False))
        assert held.seen.text == "Hello."


@DIALECTS
def test_a_login_goes_upstream_with_the_clients_tools_alone(login: Login, dialect: Name):
    model = login.stand.model(tells(Calls("c1", "look", "{}")), tells(Says("There.")))
    agent = AGENTS[dialect](login.stand, model, ScriptedConversation((), tools=(LOOK, FIND)), stream=True)
    agent.take(Step(NO_TURN, user="Go."))
    assert agent.take(Step(NO_TURN, results=(Result("c1", "there"),))).text == "There."
    first, second = login.stand.asked(model)
    assert history(first) == [message("developer", "Be brief."), message("user", "Go.")]
    assert history(second) == [*history(first), called("c1", "look", "{}"), result("c1", "there")]
    for asked in (first, second):
        assert asked.headers["authorization"] == f"Bearer {login.key}"
        assert asked.headers.get("chatgpt-account-id") == ("account-1" if login.name == "chatgpt" else None)
        assert asked.body["tools"] == [shown_tool("look", **PATH), shown_tool("find", **PATH)]


def test_a_client_without_tools_gives_a_login_none(login: Login):
    model = login.stand.model(tells(Says("Hello.")))
    login.stand.ask("chat", question("chat", model, (), stream=False))
    [asked] = login.stand.asked(model)
    assert (asked.body.get("tools") or [], history(asked)) == ([], [message("user", "Go.")])


def test_a_login_is_not_shown_to_another_server(stand: AppServer):
    model = stand.model(tells(Says("Hello.")))
    stand.ask("chat", question("chat", model, (), stream=False), "key-of-the-client")
    [asked] = stand.asked(model)
    assert "authorization" not in asked.headers


def test_a_server_with_a_key_of_its_own_gets_that(stand: AppServer):
    model = stand.model(tells(Says("Hello.")), backend="patient")
    stand.ask("chat", question("chat", model, (), stream=False), "key-of-the-client")
    [asked] = stand.asked(model)
    assert asked.headers["authorization"] == "Bearer sk-of-the-model"


class TokenServer(ThreadingHTTPServer):
    """Gives a new token for an old one."""

    def __init__(self, access: str) -> None:
        super().__init__(("127.0.0.1", 0), TokenHandler)
        self.access = access
        self.asked: list[Json] = []


class TokenHandler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        tokens = {"id_token": token(), "access_token": self.server.access, "refresh_token": "refresh-2"}
        body = json.dumps(tokens).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_token_that_was_renewed_is_kept_in_the_users_own_file(tmp_path: Path, http: httpx.Client):
    fresh = token(use="fresh")
    old = chatgpt(token(exp=1_700_000_000), "2020-01-01T00:00:00Z")
    with TokenServer(fresh) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        renewing = {"CODEX_REFRESH_TOKEN_URL_OVERRIDE": f"http://127.0.0.1:{server.server_port}/token"}
        with running(
            tmp_path, http, table("codex", overrides=ELSEWHERE, inherit=json.dumps([*renewing])), login=old, **renewing
        ) as stand:
            model = stand.model(tells(Says("Hello.")))
            stand.ask("chat", question("chat", model, (), stream=False))
            [asked] = stand.asked(model)
            assert asked.headers["authorization"] == f"Bearer {fresh}"
            assert [(home / "auth.json").is_symlink() for home in stand.homes] == [True]
        server.shutdown()
        assert [each["refresh_token"] for each in server.asked] == ["refresh-1"]
    assert json.loads((tmp_path / "home/auth.json").read_text())["tokens"]["refresh_token"] == "refresh-2"


# Many at once


def test_a_hundred_conversations_at_once_are_not_mixed_up(stand: AppServer):
    model = stand.model(echo)
    barrier = threading.Barrier(100)

    def conversation(number: int) -> list[Any]:
        client: Client = CLIENTS[number % 4]
        agent = AGENTS[client](stand, model, ScriptedConversation((), system=""), stream=number % 8 < 4)
        barrier.wait(120)
        seen = agent.take(Step(NO_TURN, user=f"token-{number:03}"))
        answer = agent.take(Step(NO_TURN, results=(Result(seen.calls[0].id, f"result-{number:03}"),)))
        return [(call.name, call.arguments) for call in seen.calls] + [answer.text]

    with ThreadPoolExecutor(100) as pool:
        told = list(pool.map(conversation, range(100)))
    for number, said in enumerate(told):
        assert said == [("look", f'{{"path":"token-{number:03}"}}'), f"token-{number:03} result-{number:03}"]
    threads: dict[str, set[str]] = {}
    for asked in stand.asked(model):
        threads.setdefault(thread_of(asked), set()).update(re.findall(r"token-\d+", json.dumps(asked.body["input"])))
    assert [len(tokens) for tokens in threads.values()] == [1] * 100
    assert len(stand.asked(model)) == 200


def echo(asked: Asked) -> Reply:
    """Calls a tool with the user's token, and then says the token and the result."""
    items = history(asked)
    token = items[0]["content"][0]["text"]
    if items[-1]["type"] == "function_call_output":
        return tells(Says(f"{token} {items[-1]['output']}"))
    return tells(Calls(f"call_{token}", "look", json.dumps({"path": token}, separators=(",", ":"))))


# What workers leave behind


def test_no_word_of_a_conversation_is_on_disk(stand: AppServer):
    words = {role: f"secret-{role}-5f1c" for role in ("system", "user", "arguments", "result", "answer", "thought")}
    calling = tells(Thinks(words["thought"], "signed"), Calls("c1", "look", json.dumps({"path": words["arguments"]})))
    model = stand.model(calling, Reply([stream(created(), text_begun(words["answer"])), Hold()]))
    agent = AGENTS["chat"](stand, model, ScriptedConversation((), system=words["system"]), stream=True)
    agent.take(Step(NO_TURN, user=words["user"]))
    assert traces(stand, words) == []
    body = agent.request(Step(NO_TURN, results=(Result("c1", words["result"]),)))
    with stand.stream("chat", body) as lines:
        until(lines, words["answer"])
        assert traces(stand, words) == []
    assert traces(stand, words) == []


def traces(stand: AppServer, words: dict[str, str]) -> list[tuple[str, str]]:
    """The files of workers that hold one of these words."""
    found: list[tuple[str, str]] = []
    assert stand.homes
    for path in (path for home in stand.homes for path in home.rglob("*") if path.is_file()):
        data = path.read_bytes()
        found += [(path.name, name) for name, word in words.items() if word.encode() in data]
    return found
