"""Which turns are a conversation, what it shows of them, and where the prompt cache broke."""

# pyright: reportArgumentType=false, reportUnknownVariableType=false

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any, cast

import httpx
import msgspec
import pytest

from tests.support.console import ConsoleClient
from tests.support.fleet import until
from tests.support.frames import call, completed, created, stream, text
from tests.support.gateway import Gateway, backend, chat_body, response_body, tool
from tests.support.upstream import Reply, Upstream
from toolwire.config.settings import Settings
from toolwire.gateway.console import handlers, prompts
from toolwire.gateway.console.access import Viewer
from toolwire.gateway.console.content import pack
from toolwire.gateway.console.conversations import (
    ConversationTurn,
    compare_prompts,
    group_turns,
    locate_difference,
    make_timeline,
    make_version,
    summarize,
)
from toolwire.gateway.console.handlers import Handlers
from toolwire.gateway.console.prompts import make_prompt, read_segment
from toolwire.gateway.console.recorder import TurnRecorder
from toolwire.gateway.console.ring import RecordedTurn
from toolwire.gateway.console.rows import TurnRow
from toolwire.gateway.console.secrets import remove_secrets
from toolwire.gateway.console.trace import TurnTrace
from toolwire.gateway.log import Log
from toolwire.gateway.memory_budget import MemoryBudget
from toolwire.gateway.process import Process
from toolwire.turns.observers import AttemptInfo

Json = dict[str, Any]
WEATHER = [tool("get_weather", city={"type": "string"})]

_moments = itertools.count(1.0)


def kept(
    body: Json, answer: Json | None = None, dialect: str = "chat", sent: Json | None = None, **facts: Any
) -> RecordedTurn:
    """A turn with this request, and what a backend was sent for it."""
    at = next(_moments)
    row = TurnRow(f"turn-{at:.0f}", at, dialect, **{"model": "m", "status": 200, **facts})
    trace = TurnTrace(row.id, {}, MemoryBudget(10**9))
    trace.keeps = True
    trace.receive(msgspec.json.encode({"model": "m", **body}))
    if sent is not None:
        trace.attempt(AttemptInfo("up", dialect, "m")).sent.append(
            (trace.began, "/", msgspec.json.encode({"model": "m", **sent}))
        )
    if answer is not None:
        trace.write([msgspec.json.encode(answer)])
    return RecordedTurn(row, "o", packed=pack(remove_secrets(trace, row, [], ())))


def member(turn: RecordedTurn) -> ConversationTurn:
    return ConversationTurn(turn.row, make_prompt(turn.packed, turn.row))


def chat(*messages: Json, answer: Json | None = None, max_tokens: int = 100, **facts: Any) -> ConversationTurn:
    said = {"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]} if answer else None
    return member(kept({"model": "m", "messages": messages, "max_tokens": max_tokens}, said, **facts))


def user(words: str) -> Json:
    return {"role": "user", "content": words}


def model(words: str | None, *calls: tuple[str, str]) -> Json:
    made = [{"id": id, "type": "function", "function": {"name": "look", "arguments": given}} for id, given in calls]
    return {"role": "assistant", "content": words, **({"tool_calls": made} if made else {})}


def result(id: str, words: str) -> Json:
    return {"role": "tool", "tool_call_id": id, "content": words}


def sizes(*members: ConversationTurn) -> list[int]:
    return sorted(map(len, group_turns(members)))


HI, HELLO, MORE = user("Hi"), model("Hello."), user("More")


# Which turns belong together


def test_a_history_that_goes_on_is_one_conversation():
    assert sizes(chat(HI), chat(HI, HELLO, MORE), chat(HI, HELLO, MORE, HELLO, HI)) == [3]


def test_two_turns_that_say_the_same_are_two_conversations():
    assert sizes(chat(HI), chat(HI)) == [1, 1]


def test_sessions_that_begin_with_the_same_words_are_apart():
    one = [chat(HI, session="1"), chat(HI, HELLO, MORE, session="1")]
    two = [chat(HI, session="2"), chat(HI, HELLO, MORE, session="2")]
    assert sizes(*one, *two) == [2, 2]


def test_a_turn_without_a_session_joins_one_of_two_and_never_both():
    first, between, last = chat(HI, session="1"), chat(HI, HELLO, MORE), chat(HI, HELLO, MORE, HELLO, HI, session="2")
    assert sizes(first, between) == [2]
    assert sizes(first, between, last) == [1, 2]
    assert sizes(chat(HI, session="1"), chat(HI, session="2"), chat(HI, HELLO, MORE)) == [1, 2]


def test_a_session_finds_the_turn_without_one_though_another_session_said_the_same_later():
    begun, other = chat(HI), chat(HI, session="2")
    assert [len(each) for each in group_turns([begun, other, chat(HI, HELLO, MORE, session="1")])] == [2, 1]


def test_a_cache_key_joins_turns_but_not_sessions():
    def keyed(words: str, session: str = "") -> ConversationTurn:
        return member(kept({"messages": [user(words)], "prompt_cache_key": "app"}, session=session))

    assert sizes(keyed("a"), keyed("b")) == [2]
    assert sizes(keyed("a", "1"), keyed("b", "2"), keyed("c", "1")) == [1, 2]


def test_keys_are_apart():
    assert sizes(chat(HI, key="ann"), chat(HI, HELLO, MORE, key="bob")) == [1, 1]


def test_the_end_of_a_stored_history_joins_by_its_response_alone():
    first = member(kept({"input": "Begin"}, dialect="responses"))
    second = member(kept({"input": "Go on", "previous_response_id": f"resp_{first.row.id}"}, dialect="responses"))
    stranger = member(kept({"input": [user("Go on"), HELLO, MORE]}, dialect="responses"))
    assert [len(each) for each in group_turns([first, second, stranger])] == [1, 2]


def test_replays_are_left_out_and_turns_of_the_form_are_not():
    first, form = chat(HI), chat(HI, HELLO, MORE, replay_of="form")
    assert sizes(first, form, chat(HI, HELLO, MORE, replay_of=first.row.id)) == [2]


def test_a_message_without_text_has_a_title():
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}
    assert summarize([chat(image)])["title"] == "(no text)"
    assert summarize([chat(image), chat(image, HELLO, MORE)])["title"] == "More"
    assert make_timeline([chat(image)])[0]["asked"]["text"] == "(no text)"
    assert summarize([chat(HI)])["title"] == "Hi"


# What a person asked, and what a client asks beside it

REMINDER = "<system-reminder>\nToday is Monday.\n</system-reminder>"
ENVIRONMENT = "<environment_context>\n  <cwd>/home/me</cwd>\n</environment_context>"
AGENTS = "# AGENTS.md instructions for /home/me\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>"
CLAUDE_TITLE = (
    "You are naming a coding session so the user can pick it out of a long list of sessions. The title is a name for"
    " what the session is about."
)
COMPACTION = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM that will resume the"
    " task.\n\nInclude:\n- Current progress and key decisions made"
)


def texts(*words: str) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": each} for each in words]}


def codex(*entries: Json, **facts: Any) -> ConversationTurn:
    rules = {"role": "developer", "content": "You are Codex. Summarize the session when you are asked to."}
    return member(kept({"input": [rules, *entries], "tools": [{"type": "function", "name": "exec"}]}, None, "responses", session="s", **facts))  # fmt: skip


def claude(*messages: Json, system: str = "", **fields: Any) -> ConversationTurn:
    body = {"messages": messages, "system": system, "max_tokens": 32_000, **fields}
    return member(kept(body, None, "messages", session="s"))


def test_a_conversation_has_the_first_words_of_a_person_as_its_title():
    first = codex(user(AGENTS), user(ENVIRONMENT), user("Run echo."))
    later = codex(user(AGENTS), user(ENVIRONMENT), user("Run echo."), model("Done."), user(ENVIRONMENT), user("Again."))
    assert summarize([first, later])["title"] == "Run echo."
    assert [each["asked"]["text"] for each in make_timeline([first, later])] == ["Run echo.", "Again."]
    first = claude(texts(REMINDER, "Fix the bug.", REMINDER))
    assert summarize([first])["title"] == "Fix the bug."
    assert make_timeline([first])[0]["asked"] == {"text": "Fix the bug.", "size": 12, "cut": False}


def test_a_message_that_only_the_client_wrote_asks_nothing_new():
    called = model(None, ("c1", "{}"))
    [shown] = make_timeline([chat(HI, called, result("c1", "A tree."), user(REMINDER))])
    assert (shown["asked"], shown["brought"]) == (None, 1)


SIDES = {
    "title": claude(user("Fix the bug."), system=CLAUDE_TITLE),
    "title in a schema": claude(user("Fix it."), output_config={"format": {"type": "json_schema", "schema": {
        "type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}}}),
    "title in a message": chat(user("### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\nJSON")),
    "summary": codex(user("Fix the bug."), model("Done."), user(COMPACTION)),
    "probe": claude(user("quota"), max_tokens=1),
    "warm-up": claude(user("Warmup"), tools=[{"name": "Read", "input_schema": {"type": "object"}}]),
    "warm-up of a socket": codex(warm_up=True),
    "suggestion": chat(user("### Task:\nSuggest 3-5 relevant follow-up questions that the user might naturally ask next in this conversation.\n")),
}  # fmt: skip


@pytest.mark.parametrize("name", SIDES)
def test_what_a_client_asks_beside_a_conversation_is_recognised(name: str):
    assert SIDES[name].prompt.side == name.split(" ", maxsplit=1)[0]


@pytest.mark.parametrize(
    "turn",
    [
        chat(user("Suggest a title for my book.")),
        chat(user("Summarize the conversation so far.")),
        codex(user("Write a summary of this chat.")),
        claude(user("Write a title."), system=f"You are an agent. {CLAUDE_TITLE}", tools=[{"name": "Read", "input_schema": {}}]),
        chat(user("Who are you?"), max_tokens=2),
    ],
)  # fmt: skip
def test_what_a_person_asks_is_no_side_request(turn: ConversationTurn):
    assert turn.prompt.side == ""


def test_side_requests_are_counted_apart_and_name_no_conversation():
    first = claude(user("Fix the bug."), system="You are an agent.")
    turns = [SIDES["probe"], SIDES["title"], first, claude(user("Fix the bug."), model("Done."), user("Thanks."))]
    found = summarize(turns)
    assert (found["title"], found["turns"], found["side_requests"]) == ("Fix the bug.", 2, 2)
    assert [each["side"] for each in make_timeline(turns)] == ["probe", "title", "", ""]
    alone = summarize([SIDES["title"]])
    assert (alone["title"], alone["turns"], alone["side_requests"]) == ("Fix the bug.", 1, 0)


def test_only_prompts_of_one_kind_are_compared():
    first = claude(user("Fix the bug."), system="You are an agent.")
    subagent = claude(user("Find the tests."), system="You search.")
    second = claude(user("Fix the bug."), model("Done."), user("Thanks."), system="You are an agent.")
    assert compare_prompts(first, [SIDES["probe"], SIDES["title"]]) is None
    assert compare_prompts(subagent, [first]) is None
    assert state(second, first, SIDES["title"], subagent) == {
        "against": first.row.id,
        "shared": sum(first.prompt.context.values()),
        "before": sum(first.prompt.context.values()),
        "broken": False,
    }


def test_a_conversation_that_changes_has_another_make_version():
    first, second = chat(HI), chat(HI, HELLO, MORE)
    before = make_version([first])
    assert before == make_version([first]) != make_version([first, second])
    first.row.seq += 1
    assert make_version([first]) != before


# The prompt cache


def state(own: ConversationTurn, *earlier: ConversationTurn) -> Json:
    found = compare_prompts(own, earlier)
    assert found is not None
    return found


def test_the_same_prompt_or_the_beginning_of_one_breaks_nothing():
    long = chat(HI, HELLO, MORE)
    assert not state(chat(HI, HELLO, MORE), long)["broken"]
    shorter = state(chat(HI), long)
    assert (shorter["broken"], shorter["shared"] < shorter["before"]) == (False, True)


def test_a_prompt_is_compared_with_the_one_it_goes_on_with():
    short, long, side = chat(HI, HELLO), chat(HI, HELLO, MORE, HELLO), chat(MORE)
    assert state(chat(HI, HELLO, user("Other")), short, long, side) == {
        "against": short.row.id,
        "shared": sum(short.prompt.context.values()),
        "before": sum(short.prompt.context.values()),
        "broken": False,
    }
    assert state(chat(HI, HELLO, MORE, user("x")), short, long)["broken"]


def test_a_broken_cache_is_found_to_the_byte():
    one, two = (kept({"messages": [HI, {"role": "assistant", "content": words}, MORE]}) for words in ("aé1", "aé2"))
    found = state(member(two), member(one))
    assert (found["broken"], found["segment"], found["byte"]) == (True, 1, len('{"role":"user","content":"Hi"}'))
    segments = [read_segment(each.packed, "chat", found["segment"]) for each in (two, one)]
    assert segments[0] is not None
    assert segments[1] is not None
    where = locate_difference(*segments)
    assert (where["part"], where["label"]) == ("history", "assistant 2")
    assert where["at"] == len('{"role":"assistant","content":"aé'.encode())
    assert (where["now"][-3:], where["was"][-3:]) == ('2"}', '1"}')


@pytest.mark.parametrize(
    "stored",
    [
        {"role": "user", "content": "Hi", "id": "msg_1", "status": "completed"},
        {"id": "msg_1", "type": "message", "role": "user", "content": "Hi", "status": "completed"},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}], "id": "msg_1"},
    ],
)
def test_what_the_gateway_adds_to_a_stored_message_breaks_nothing(stored: Json):
    def given(*messages: Json) -> ConversationTurn:
        return member(kept({"input": []}, None, "responses", {"input": messages}))

    assert not state(given(stored, MORE), given(HI))["broken"]
    assert sizes(
        member(kept({"input": [HI]}, None, "responses")), member(kept({"input": [stored, MORE]}, None, "responses"))
    ) == [2]


def test_references_are_resolved_in_what_the_backend_was_sent():
    def given(*messages: Json) -> ConversationTurn:
        reference: Json = {"input": [{"type": "item_reference", "id": "msg_1"}]}
        return member(kept(reference, None, "responses", {"input": messages}))

    assert state(given(HI, model("No.")), given(HI, HELLO))["broken"]
    assert not state(given(HI, HELLO, MORE), given(HI, HELLO))["broken"]
    assert make_timeline([given(HI)])[0]["asked"]["text"] == "Hi"


def test_nothing_is_said_of_the_cache_where_only_the_store_has_an_item():
    one, two = (member(kept({"input": [{"type": "item_reference", "id": id}]}, None, "responses")) for id in "ab")
    assert compare_prompts(two, [one]) is None


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_nothing_is_said_of_the_cache_where_a_store_has_the_history(field: str):
    first = member(kept({"input": "Begin"}, None, "responses"))
    partial = member(kept({"input": "Go on", field: "x_1"}, None, "responses"))
    whole = member(kept({"input": "Go on", field: "x_1"}, None, "responses", {"input": [user("Begin"), user("Go on")]}))
    assert compare_prompts(partial, [first]) is None
    assert compare_prompts(first, [partial]) is None
    assert not state(whole, partial, first)["broken"]
    shown = make_timeline([first, partial, whole])
    assert [each["context"] is None for each in shown] == [False, True, False]
    assert shown[1]["added"] > 0


# What a conversation shows


def test_a_turn_shows_what_was_new_in_it():
    called = model("Let me look.", ("c1", '{"at":"here"}'))
    first, second, third = make_timeline(
        [
            chat(HI, answer=called, call_count=1),
            chat(HI, called, result("c1", "A tree."), answer=model("There is a tree.")),
            chat(HI, called, result("c1", "A tree."), HELLO, MORE),
        ]
    )
    assert (first["asked"]["text"], first["brought"], first["answer"]["text"]) == ("Hi", 0, "Let me look.")
    [made] = first["calls"]
    assert made["arguments"] == {"text": '{"at":"here"}', "size": 13, "cut": False}
    assert made["result"] == {"text": "A tree.", "size": 7, "cut": False}
    assert made["result_turn"] == second["row"]["id"]
    assert (second["asked"], second["brought"], second["answer"]["text"]) == (None, 1, "There is a tree.")
    assert (third["asked"]["text"], third["brought"]) == ("More", 0)


def test_results_beside_text_in_one_message_are_both_shown():
    content = [{"type": "tool_result", "tool_use_id": "c1", "content": "A tree."}, {"type": "text", "text": "Go on."}]
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
    [shown] = make_timeline(
        [member(kept({"messages": [HI, use, {"role": "user", "content": content}]}, None, "messages"))]
    )
    assert (shown["asked"]["text"], shown["brought"]) == ("Go on.", 1)
    only = [HI, use, {"role": "user", "content": content[:1]}]
    [shown] = make_timeline([member(kept({"messages": only}, None, "messages"))])
    assert (shown["asked"], shown["brought"]) == (None, 1)


def test_results_that_stand_behind_their_calls_are_all_found():
    def made(id: str) -> Json:
        return {"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"}

    def brought(id: str) -> Json:
        return {"type": "function_call_output", "call_id": id, "output": f"of {id}"}

    answer = {"id": "r", "status": "completed", "output": [{"id": f"fc_{id}", **made(id)} for id in "ab"]}
    first = member(kept({"input": [HI]}, answer, "responses", call_count=2))
    given = [HI, made("a"), brought("a"), made("b"), brought("b")]
    shown = make_timeline([first, member(kept({"input": given}, None, "responses"))])
    assert [each["result"]["text"] for each in shown[0]["calls"]] == ["of a", "of b"]
    assert shown[1]["brought"] == 2


def test_many_calls_and_results_are_shown_up_to_a_bound():
    made = [(f"c{number}", '{"x":"' + "y" * 600 + '"}') for number in range(250)]
    called = model(None, *made)
    results = [result(id, f"of {id}") for id, _ in made]
    first, second = make_timeline([chat(HI, answer=called, call_count=250), chat(HI, called, *results)])
    assert (len(first["calls"]), first["more_calls"]) == (200, 50)
    assert first["calls"][100]["result"]["text"] == "of c100"
    assert first["calls"][0]["arguments"] == {"text": made[0][1][:500], "size": 608, "cut": True}
    assert second["brought"] == 250


def test_a_long_text_is_cut_and_says_so():
    called = model("z" * 5000, ("c1", "{}"))
    turns = [chat(user("q" * 3000), answer=called), chat(user("q" * 3000), called, result("c1", "r" * 33_007))]
    shown = make_timeline(turns)[0]
    assert [(len(each["text"]), each["size"], each["cut"]) for each in (shown["asked"], shown["answer"])] == [
        (2000, 3000, True),
        (2000, 5000, True),
    ]
    found = shown["calls"][0]["result"]
    assert (len(found["text"]), found["size"], found["cut"]) == (2000, 33_007, True)


def test_a_result_that_is_only_repeated_has_its_size():
    ids = [f"c{number}" for number in range(20)]
    called = model(None, *((id, "{}") for id in ids))
    after = chat(HI, called, *(result(id, "r" * 10) for id in ids), HELLO, MORE)
    first = make_timeline([chat(HI, answer=called, call_count=20), after])[0]
    assert first["calls"][0]["result"] == {"text": "", "size": 10, "cut": True}
    assert first["calls"][-1]["result"]["text"] == "r" * 10


def test_a_call_without_a_result_has_none():
    [shown] = make_timeline([chat(HI, answer=model(None, ("c1", "{}")))])
    assert shown["calls"][0]["result"] is None


def test_calls_of_an_answer_that_is_not_kept_have_their_names():
    [shown] = make_timeline([chat(HI, calls=("look", "go"), call_ids=("c1", "c2"), call_count=40)])
    assert [each["name"] for each in shown["calls"]] == ["look", "go"]
    assert shown["more_calls"] == 38


# What it costs


def test_a_prompt_is_made_once_and_counts_with_its_turn(monkeypatch: pytest.MonkeyPatch):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        recorder = TurnRecorder(Settings(), "t" * 40, Process("v"), Log("info", loop))
        recorder.ring.add(kept({"messages": [user(f"{number}")]}) for number in range(50))
        asked = Handlers(Settings(), recorder, cast("Any", None), cast("Any", None))
        before = recorder.ring.size
        first = await asked.prompts(Viewer(sees_all=True))
        assert len(first) == 50
        assert recorder.ring.size == before + sum(turn.prompt.size for turn in recorder.ring if turn.prompt)
        monkeypatch.setattr(handlers, "make_prompt", None)
        assert await asked.prompts(Viewer(sees_all=True)) == first

    asyncio.run(main())


def test_a_prompt_goes_between_processes_as_it_is():
    given = chat(HI, HELLO, MORE, answer=HELLO)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins((given.row, given.prompt))))
    assert msgspec.convert(sent, tuple[TurnRow, prompts.TurnPrompt]) == (given.row, given.prompt)


# With a gateway


@pytest.fixture(scope="module")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    server = Gateway(tmp_path_factory.mktemp("conversations"), backend(upstream.url))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def console(gateway: Gateway) -> Iterator[ConsoleClient]:
    with ConsoleClient(gateway) as client:
        yield client


def ask(gateway: Gateway, body: Json, path: str, **headers: str) -> Json:
    return httpx.post(gateway.url + path, json=body, headers=headers, timeout=90, trust_env=False).json()


def opened(console: ConsoleClient, title: str, turns: int) -> Json:
    """A conversation that begins so, once it has so many turns."""

    def found() -> Any:
        return [each for each in console.get("conversations") if (each["title"], each["turns"]) == (title, turns)]

    return console.get(f"conversations/{until(found)[0]['id']}")


def test_a_chain_of_stored_responses_keeps_its_cache(gateway: Gateway, upstream: Upstream, console: ConsoleClient):
    upstream.replies["chain"] = [
        Reply([stream(created(), text("Let me look."), call("c1", "get_weather", '{"city":"Rome"}'), completed())]),
        Reply([stream(created(), text("Sunny."), completed())]),
        Reply([stream(created(), text("Bye."), completed())]),
        Reply([stream(created(), text("Bye again."), completed())]),
    ]
    previous: Json = {}
    output = {"type": "function_call_output", "call_id": "c1", "output": "24 degrees"}
    for given in ("Weather in Rome?", [output], [user("Thanks.")], "Goodbye."):
        body = {"model": "up/chain", "input": given, "instructions": "Be brief.", **previous}
        previous = {"previous_response_id": ask(gateway, body, "/v1/responses")["id"]}
    turns = opened(console, "Weather in Rome?", 4)["turns"]
    assert [turn["cache"] and turn["cache"]["broken"] for turn in turns] == [None, False, False, False]
    assert all(turn["context"]["system"] for turn in turns)
    assert [turn["answer"]["text"] for turn in turns] == ["Let me look.", "Sunny.", "Bye.", "Bye again."]
    assert turns[0]["calls"][0]["result"]["text"] == "24 degrees"
    assert [turn["asked"] and turn["asked"]["text"] for turn in turns][1:] == [None, "Thanks.", "Goodbye."]


def test_a_chain_on_the_demo_says_that_the_store_has_its_history(gateway: Gateway, console: ConsoleClient):
    first = ask(gateway, response_body("demo", "On the demo."), "/v1/responses")
    ask(gateway, response_body("demo", "It goes on.", previous_response_id=first["id"]), "/v1/responses")
    turns = opened(console, "On the demo.", 2)["turns"]
    assert [(turn["cache"], turn["context"] is None) for turn in turns] == [(None, False), (None, True)]


def test_two_sessions_of_claude_code_are_two_conversations(gateway: Gateway, console: ConsoleClient):
    for session in ("one", "two"):
        history = [user("Sessions begin alike.")]
        for _ in range(2):
            body = {"model": "demo", "max_tokens": 100, "messages": history}
            said = ask(gateway, body, "/v1/messages", **{"x-claude-code-session-id": session})
            history = [*history, {"role": "assistant", "content": said["content"]}, user("Go on.")]

    def found() -> bool:
        return [each["turns"] for each in console.get("conversations") if each["title"].startswith("Sessions")] == [
            2,
            2,
        ]

    until(found)


def test_a_page_that_has_a_conversation_is_sent_no_more_than_its_make_version(gateway: Gateway, console: ConsoleClient):
    message = ask(gateway, chat_body("demo", messages=[user("Once.")]), "/v1/chat/completions")["choices"][0]["message"]
    first = opened(console, "Once.", 1)
    id, known = first["overview"]["id"], first["version"]
    assert console.get(f"conversations/{id}?unless={known}") == {"version": known}
    ask(gateway, chat_body("demo", messages=[user("Once."), message, user("Twice.")]), "/v1/chat/completions")
    opened(console, "Once.", 2)
    later = console.get(f"conversations/{id}?unless={known}")
    assert len(later["turns"]) == 2
