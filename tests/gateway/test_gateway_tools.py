"""Tools that the gateway runs itself, on every route: the model is told all of it, the client sees the answer alone."""

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.support import processes
from tests.support.backend_writers import STREAMED, refusal, reply
from tests.support.checked import responses_faults
from tests.support.client_readers import PATHS, Refused, shape_faults
from tests.support.conversations import AGENTS, CLIENTS, Client, Result, ScriptedConversation, Step, Strict, dialect_of
from tests.support.gateway import PROXIES, Gateway, Responses, backend, read_sse, text_of
from tests.support.routes import Routes, backends, question
from tests.support.scripts import (
    FIND,
    KINDS,
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
    truth,
)
from tests.support.transcripts import Model, Tools, User, declared, expected, transcript
from tests.support.upstream import Hold, Pause, Reply, Upstream
from toolwire.config.settings import SettingsError
from toolwire.gateway.tools.tools import load_servers, load_tool
from toolwire.turns.tools.repeats import WARNING

Json = dict[str, Any]
PATIENCE = 90
MCP_SERVER = Path(__file__).parent.parent / "agent" / "mcp_server.py"

SHED = '''
import asyncio, time
from functools import partial
from pathlib import Path
from toolwire.turns.tools.registry import tool

def weather(city: str) -> str:
    """The weather in a city."""
    return f"18 degrees in {city}"

async def look(path: str = "") -> str:
    """A tool that clients have too."""
    return "the gateway has looked"

def fails() -> str:
    raise RuntimeError("no such luck")

@tool(parallel=True)
async def takes(folder: str, number: int, count: int) -> int:
    """Begin beside all the others, and end after the one that comes next."""
    marks = Path(folder)
    (marks / f"begun {number}").touch()
    while len(list(marks.glob("begun *"))) < count or not (number + 1 == count or (marks / f"ended {number + 1}").exists()):
        await asyncio.sleep(0.005)
    (marks / f"ended {number}").touch()
    return number

async def hangs(mark: str) -> str:
    """Never end. The file `mark` tells what becomes of it."""
    Path(mark).write_text("begun")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        Path(mark).write_text("cancelled")
        raise
    return "done"

def sleeps(mark: str) -> str:
    """Take long, and be nothing that could be cancelled."""
    Path(mark).write_text("begun")
    while not Path(f"{mark} over").exists():
        time.sleep(0.01)
    return "done"

def times_out() -> str:
    raise TimeoutError("the sky is silent")

def marks(mark: str) -> str:
    """Tell that it ran."""
    Path(mark).write_text("ran")
    return "marked"

def bare(*values: int) -> str:
    return ""

number = 1
plain = partial(weather, "Rome")

class Half:
    name = "half"
    async def run(self, call, context): ...

half = Half()
'''
TOOLS = ("weather", "look", "fails", "takes", "hangs", "marks", "times_out")
OWN = f"[gateway_tools]\ntools = {json.dumps([f'shed:{name}' for name in TOOLS])}\nmax_turns = 4\n"
ROME, OSLO = Calls("call_a", "weather", '{"city":"Rome"}'), Calls("call_b", "weather", '{"city":"Oslo"}')
IN_ROME, IN_OSLO = Result("call_a", "18 degrees in Rome"), Result("call_b", "18 degrees in Oslo")
SEEK, PEEK = Calls("call_f", "find", '{"q": [1]}'), Calls("call_g", "find", "{}")
FOUND, SPOTTED = Result("call_f", "It is here."), Result("call_g", "Over there.")

ROUTES = [
    pytest.param(dialect, kind, stream, id=f"{dialect}-{kind}-{way}")
    for dialect in NAMES
    for kind in KINDS
    for way, stream in (("streamed", True), ("plain", False))
]
TALKERS = [
    pytest.param(client, kind, stream, id=f"{client}-{kind}-{way}")
    for client in CLIENTS
    for kind in KINDS
    for way, stream in (("streamed", True), ("plain", False))
]
WAYS = [
    pytest.param(dialect, stream, id=f"{dialect}-{way}")
    for dialect in NAMES
    for way, stream in (("streamed", True), ("plain", False))
]


def then(*items: Any) -> Script:
    return Script(items)


DONE = then(Says("It is mild."))


@pytest.fixture(scope="module")
def shed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tools."""
    folder = tmp_path_factory.mktemp("shed")
    (folder / "shed.py").write_text(SHED)
    return folder


def served(folder: Path, shed: Path, config: str) -> Gateway:
    return Gateway(folder, config, PYTHONPATH=str(shed))


@pytest.fixture(scope="module")
def own(
    upstream: Upstream, http: httpx.Client, shed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Routes]:
    """One gateway with tools of its own and a backend of every kind; `again` asks twice, `compacting` compacts."""
    again = f'[[backends]]\nname = "again"\nkind = "chat"\nbase_url = "{upstream.url}"\nretries = 1\n'
    compacting = backend(upstream.url, "compacting", profile="{ compacts = true }")
    gateway = served(tmp_path_factory.mktemp("own"), shed, OWN + backends(upstream.url) + again + compacting)
    yield Routes(gateway, upstream, http)
    gateway.stop()


@pytest.fixture(scope="module")
def guarded(
    upstream: Upstream, http: httpx.Client, shed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Routes]:
    """One that knows its clients, and speaks up soon."""
    keys = "".join(f'[[keys]]\nname = "{name}"\nkey = "{name}-key"\n' for name in ("alice", "bob"))
    pace = "[server]\nkeepalive = 0.1\ncommit_after = 0.1\n"
    gateway = served(tmp_path_factory.mktemp("guarded"), shed, pace + keys + OWN + backends(upstream.url))
    yield Routes(gateway, upstream, http)
    gateway.stop()


class RawFrame:
    """A service that tells these turns, under a name of its own."""

    def __init__(self, upstream: Upstream, name: str, kind: Name, turns: tuple[Script, ...], *, stream: bool) -> None:
        self.service = Strict(kind, list(turns), stream=stream)
        self.kind: Name = kind
        self.name = name
        self.model = f"{kind}/{name}"
        upstream.replies[name] = self.service

    def transcript(self, place: int = -1) -> list[Any]:
        return transcript(self.kind, self.service.bodies[place])

    def declared(self, place: int = 0) -> list[str]:
        return declared(self.service.bodies[place])


@pytest.fixture
def tells(own: Routes, request: pytest.FixtureRequest) -> Callable[..., RawFrame]:
    def tell(kind: Name, *turns: Script, stream: bool = False) -> RawFrame:
        return RawFrame(own.upstream, request.node.name, kind, turns, stream=stream)

    return tell


def seen_of(*turns: Script, dialect: Name, kind: Name, stream: bool) -> Seen:
    """What a client must see of turns that are one to it: without our calls, and with all their tokens."""
    items: list[Any] = []
    for turn in turns:
        shown = [item for item in turn.items if not (isinstance(item, Calls) and item.name in TOOLS)]
        words = next((place for place, item in enumerate(shown) if isinstance(item, Says)), None)
        is_apart = dialect == "responses" or (dialect, kind) == ("chat", "responses")  # messages are anyway
        if words is not None and not is_apart and any(isinstance(item, Says) for item in items):
            shown.insert(words, Says("\n\n"))
        items += shown
    used = [turn.tokens for turn in turns if turn.tokens is not None]
    tokens = Tokens(*(sum(getattr(each, name) for each in used) for name in Tokens.__struct_fields__))
    seen = truth(Script(tuple(items), turns[-1].end, tokens), dialect, kind, stream=stream)
    # Where the signature is on a call, it is not shown.
    signed = sum(truth(turn, dialect, kind, stream=stream).signed for turn in turns)
    return msgspec.structs.replace(seen, signed=signed)


def gateway_calls(*calls: Calls) -> Model:
    return Model((), "", tuple((place, call.name, call.arguments) for place, call in enumerate(calls)))


# Our calls alone


@pytest.mark.parametrize(("dialect", "kind", "stream"), ROUTES)
def test_the_client_sees_only_the_answer(own: Routes, tells: Any, dialect: Name, kind: Name, stream: bool):
    first = Script((ROME,), tokens=Tokens(10, 6, 3, 0, 2))
    last = Script(DONE.items, tokens=Tokens(30, 5, 8, 0, 1))
    service = tells(kind, first, last, stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (FIND,), stream=stream))
    assert held.seen == seen_of(first, last, dialect=dialect, kind=kind, stream=stream)
    assert (held.seen.text, held.seen.finish, held.seen.calls) == ("It is mild.", "stop", ())
    assert held.seen.tokens == Tokens(40, 11, 11, 0, 3)
    assert shape_faults(held, dialect, stream=stream) == []
    assert service.declared(0) == service.declared(1) == ["find", *TOOLS]
    assert service.transcript() == [User("Go."), gateway_calls(ROME), Tools(((0, IN_ROME.text, False, False),))]


@pytest.mark.parametrize(("dialect", "stream"), WAYS)
def test_the_demo_model_uses_them(own: Routes, dialect: Name, stream: bool):
    body = question(dialect, "demo", (), stream=stream)
    asked = "What is the weather in Rome?"
    if dialect == "gemini":
        body["contents"][0]["parts"] = [{"text": asked}]
    else:
        body["input" if dialect == "responses" else "messages"][0]["content"] = asked
    held = own.ask(dialect, body)
    assert (held.seen.text, held.seen.finish) == ("According to weather: 18 degrees in Rome", "stop")
    assert held.seen.calls == ()
    assert shape_faults(held, dialect, stream=stream) == []


@pytest.mark.parametrize(("client", "kind", "stream"), TALKERS)
def test_several_rounds_are_one_turn(own: Routes, tells: Any, client: Client, kind: Name, stream: bool):
    """Words before a call come once, and thoughts go back with their signatures; the next question follows the answer."""
    rounds = (
        then(Thinks("Hm.", "S1"), Says("First Rome. "), ROME),
        then(Thinks("Well.", "S2"), Says("Then Oslo. "), OSLO, Calls("call_c", "fails", "{}")),
        then(Says("Both are mild.")),
    )
    failed = Result("call_c", "RuntimeError: no such luck", failed=True)
    as_told = ScriptedConversation((Step(rounds[0], "Go."), Step(rounds[1], results=(IN_ROME,)), Step(rounds[2], results=(IN_OSLO, failed))))  # fmt: skip
    service = tells(kind, *rounds, DONE, stream=stream)
    agent = AGENTS[client](own, service.model, ScriptedConversation((), thinks=True, tools=(FIND,)), stream=stream)
    assert agent.take(Step(DONE, "Go.")) == seen_of(*rounds, dialect=dialect_of(client), kind=kind, stream=stream)
    for place in range(3):
        assert service.transcript(place) == expected(as_told, client, kind, until=place)
    agent.take(Step(DONE, "Thanks."))
    texts = [line.text for line in service.transcript() if isinstance(line, Model)]
    assert "".join(texts).split() == ["First", "Rome.", "Then", "Oslo.", "Both", "are", "mild."]
    assert service.transcript()[-1] == User("Thanks.")


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        ("Let me see.", "It is mild.", "Let me see.\n\nIt is mild."),
        ("Let me see.\n", "It is mild.", "Let me see.\n\nIt is mild."),
        ("Let me see.\n\n\n", "It is mild.", "Let me see.\n\n\nIt is mild."),
        ("Let me see.", "\n\n\nIt is mild.\n\nVery.", "Let me see.\n\nIt is mild.\n\nVery."),
        ("Let me see.", "\n\n", "Let me see."),
        ("\n", "It is mild.", "\nIt is mild."),
    ],
    ids=["none", "half", "there", "later", "nothing", "nothing before"],
)
@pytest.mark.parametrize(("dialect", "stream"), [way for way in WAYS if way.values[0] != "responses"])
def test_a_blank_line_parts_the_words_of_two_rounds(
    own: Routes, tells: Any, dialect: Name, stream: bool, first: str, last: str, text: str
):
    """However they are cut: a stream has a few letters at a time."""
    turns = [Script((Says(first), ROME), chars=1), Script((Says(last),), chars=1)]
    service = tells("chat", *turns, stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (), stream=stream))
    assert held.seen.text == text
    assert shape_faults(held, dialect, stream=stream) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_a_response_has_a_message_of_each_round(own: Routes, tells: Any, kind: Name, stream: bool):
    service = tells(kind, then(Says("Let me see."), ROME), then(OSLO), DONE, stream=stream)
    held = own.ask("responses", question("responses", service.model, (), stream=stream))
    said = [item["content"][0]["text"] for item in held.own["output"] if item["type"] == "message"]
    assert said == ["Let me see.", "It is mild."]
    assert shape_faults(held, "responses", stream=stream) == []


@pytest.mark.parametrize("kind", KINDS)
def test_calls_run_side_by_side_and_are_told_in_order(own: Routes, tells: Any, tmp_path: Path, kind: Name):
    """Each waits for the others to begin, and ends before the one that was called before it."""
    calls = [taking(tmp_path, number, 3) for number in range(3)]
    service = tells(kind, then(*calls), DONE)
    own.ask("chat", question("chat", service.model, (), stream=False))
    _, model, results = service.transcript()
    assert model == gateway_calls(*calls)
    assert [json.loads(text) for _, text, _, _ in results.results] == [0, 1, 2]


def taking(folder: Path, number: int, count: int) -> Calls:
    arguments = {"folder": str(folder), "number": number, "count": count}
    return Calls(f"call_{number}", "takes", json.dumps(arguments, separators=(",", ":")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(Calls("call_a", "fails", "{}"), "RuntimeError: no such luck", id="raises"),
        pytest.param(Calls("call_a", "weather", '{"town":"Rome"}'), "invalid arguments for weather", id="wrong"),
        pytest.param(Calls("call_a", "weather", "{}"), "invalid arguments for weather", id="missing"),
    ],
)
def test_the_model_is_told_what_went_wrong(own: Routes, tells: Any, kind: Name, call: Calls, said: str):
    service = tells(kind, then(call), DONE)
    held = own.ask("messages", question("messages", service.model, (), stream=False))
    assert held.seen.text == "It is mild."
    [(_, text, failed, _)] = service.transcript()[-1].results
    assert failed
    assert text.startswith(said)


@pytest.mark.parametrize("name", ["hangs", "sleeps"])
def test_a_tool_that_takes_too_long_has_failed(
    upstream: Upstream, http: httpx.Client, tmp_path: Path, shed: Path, name: str
):
    mark = tmp_path / "mark"
    gateway = served(
        tmp_path, shed, f'[gateway_tools]\ntools = ["shed:{name}"]\ntimeout = 0.2\n' + backends(upstream.url)
    )
    call = Calls("call_h", name, json.dumps({"mark": str(mark)}))
    service = RawFrame(upstream, f"late {name}", "chat", (then(call), DONE), stream=False)
    held = Routes(gateway, upstream, http).ask("chat", question("chat", service.model, (), stream=False))
    assert held.seen.text == "It is mild."
    [(_, text, failed, _)] = service.transcript()[-1].results
    assert failed
    assert f"{name} did not answer within 0.2 seconds and was cancelled" in text
    assert mark.read_text() == ("cancelled" if name == "hangs" else "begun")
    Path(f"{mark} over").touch()
    assert gateway.stop() == 0


def test_a_timeout_of_the_tools_own_is_told_as_such(own: Routes, tells: Any):
    service = tells("chat", then(Calls("call_t", "times_out", "{}")), DONE)
    own.ask("chat", question("chat", service.model, (), stream=False))
    assert "TimeoutError: the sky is silent" in service.transcript()[-1].results[0][1]


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_arguments_that_are_no_json_are_answered(own: Routes, tells: Any, kind: Name):
    service = tells(kind, then(Calls("call_a", "weather", '{"city": Rome')), DONE)
    own.ask("chat", question("chat", service.model, (), stream=False))
    assert "failed to parse function arguments" in json.dumps(service.service.bodies[1])


@pytest.mark.parametrize(("dialect", "stream"), WAYS)
def test_a_call_of_an_unknown_tool_is_the_clients(own: Routes, tells: Any, dialect: Name, stream: bool):
    service = tells("responses", then(Calls("call_u", "unheard", "{}")), stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (FIND,), stream=stream))
    assert held.seen.calls == (Call("call_u", "unheard", "{}"),)
    assert held.seen.finish == "calls"


@pytest.mark.parametrize(("dialect", "kind", "stream"), ROUTES)
def test_a_call_that_was_cut_does_not_run(
    own: Routes, tells: Any, tmp_path: Path, dialect: Name, kind: Name, stream: bool
):
    mark = tmp_path / "mark"
    half = Calls("call_a", "marks", json.dumps({"mark": str(mark)})[:-3], whole=False)
    service = tells(kind, Script((Says("Well,"), half), "length"), stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (FIND,), stream=stream))
    assert (held.seen.text, held.seen.finish, held.seen.calls) == ("Well,", "length", ())
    assert not mark.exists()
    assert len(service.service.bodies) == 1


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_a_call_without_arguments_is_made(own: Routes, tells: Any, kind: Name):
    service = tells(kind, then(Calls("call_a", "look", "")), DONE)
    own.ask("chat", question("chat", service.model, (), stream=False))
    assert service.transcript()[-1] == Tools(((0, "the gateway has looked", False, False),))


def written(city: str) -> Script:
    """A call that the model writes as text."""
    call = {"name": "weather", "arguments": {"city": city}}
    return then(Says(f"<tool_call>\n{json.dumps(call)}\n</tool_call>"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_in_text_is_run_too(own: Routes, tells: Any, kind: Name):
    service = tells(kind, written("Rome"), DONE)
    held = own.ask("chat", question("chat", service.model, (), stream=False))
    assert (held.seen.text.strip(), held.seen.finish) == ("It is mild.", "stop")
    assert service.transcript()[-1] == Tools(((0, IN_ROME.text, False, False),))


@pytest.mark.parametrize("kind", KINDS)
def test_calls_without_ids_get_one_each_in_all_rounds(own: Routes, tells: Any, kind: Name):
    service = tells(kind, written("Rome"), written("Oslo"), DONE)
    own.ask("chat", question("chat", service.model, (), stream=False))
    ids = [call for line in service.transcript() if isinstance(line, Tools) for call in line.results]
    assert ids == [(0, IN_ROME.text, False, False), (1, IN_OSLO.text, False, False)]
    assert len(set(re.findall("call_[0-9a-f]{24}[0-9a-z]+", json.dumps(service.service.bodies[-1])))) == 2


# Calls of both


@pytest.mark.parametrize(("client", "kind", "stream"), TALKERS)
@pytest.mark.parametrize(
    "calls",
    [
        pytest.param((ROME, SEEK), id="ours first"),
        pytest.param((SEEK, ROME, PEEK, OSLO), id="by turns"),
    ],
)
def test_both_results_go_to_the_model(
    own: Routes, tells: Any, client: Client, kind: Name, stream: bool, calls: tuple[Calls, ...]
):
    turn = then(Thinks("Hm.", "S1"), Says("Let me see."), *calls)
    given = {result.id: result for result in (IN_ROME, IN_OSLO, FOUND, SPOTTED)}
    results = tuple(given[call.id] for call in calls)
    theirs = tuple(given[call.id] for call in reversed(calls) if call.name not in TOOLS)
    as_told = ScriptedConversation((Step(turn, "Go."), Step(DONE, results=results)))
    service = tells(kind, turn, DONE, stream=stream)
    agent = AGENTS[client](own, service.model, ScriptedConversation((), thinks=True, tools=(FIND,)), stream=stream)
    seen = agent.take(Step(turn, "Go."))
    assert seen == seen_of(turn, dialect=dialect_of(client), kind=kind, stream=stream)
    assert (seen.finish, [call.name for call in seen.calls]) == ("calls", ["find"] * len(theirs))
    assert agent.take(Step(DONE, results=theirs)).text == "It is mild."
    assert service.transcript() == expected(as_told, client, kind, until=1)


# Rounds are found by the ids of calls. Where ids are dropped, and signatures are Gemini's own, nothing tells them.
@pytest.mark.parametrize(
    ("client", "kind", "stream"), [talker for talker in TALKERS if talker.values[:2] != ("nameless", "gemini")]
)
@pytest.mark.parametrize("calls", [(SEEK,), (OSLO, SEEK, PEEK)], ids=["the client's alone", "both"])
def test_earlier_rounds_go_to_the_model_too(
    own: Routes, tells: Any, client: Client, kind: Name, stream: bool, calls: tuple[Calls, ...]
):
    """A model that calls the client's tool because of what ours said must not forget that."""
    rounds = (then(Thinks("Hm.", "S1"), Says("First Rome. "), ROME), then(Thinks("Well.", "S2"), Says("So: "), *calls))
    given = {result.id: result for result in (IN_OSLO, FOUND, SPOTTED)}
    results = tuple(given[call.id] for call in calls)
    as_told = ScriptedConversation(
        (Step(rounds[0], "Go."), Step(rounds[1], results=(IN_ROME,)), Step(DONE, results=results))
    )
    service = tells(kind, *rounds, DONE, DONE, stream=stream)
    agent = AGENTS[client](own, service.model, ScriptedConversation((), thinks=True, tools=(FIND,)), stream=stream)
    seen = agent.take(Step(rounds[1], "Go."))
    assert seen == seen_of(*rounds, dialect=dialect_of(client), kind=kind, stream=stream)
    agent.take(Step(DONE, results=tuple(given[call.id] for call in calls if call.name == "find")))
    assert service.transcript() == expected(as_told, client, kind, until=2)
    agent.take(Step(DONE, "Thanks."))
    assert service.transcript()[:6] == expected(as_told, client, kind, until=2)


def test_a_client_that_tells_it_otherwise_is_believed(own: Routes, tells: Any):
    service = tells("chat", then(Says("First Rome."), ROME), then(Says("So:"), SEEK), DONE)
    body = question("chat", service.model, (FIND,), stream=False)
    held = own.ask("chat", body)
    own.ask("chat", {**body, **history("chat", {**held.own, "content": "In short:"})})
    _, model, _ = service.transcript()
    assert model == Model((), "In short:", ((0, "find", '{"q":[1]}'),))


@pytest.mark.parametrize("client", CLIENTS)
def test_they_stay_in_the_conversation(own: Routes, tells: Any, client: Client):
    """Nothing is noted about them, whatever the client says next."""
    turn = then(ROME, SEEK)
    service = tells("chat", turn, DONE, then(OSLO), DONE)
    agent = AGENTS[client](own, service.model, ScriptedConversation((), tools=(FIND,)), stream=False)
    agent.take(Step(turn, "Go."))
    agent.take(Step(DONE, "Hurry.", (FOUND,)))
    agent.take(Step(DONE, "And in Oslo?"))
    lines = [line for line in service.transcript() if isinstance(line, Tools)]
    both = Tools(((0, IN_ROME.text, False, False), (1, FOUND.text, False, False)))
    assert lines == [both, Tools(((2, IN_OSLO.text, False, False),))]
    turns = own.gateway.wait_for_turns(1)
    assert all(line["notes"] == {} for line in turns if line.get("model") == service.model)


@pytest.mark.parametrize("client", ["chat", "messages"])
def test_a_client_that_does_not_answer_breaks_no_pair(own: Routes, tells: Any, client: Client):
    turn = then(ROME, SEEK)
    service = tells("chat", turn, DONE)
    agent = AGENTS[client](own, service.model, ScriptedConversation((), tools=(FIND,)), stream=False)
    agent.take(Step(turn, "Go."))
    agent.take(Step(DONE, "Never mind."))
    [results] = [line for line in service.transcript() if isinstance(line, Tools)]
    assert results.results[0] == (0, IN_ROME.text, False, False)
    assert service.transcript()[-1] == User("Never mind.")


@pytest.mark.parametrize("dialect", NAMES)
def test_nobody_else_gets_the_results(guarded: Routes, dialect: Name):
    """Not even with the very same history."""
    service = RawFrame(guarded.upstream, f"others {dialect}", "chat", (then(ROME, SEEK), DONE, DONE), stream=False)
    body = question(dialect, service.model, (FIND,), stream=False)
    held = guarded.ask(dialect, body, "alice-key")
    brought = {**body, **history(dialect, held.own)}
    guarded.ask(dialect, brought, "bob-key")
    assert "Rome" not in json.dumps(service.service.bodies[-1])
    guarded.ask(dialect, brought, "alice-key")
    assert "18 degrees in Rome" in json.dumps(service.service.bodies[-1])


def history(dialect: Name, own: Json) -> Json:
    """The first question, the model's turn and the client's result, as a client of this dialect sends them."""
    user = {"role": "user", "content": "Go."}
    if dialect == "responses":
        result = {"type": "function_call_output", "call_id": "call_f", "output": "It is here."}
        return {"input": [user, *own["output"], result], "store": False}
    if dialect == "messages":
        block = {"type": "tool_result", "tool_use_id": "call_f", "content": "It is here."}
        turn = {"role": "assistant", "content": own["content"]}
        return {"messages": [user, turn, {"role": "user", "content": [block]}]}
    if dialect == "gemini":
        response = {"id": "call_f", "name": "find", "response": {"output": "It is here."}}
        results = {"role": "user", "parts": [{"functionResponse": response}]}
        return {"contents": [{"role": "user", "parts": [{"text": "Go."}]}, *own["contents"], results]}
    said = {key: value for key, value in own.items() if value is not None}
    return {"messages": [user, said, {"role": "tool", "tool_call_id": "call_f", "content": "It is here."}]}


def test_another_call_with_the_same_id_gets_nothing(own: Routes, tells: Any):
    """Some servers count their calls."""
    service = tells("chat", then(ROME, SEEK), DONE)
    body = question("chat", service.model, (FIND,), stream=False)
    held = own.ask("chat", body)
    other = json.loads(json.dumps(history("chat", held.own)).replace("[1]", "[2]"))
    own.ask("chat", {**body, **other})
    assert "Rome" not in json.dumps(service.service.bodies[-1])


# Which tools there are


@pytest.mark.parametrize(("dialect", "kind", "stream"), ROUTES)
def test_the_clients_tool_of_the_same_name_wins(own: Routes, tells: Any, dialect: Name, kind: Name, stream: bool):
    turn = then(Calls("call_l", "look", '{"path":"a"}'))
    service = tells(kind, turn, stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (LOOK,), stream=stream))
    assert held.seen == truth(turn, dialect, kind, stream=stream)
    assert service.declared() == ["look", *(name for name in TOOLS if name != "look")]


def test_a_tool_in_a_namespace_of_the_client_is_not_ours(own: Routes, tells: Any):
    call = Calls("call_l", "weather", "{}", namespace="sky")
    service = tells("responses", then(call))
    held = own.ask(
        "responses", question("responses", service.model, (Declared("weather", namespace="sky"),), stream=False)
    )
    assert [(each.name, each.namespace) for each in held.seen.calls] == [("weather", "sky")]


CHOICES: list[Any] = [
    pytest.param("chat", {"tool_choice": "none"}, id="chat-none"),
    pytest.param("responses", {"tool_choice": "none"}, id="responses-none"),
    pytest.param("messages", {"tool_choice": {"type": "none"}}, id="messages-none"),
    pytest.param("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "find"}}]}}}, id="chat-allowed"),
    pytest.param("responses", {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "find"}]}}, id="responses-allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "fields"), CHOICES)
def test_they_are_not_added_where_a_request_limits_its_tools(own: Routes, tells: Any, dialect: Name, fields: Json):
    service = tells(dialect, DONE)
    own.post(dialect, question(dialect, service.model, (FIND,), stream=False, **fields))
    own.gateway.wait_until(lambda: bool(service.service.bodies))
    assert set(service.declared()) <= {"find"}


@pytest.mark.parametrize("kind", KINDS)
def test_they_run_in_the_background_too(own: Routes, tells: Any, http: httpx.Client, kind: Name):
    service = tells(kind, then(ROME), DONE)
    queued = own.post("responses", question("responses", service.model, (FIND,), stream=False, background=True)).json()
    assert (queued["status"], queued["output"]) == ("queued", [])
    url = f"{own.gateway.url}/v1/responses/{queued['id']}"
    own.gateway.wait_until(lambda: http.get(url).json()["status"] == "completed")
    assert http.get(url).json()["output"][-1]["content"][0]["text"] == "It is mild."
    assert "18 degrees in Rome" in json.dumps(service.service.bodies[-1]), "the result went to the model"
    line = line_of(own, service.model)
    assert (line["background"], line["outcome"], line["gateway_calls"]) == (True, "completed", 1)


FORCED: list[Any] = [
    pytest.param("chat", "required", id="chat"),
    pytest.param("chat", {"type": "function", "function": {"name": "find"}}, id="chat-named"),
    pytest.param("responses", "required", id="responses"),
    pytest.param("responses", {"type": "function", "name": "find"}, id="responses-named"),
    pytest.param("messages", {"type": "any"}, id="messages"),
    pytest.param("messages", {"type": "tool", "name": "find"}, id="messages-named"),
]


@pytest.mark.parametrize(("dialect", "choice"), FORCED)
def test_a_forced_call_is_one_of_the_clients_tools(own: Routes, tells: Any, dialect: Name, choice: Any):
    service = tells("chat", then(SEEK))
    held = own.ask(dialect, question(dialect, service.model, (FIND,), stream=False, tool_choice=choice))
    assert [call.name for call in held.seen.calls] == ["find"]
    assert service.declared() == ["find"]
    assert "tool_choice" in service.service.bodies[0]


@pytest.mark.parametrize(
    ("dialect", "kind"),
    [(dialect, kind) for dialect in NAMES for kind in KINDS if dialect != kind or kind in ("chat", "responses")],
)
def test_no_tool_is_added_where_none_is_wanted_and_none_declared(own: Routes, tells: Any, dialect: Name, kind: Name):
    """The choice itself stays here: some servers refuse one without tools. From Messages to Messages, and from Gemini to Gemini, all goes on."""
    choice: Json = {"tool_choice": {"type": "none"} if dialect == "messages" else "none"}
    if dialect == "gemini":
        choice = {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}}
    service = tells(kind, DONE)
    own.ask(dialect, question(dialect, service.model, (), stream=False, **choice))
    assert service.declared() == []
    assert "tool_choice" not in service.service.bodies[0]


def test_none_of_the_older_kind_is_heard_too(own: Routes, tells: Any):
    service = tells("chat", DONE)
    own.ask("chat", question("chat", service.model, (), stream=False, function_call="none"))
    assert service.declared() == []


def test_they_are_not_added_for_several_answers(own: Routes, tells: Any):
    service = tells("chat", DONE)
    assert own.post("chat", question("chat", service.model, (FIND,), stream=False, n=2)).status_code == 200
    assert service.declared() == ["find"]


@pytest.mark.parametrize("dialect", NAMES)
def test_they_are_not_added_for_use_tool_text(own: Routes, tells: Any, http: httpx.Client, dialect: Name):
    service = tells("chat", DONE)
    url = f"{own.gateway.url}/obsidian-xml{PATHS[dialect]}"
    assert http.post(url, json=question(dialect, service.model, (), stream=False)).status_code == 200
    assert service.declared() == []


def test_they_are_not_added_to_a_compaction(own: Routes, tells: Any, http: httpx.Client):
    service = tells("chat", then(Says("A summary.")))
    body = {"model": service.model, "input": [{"role": "user", "content": "Go."}]}
    response = http.post(f"{own.gateway.base_url}/responses/compact", json=body)
    assert [item["type"] for item in response.json()["output"]] == ["compaction"]
    assert service.declared() == []


def test_a_backend_that_compacts_itself_is_asked_to(own: Routes, http: httpx.Client):
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "SEALED"}
    answer = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    body = json.dumps({**answer, "error": None, "incomplete_details": None, "output": [item], "usage": None}).encode()
    own.upstream.replies["compacts"] = Reply([body], content_type="application/json")
    asked = [{"role": "user", "content": "Go."}, {"type": "compaction_trigger"}]
    fields = {"model": "compacting/compacts", "input": asked}
    response = http.post(own.gateway.url + PATHS["responses"], json=fields)
    assert [each["encrypted_content"] for each in response.json()["output"]] == ["SEALED"]
    [told] = own.upstream.of("compacts")
    assert told.body["input"][-1] == {"type": "compaction_trigger"}
    assert declared(told.body) == []


HOSTED: dict[Name, Json] = {
    "chat": {"type": "web_search"},
    "responses": {"type": "web_search", "search_context_size": "low"},
    "messages": {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
}
LEFT_OUT = {"code": "gateway_tools_left_out"}


def with_hosted(dialect: Name, model: str, *, stream: bool, **fields: Any) -> Json:
    body = question(dialect, model, (FIND,), stream=stream, **fields)
    return {**body, "tools": [*body["tools"], HOSTED[dialect]]}


def notes_of(response: httpx.Response) -> list[Json]:
    assert response.status_code == 200, response.text
    return json.loads(response.headers.get("x-toolwire-notes", "[]"))


@pytest.mark.parametrize("forced", [False, True], ids=["free", "forced"])
@pytest.mark.parametrize(
    ("dialect", "kind"), [("responses", "responses"), ("chat", "responses"), ("messages", "messages")]
)
def test_a_tool_of_the_backends_own_stays_and_ours_do_not_come(own: Routes, dialect: Name, kind: Name, forced: bool):
    choice = {"type": "tool", "name": "web_search"} if dialect == "messages" else {"type": "web_search"}
    name = f"hosted {dialect} {kind} {forced}"
    own.upstream.replies[name] = reply(DONE, kind, stream=False)
    body = with_hosted(dialect, f"{kind}/{name}", stream=False, **({"tool_choice": choice} if forced else {}))
    assert notes_of(own.post(dialect, body)) == ([] if forced else [LEFT_OUT])
    [told] = own.upstream.of(name)
    assert HOSTED[dialect] in told.body["tools"]
    assert [tool["name"] for tool in told.body["tools"] if tool != HOSTED[dialect]] == ["find"]
    assert ("tool_choice" in told.body) is forced


def test_an_answer_with_such_a_tool_is_told_as_it_came(own: Routes):
    name = "searched"
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
    answer = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    body = json.dumps({**answer, "error": None, "incomplete_details": None, "output": [item], "usage": None}).encode()
    own.upstream.replies[name] = Reply([body], content_type="application/json")
    response = own.post("responses", with_hosted("responses", f"responses/{name}", stream=False))
    assert notes_of(response) == [LEFT_OUT]
    assert response.json()["output"] == [item]


@pytest.mark.parametrize(
    ("dialect", "kind"), [("responses", "chat"), ("responses", "messages"), ("messages", "responses")]
)
def test_where_the_backend_has_no_such_tool_ours_come(own: Routes, tells: Any, dialect: Name, kind: Name):
    service = tells(kind, then(ROME), DONE)
    notes = notes_of(own.post(dialect, with_hosted(dialect, service.model, stream=False)))
    assert notes == [{"code": "tool_dropped", "subject": HOSTED[dialect]["type"]}]
    assert service.declared() == ["find", *TOOLS]
    assert service.transcript()[-1] == Tools(((0, IN_ROME.text, False, False),))


STRANGE: list[Any] = [
    pytest.param("responses", "input", {"type": "web_search_call", "id": "ws_1", "status": "completed"}, id="responses"),
    pytest.param("responses", "input", {"type": "compaction", "encrypted_content": "SEALED"}, id="compaction"),
    pytest.param("messages", "messages", {"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}, id="messages"),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "field", "strange"), STRANGE)
def test_a_history_that_only_its_dialect_can_tell_stays_whole(own: Routes, dialect: Name, field: str, strange: Json):
    name = f"strange {dialect} {strange.get('type')}"
    own.upstream.replies[name] = reply(DONE, dialect, stream=False)
    body = question(dialect, f"{dialect}/{name}", (FIND,), stream=False)
    body[field] = [*body[field], strange] if dialect == "responses" else [strange]
    assert notes_of(own.post(dialect, body)) == [LEFT_OUT]
    [told] = own.upstream.of(name)
    assert told.body[field] == body[field]
    assert declared(told.body) == ["find"]


@pytest.mark.parametrize("dialect", NAMES)
def test_a_choice_cannot_name_what_the_client_does_not_declare(own: Routes, tells: Any, dialect: Name):
    choices: dict[Name, Json] = {
        "chat": {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "responses": {"tool_choice": {"type": "function", "name": "weather"}},
        "messages": {"tool_choice": {"type": "tool", "name": "weather"}},
        "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}}},
    }
    service = tells("chat", DONE)
    body = question(dialect, service.model, (FIND,), stream=False, **choices[dialect])
    assert own.refused(dialect, body).status == 400
    assert service.service.bodies == []


# How it ends


@pytest.mark.parametrize(("dialect", "stream"), WAYS)
def test_rounds_have_a_limit(own: Routes, tells: Any, dialect: Name, stream: bool):
    turns = [then(Says(f"{number}. "), Calls(f"call_{number}", "look", "{}")) for number in range(6)]
    service = tells("responses", *turns, stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (), stream=stream))
    assert (held.seen.text.split(), held.seen.finish) == (["0.", "1.", "2.", "3."], "length")
    assert held.seen.tokens == Tokens(40, 24)
    assert len(service.service.bodies) == 4
    line = line_of(own, service.model)
    assert (line["notes"], line["reason"], line["gateway_calls"]) == ({"max_turns_reached": 1}, "length", 4)


@pytest.mark.parametrize(("dialect", "stream"), WAYS)
def test_a_limit_that_was_reached_in_silence_is_no_end(own: Routes, tells: Any, dialect: Name, stream: bool):
    turns = [then(Calls(f"call_{number}", "look", "{}")) for number in range(4)]
    service = tells("chat", *turns, stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (), stream=stream))
    assert (held.seen.text, held.seen.finish, held.seen.calls) == ("", "length", ())
    assert shape_faults(held, dialect, stream=stream) == []


@pytest.mark.parametrize(("dialect", "stream"), WAYS)
def test_a_model_that_repeats_a_failing_call_is_told_and_then_stopped(
    own: Routes, tells: Any, dialect: Name, stream: bool
):
    turns = [then(Says(f"{number}. "), Calls(f"call_{number}", "fails", "{}")) for number in range(6)]
    service = tells("responses", *turns, stream=stream)
    held = own.ask(dialect, question(dialect, service.model, (), stream=stream))
    assert (held.seen.text.split(), held.seen.finish) == (["0.", "1.", "2.", "3."], "length")
    assert shape_faults(held, dialect, stream=stream) == []
    outputs = [item["output"] for item in service.service.bodies[-1]["input"] if item["type"] == "function_call_output"]
    assert [WARNING in output for output in outputs] == [False, False, True]
    line = line_of(own, service.model)
    assert (line["notes"], line["reason"], line["gateway_calls"]) == ({"repeated_calls": 1}, "length", 4)


def line_of(routes: Routes, model: str) -> Json:
    """The log line of the only turn of this model."""

    def found() -> list[Json]:
        return [line for line in routes.gateway.turns() if line.get("model") == model]

    routes.gateway.wait_until(lambda: bool(found()))
    [line] = found()
    return line


BUSY = Reply([refusal("chat", 503, "Busy.")], 503, "application/json")


@pytest.mark.parametrize("words", [(), (Says("Let me see. "),)], ids=["silent", "after words"])
@pytest.mark.parametrize(
    ("dialect", "stream"), [("chat", True), ("responses", True), ("messages", True), ("chat", False)]
)
def test_a_later_round_is_tried_again(own: Routes, dialect: Name, stream: bool, words: tuple[Says, ...]):
    name = f"again {dialect} {stream} {len(words)}"
    turns = (then(*words, ROME), DONE)
    replies = [reply(turn, "chat", stream=stream) for turn in turns]
    own.upstream.replies[name] = [replies[0], BUSY, replies[1]]
    held = own.ask(dialect, question(dialect, f"again/{name}", (), stream=stream))
    assert held.seen == seen_of(*turns, dialect=dialect, kind="chat", stream=stream)
    assert len(own.upstream.of(name)) == 3
    assert line_of(own, f"again/{name}")["notes"] == {"retried": 1}


@pytest.mark.parametrize(("dialect", "stream"), WAYS)
def test_a_failure_before_any_words_has_its_status(own: Routes, dialect: Name, stream: bool):
    name = f"busy {dialect} {stream}"
    own.upstream.replies[name] = [reply(then(ROME), "chat", stream=stream), BUSY]
    assert own.refused(dialect, question(dialect, f"chat/{name}", (), stream=stream)).status == 503


@pytest.mark.parametrize("dialect", NAMES)
def test_a_failure_after_words_is_told_in_the_stream(own: Routes, dialect: Name):
    name = f"busy after words {dialect}"
    own.upstream.replies[name] = [reply(then(Says("Let me see."), ROME), "chat", stream=True), BUSY]
    held = own.ask(dialect, question(dialect, f"chat/{name}", (), stream=True))
    assert (held.seen.text, held.seen.finish) == ("Let me see.", "failed")
    assert held.error is not None


@pytest.mark.parametrize("dialect", NAMES)
def test_a_failure_after_words_of_a_plain_answer_is_an_error(own: Routes, dialect: Name):
    name = f"busy after plain words {dialect}"
    own.upstream.replies[name] = [reply(then(Says("Let me see."), ROME), "chat", stream=False), BUSY]
    with pytest.raises(Refused) as refused:
        own.ask(dialect, question(dialect, f"chat/{name}", (), stream=False))
    assert refused.value.status == 503


@pytest.mark.parametrize(("dialect", "stream"), WAYS)
def test_a_tool_stops_when_the_client_leaves(own: Routes, tells: Any, tmp_path: Path, dialect: Name, stream: bool):
    mark = tmp_path / "mark"
    call = Calls("call_h", "hangs", json.dumps({"mark": str(mark)}))
    service = tells("responses", then(Says("One moment."), call), DONE, stream=stream)
    with socket.create_connection(("127.0.0.1", int(own.gateway.url.rpartition(":")[2])), PATIENCE) as client:
        client.sendall(posted(PATHS[dialect], question(dialect, service.model, (), stream=stream)))
        own.gateway.wait_until(mark.exists)
    own.gateway.wait_until(lambda: mark.read_text() == "cancelled")
    assert mark.read_text() == "cancelled"
    line = line_of(own, service.model)
    assert (line["status"], line["gateway_calls"], line["gateway_calls_failed"]) == (499, 1, 1)
    assert len(service.service.bodies) == 1


def posted(path: str, body: Json) -> bytes:
    content = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


def test_the_next_round_stops_when_the_client_leaves(own: Routes):
    name = "left in the second round"
    second = Reply([*list(STREAMED["chat"](DONE))[:3], Hold()])
    own.upstream.replies[name] = [reply(then(ROME), "chat", stream=True), second]
    own.upstream.gone.clear()
    body = question("chat", f"chat/{name}", (), stream=True)
    with httpx.Client(trust_env=False) as client, client.stream("POST", own.gateway.url + PATHS["chat"], json=body) as response:  # fmt: skip
        next(response.iter_bytes())
    assert own.upstream.gone.wait(PATIENCE)


def test_no_connection_is_broken_off_between_rounds(own: Routes):
    """The last bytes of a turn are read, though nobody needs them, so that its connection can be used again."""
    name = "whole"
    *steps, last = STREAMED["chat"](then(ROME))
    own.upstream.replies[name] = [Reply([*steps, Pause(0.2), last]), reply(DONE, "chat", stream=True)]
    own.upstream.gone.clear()
    own.ask("chat", question("chat", f"chat/{name}", (), stream=True))
    assert not own.upstream.gone.is_set()


@pytest.mark.parametrize("dialect", NAMES)
def test_a_slow_tool_does_not_look_like_a_dead_connection(
    guarded: Routes, http: httpx.Client, tmp_path: Path, dialect: Name
):
    """Headers leave, and signs of life come, while nothing else does."""
    service = RawFrame(
        guarded.upstream, f"slow {dialect}", "responses", (then(taking(tmp_path, 0, 2)), DONE), stream=True
    )
    body = question(dialect, service.model, (), stream=True)
    came: list[str] = []
    with http.stream("POST", guarded.gateway.url + PATHS[dialect], json=body, headers={"authorization": "Bearer bob-key"}) as response:  # fmt: skip
        for line in response.iter_lines():
            came.append(line)
            if (tmp_path / "begun 0").exists() and ("keepalive" in line or "ping" in line):
                for mark in ("begun 1", "ended 1"):  # only now the tool ends
                    (tmp_path / mark).touch()
    assert any("mild" in line for line in came)


# What is counted, kept and logged


def test_only_what_the_client_saw_is_counted(own: Routes, tells: Any, http: httpx.Client):
    service = tells("chat", then(ROME), then(OSLO, SEEK), stream=True)
    body = question("chat", service.model, (FIND,), stream=True)
    comments = [
        text for kind, text in read_sse(http.post(own.gateway.url + PATHS["chat"], json=body)) if kind == "comment"
    ]
    assert json.loads(comments[-1])["tool_call_count"] == 1
    line = line_of(own, service.model)
    assert (line["tool_call_names"], line["tool_call_ids"], line["reason"]) == (["find"], ["call_f"], "calls")
    assert (line["input_tokens"], line["output_tokens"]) == (20, 12)


@pytest.mark.parametrize("dialect", NAMES)
def test_what_the_gateway_ran_is_counted_apart(own: Routes, tells: Any, http: httpx.Client, dialect: Name):
    """The numbers of the metrics are those of all tests, so it is told by how much they grow."""
    service = tells("chat", then(ROME, Calls("call_x", "fails", "{}")), then(OSLO), DONE)
    before = gateway_calls_counted(own, http)
    own.ask(dialect, question(dialect, service.model, (FIND,), stream=False))
    line = line_of(own, service.model)
    assert (line["gateway_calls"], line["gateway_calls_failed"], line["tool_call_count"]) == (3, 1, 0)
    now = gateway_calls_counted(own, http)
    grown = {key: now[key] - before.get(key, 0) for key in now if now[key] != before.get(key)}
    assert grown == {("weather", "ok"): 2, ("fails", "failed"): 1}


def gateway_calls_counted(routes: Routes, http: httpx.Client) -> dict[tuple[str, str], float]:
    told = http.get(routes.gateway.url + "/metrics").text
    found = re.findall(r'^toolwire_gateway_calls_total\{outcome="(\w+)",tool="(\w+)"\} (.+)$', told, re.MULTILINE)
    return {(tool, outcome): float(count) for outcome, tool, count in found}


def test_a_turn_that_needs_none_has_run_none(own: Routes, tells: Any):
    service = tells("chat", DONE)
    own.ask("chat", question("chat", service.model, (FIND,), stream=False))
    line = line_of(own, service.model)
    assert (line["gateway_calls"], line["gateway_calls_failed"]) == (0, 0)


def test_a_plain_answer_counts_the_same(own: Routes, tells: Any):
    service = tells("chat", then(ROME), DONE)
    response = own.post("chat", question("chat", service.model, (FIND,), stream=False))
    assert response.headers["x-codex-tool-call-count"] == "0"
    assert "x-toolwire-notes" not in response.headers


def test_what_is_said_about_the_request_is_said_once(own: Routes, tells: Any):
    service = tells("messages", then(ROME), then(OSLO), DONE)
    body = question("chat", service.model, (FIND,), stream=False, seed=7, logit_bias={"1": 1})
    notes = json.loads(own.post("chat", body).headers["x-toolwire-notes"])
    assert len(notes) == len({json.dumps(note) for note in notes})


def test_the_log_holds_no_words(own: Routes, tells: Any):
    service = tells("chat", then(Calls("call_a", "weather", '{"city":"Xanadu"}')), DONE)
    own.ask("chat", question("chat", service.model, (FIND,), stream=False))
    line_of(own, service.model)
    assert not [line for line in own.gateway.log if "Xanadu" in line or "degrees" in line or "mild" in line]


def test_a_stored_response_can_be_continued(own: Routes, tells: Any, http: httpx.Client):
    service = tells("responses", then(Says("Let me see. "), ROME), DONE, then(OSLO), DONE)
    client = Responses(http, own.gateway)
    first = client.create(service.model)
    kept = client.retrieve(first["id"])
    assert (text_of(kept), kept["usage"]["input_tokens"]) == ("Let me see. It is mild.", 20)
    assert kept["tools"] == []
    second = client.create(service.model, "And in Oslo?", previous_response_id=first["id"])
    assert text_of(second) == "It is mild."
    assert service.transcript() == [
        User("Go."),
        Model((), "Let me see. It is mild."),
        User("And in Oslo?"),
        gateway_calls(OSLO),
        Tools(((0, IN_OSLO.text, False, False),)),
    ]


def test_outputs_can_be_submitted_to_a_turn_of_both(own: Routes, tells: Any, http: httpx.Client):
    service = tells("responses", then(ROME, SEEK), DONE)
    client = Responses(http, own.gateway)
    first = client.create(service.model, tools=[{"type": "function", "name": "find", "parameters": {"type": "object"}}])
    assert text_of(client.submit(first["id"], {"call_f": "It is here."}).json()) == "It is mild."
    assert service.transcript()[-1] == Tools(((0, IN_ROME.text, False, False), (1, FOUND.text, False, False)))


def test_a_turn_over_a_socket(own: Routes, tells: Any):
    service = tells("chat", then(Says("Let me see. "), ROME), DONE, then(OSLO), DONE, stream=True)
    url = own.gateway.url.replace("http", "ws", 1) + "/v1/responses"
    with connect(url, proxy=None, open_timeout=PATIENCE, close_timeout=0.2) as connection:
        first = turn_of(connection, {"model": service.model, "input": "Go."})
        assert text_of(first) == "Let me see. It is mild."
        asked = {"model": service.model, "input": "And in Oslo?", "previous_response_id": first["id"]}
        assert text_of(turn_of(connection, asked)) == "It is mild."
    assert service.transcript()[-1] == Tools(((0, IN_OSLO.text, False, False),))


def turn_of(connection: Connection, fields: Json) -> Json:
    """The response that one message brings."""
    connection.send(json.dumps({"type": "response.create", **fields}))
    events: list[Json] = [json.loads(connection.recv(PATIENCE))]
    while events[-1]["type"] not in ("response.completed", "response.failed", "error"):
        events.append(json.loads(connection.recv(PATIENCE)))
    assert responses_faults([(None, event) for event in events], done=None) == []
    return events[-1]["response"]


# MCP servers


def test_tools_of_mcp_servers(upstream: Upstream, http: httpx.Client, tmp_path: Path, start: Callable[..., Gateway]):
    """One server works, another cannot start, which stops nobody."""
    servers = {
        "tests": {"command": sys.executable, "args": [str(MCP_SERVER)]},
        "gone": {"command": str(tmp_path / "no-such-program")},
    }
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    gateway = start('[gateway_tools]\nmcp = "servers.json"\n' + backends(upstream.url))
    routes = Routes(gateway, upstream, http)
    calls = (Calls("call_e", "tests__echo", '{"text":"hello"}'), Calls("call_x", "tests__fails", "{}"))
    service = RawFrame(upstream, "mcp", "messages", (then(*calls), DONE), stream=False)
    held = routes.ask("messages", question("messages", service.model, (FIND,), stream=False))
    assert (held.seen.text, held.seen.finish) == ("It is mild.", "stop")
    echoed, failed = service.transcript()[-1].results
    assert echoed == (0, "hello", False, False)
    assert (failed[2], "no such luck" in failed[1]) == (True, True)
    assert any(line.startswith("toolwire: MCP server gone: ") for line in gateway.log)
    assert gateway.stop() == 0


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_more_tools_than_a_request_may_have_are_an_error_that_says_so(
    upstream: Upstream, http: httpx.Client, tmp_path: Path, start: Callable[..., Gateway], dialect: str, stream: bool
):
    servers = {"tests": {"command": sys.executable, "args": [str(MCP_SERVER), "--many"]}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    tools = '[server]\nmax_tools = 50\n[gateway_tools]\nmcp = "servers.json"\n'
    gateway = start(tools + backends(upstream.url))
    body = question(dialect, f"{dialect}/never", (FIND,), stream=stream)
    path = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}[dialect]
    answer = http.post(gateway.base_url + path, json=body, headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == 500
    assert re.search(r"adds \d{3} tools to the 1 of the request, but the limit is 50", answer.text)
    assert "`allow`" in answer.text


@pytest.fixture
def slowly(
    upstream: Upstream, http: httpx.Client, tmp_path: Path, start: Callable[..., Gateway]
) -> Callable[..., Routes]:
    """A gateway whose MCP server starts when there is a file `go`, or never. It is ready before that."""

    def begin(*, never: bool = False, **fields: Any) -> Routes:
        program = f"while [ ! -e '{tmp_path}/go' ]; do sleep 0.05; done; exec {sys.executable} {MCP_SERVER}"
        program = "cat > /dev/null" if never else program
        servers = {"slow": {"command": "sh", "args": ["-c", program], **fields}}
        (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        pace = "[server]\nkeepalive = 0.1\ncommit_after = 0.1\n"
        return Routes(start(pace + '[gateway_tools]\nmcp = "servers.json"\n' + backends(upstream.url)), upstream, http)

    return begin


def test_the_first_requests_wait_for_the_tools_and_show_signs_of_life(
    slowly: Callable[..., Routes], http: httpx.Client, tmp_path: Path
):
    routes = slowly(startTimeout=PATIENCE)
    call = Calls("call_e", "slow__echo", '{"text":"hello"}')
    service = RawFrame(routes.upstream, "slow mcp", "chat", (then(call), DONE), stream=True)
    body = question("chat", service.model, (FIND,), stream=True)
    received = b""
    with http.stream("POST", routes.gateway.url + PATHS["chat"], json=body) as response:
        for piece in response.iter_bytes():
            received += piece
            if b"keepalive" in received:
                (tmp_path / "go").touch()
    comments, words = telling(httpx.Response(200, content=received))
    assert comments[0] == "keepalive"
    assert json.loads(comments[-1])["notes"] == []
    assert "mild" in words
    assert "slow__echo" in service.declared()
    assert service.transcript()[-1] == Tools(((0, "hello", False, False),))
    assert line_of(routes, service.model)["reason"] == "stop"


def telling(response: httpx.Response) -> tuple[list[str], str]:
    """The comments of a stream, and all else."""
    told = list(read_sse(response))
    return [text for kind, text in told if kind == "comment"], json.dumps(
        [data for kind, data in told if kind == "data"]
    )


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
def test_they_wait_no_longer_than_a_server_may_take(slowly: Callable[..., Routes], stream: bool):
    routes = slowly(never=True, startTimeout=0.5)
    routes.upstream.replies["never mcp"] = reply(DONE, "chat", stream=stream)
    held = routes.ask("chat", with_hosted("chat", "chat/never mcp", stream=stream))
    assert (held.seen.text, held.seen.finish) == ("It is mild.", "stop")
    line = line_of(routes, "chat/never mcp")
    assert (line["reason"], line["notes"], line["input_tokens"]) == ("stop", {"tool_dropped": 1}, 10)
    assert any("did not start within 0.5 seconds" in line for line in routes.gateway.log)


def test_a_request_that_cannot_be_is_refused_after_the_wait(slowly: Callable[..., Routes]):
    refused = slowly(never=True, startTimeout=0.5).refused("chat", question("chat", "nobody", (), stream=False))
    assert (refused.status, refused.body["error"]["code"]) == (404, "model_not_found")


def test_who_leaves_meanwhile_stops_nobody_else(slowly: Callable[..., Routes], tmp_path: Path):
    routes = slowly(startTimeout=PATIENCE)
    body = question("chat", "chat/left early", (), stream=True)
    with httpx.Client(trust_env=False) as client:
        with client.stream("POST", routes.gateway.url + PATHS["chat"], json=body) as response:
            next(response.iter_bytes())
    assert line_of(routes, "chat/left early")["status"] == 499
    assert routes.upstream.of("left early") == []
    (tmp_path / "go").touch()
    service = RawFrame(routes.upstream, "stayed", "chat", (DONE,), stream=False)
    routes.ask("chat", question("chat", service.model, (), stream=False))
    assert "slow__echo" in service.declared()


# Settings


def complaint(folder: Path, shed: Path, config: str) -> tuple[int, list[str]]:
    """How a gateway with these settings ends, and what it says."""
    (folder / "toolwire.toml").write_text(config)
    clean = {key: value for key, value in os.environ.items() if key not in PROXIES}
    done = processes.run(
        [sys.executable, "-m", "toolwire", "serve", "--config", "toolwire.toml", "--port", "0"],
        env={**clean, "PYTHONPATH": str(shed)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()


BAD_SETTINGS = [
    pytest.param('tools = ["nowhere:tool"]', "gateway_tools.tools: 'nowhere:tool' cannot be found: No module named 'nowhere'", id="tool"),
    pytest.param('mcp = "missing.json"', "gateway_tools.mcp: missing.json: there is no such file in /", id="file"),
    pytest.param('tools = ["shed:weather", "shed:weather"]', "gateway_tools.tools: there are two tools named 'weather'", id="twice"),
    pytest.param('tools = ["shed:half"]', "gateway_tools.tools: 'shed:half' is not a tool: this Half has no description, kind, ", id="half a tool"),
    pytest.param('tools = ["leaves:x"]', "gateway_tools.tools: 'leaves:x' cannot be loaded: its module ends the program", id="exit"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "says"), BAD_SETTINGS)
def test_bad_settings_are_one_clear_line(tmp_path: Path, shed: Path, setting: str, says: str):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit()\n")
    code, lines = complaint(tmp_path, shed, f"[gateway_tools]\n{setting}\n")
    assert (code, len(lines)) == (2, 1), lines
    assert lines[0].startswith(f"toolwire: toolwire.toml: {says}")


def test_the_file_of_the_settings_is_no_setting(tmp_path: Path, shed: Path):
    assert complaint(tmp_path, shed, 'file = "x"\n') == (2, ["toolwire: toolwire.toml: file: unknown key"])


def test_a_module_beside_the_configuration_is_found(upstream: Upstream, http: httpx.Client, tmp_path: Path):
    """Also by the command `toolwire`, which does not look there by itself."""
    (tmp_path / "mytools.py").write_text("def get_time() -> str:\n    return 'noon'\n")
    config = '[gateway_tools]\ntools = ["mytools:get_time"]\n' + backends(upstream.url)
    gateway = Gateway(tmp_path, config, PYTHONSAFEPATH="1")
    service = RawFrame(upstream, "beside", "chat", (then(Calls("call_t", "get_time", "{}")), DONE), stream=False)
    Routes(gateway, upstream, http).ask("chat", question("chat", service.model, (), stream=False))
    assert service.transcript()[-1] == Tools(((0, "noon", False, False),))
    assert gateway.stop() == 0


def test_what_is_installed_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "statistics.py").write_text("mean = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load_tool("statistics:median", tmp_path).name == "median"
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shed:nothing", "'shed:nothing' cannot be found: the module shed has no nothing"),
        ("shed:half.nothing", "'shed:half.nothing' cannot be found: the module shed has no half.nothing"),
        ("shed", "'shed' cannot be found: it is neither module:object nor an entry point of the group toolwire.tools"),
        (":x", "':x' cannot be found: it must be module:object"),
        ("shed:", "'shed:' cannot be found: it must be module:object"),
        ("broken:x", "'broken:x' cannot be loaded: SyntaxError: invalid syntax (broken.py, line 1)"),
        ("raises:x", "'raises:x' cannot be loaded: ZeroDivisionError: division by zero"),
        ("shed:number", "'shed:number' is not a tool: it is of the type int, not a function"),
        ("shed:plain", "'shed:plain' is not a tool: it is of the type partial, not a function"),
        ("shed:Half", "'shed:Half' is not a tool: it is a class; a function is needed, or an object"),
        ("builtins:dir", "'builtins:dir' is not a tool: no signature found"),
        ("shed:bare", "'shed:bare' is not a tool: bare: the parameter values cannot be given by name"),
    ],
)
def test_what_is_no_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shed: Path, name: str, says: str):
    (tmp_path / "broken.py").write_text("def x(:\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [str(shed), str(tmp_path), *sys.path])
    with pytest.raises(SettingsError, match=re.escape(f"gateway_tools.tools: {says}")):
        load_tool(name, tmp_path)


def test_two_packages_with_the_same_name_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("one", "two"):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text("[toolwire.tools]\nclock = time:time\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(
        SettingsError,
        match=r"gateway_tools\.tools: 'clock' is ambiguous: 2 installed packages have an entry point of this name",
    ):
        load_tool("clock", tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not JSON", "the configuration of MCP servers is not JSON: "),
        (b'{"mcpServers": 1}', "mcpServers: "),
        (b"\xff\xfe", "it is not text in UTF-8"),
        (None, "it is a directory"),
    ],
)
def test_what_is_no_list_of_servers_is_named(tmp_path: Path, content: bytes | None, says: str):
    path = tmp_path / "servers.json"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(SettingsError, match=re.escape(f"gateway_tools.mcp: servers.json: {says}")):
        load_servers("servers.json", tmp_path)
