"""The rules of behaviour on real servers: a sound one breaks none of them, a server with one fault breaks that one."""

import asyncio
import gzip
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.check.faulty import (
    Fault,
    Faulty,
    Holds,
    ReceivedRequest,
    ReplyChange,
    RequestChange,
    as_type,
    contains,
    drop,
    frames,
    html,
    misread,
    put,
    refuse,
    refusing,
    reply_json,
    rewritten,
    where,
    with_status,
)
from tests.support.gateway import Gateway
from tests.support.upstream import Cut, Hold, Pause, Reply
from toolwire.check.endpoint import MAX_BYTES, MAX_TOTAL_BYTES, TOO_LARGE, Target, Unreachable
from toolwire.check.probes.calls import is_torn
from toolwire.check.probes.probe import HELLO, LONG, ODD, PAGE, PAGES
from toolwire.check.rules import RULES, is_applicable, select_rules
from toolwire.check.run import check
from toolwire.check.verdicts import Report, Verdict

Json = dict[str, Any]
APIS = ("chat", "responses", "messages", "gemini")
TIMEOUT = 120.0
"""Seconds for one answer. Faults that never answer have a shorter one."""
ATTEMPTS = ((1.5, 1.6), (10.0, 8.0), (60.0, 40.0))
"""Timeouts of a fault that never answers, and how long a stream is held back."""
SILENCE = {"seconds": ATTEMPTS[0][1]}
ANSWERS = ("stream.whole", "stream.live", "sse.content-type", "plain.json")
"""Rules about one answer that only a server can break, or that need one to be seen."""
TORN = LONG[:2003] + LONG[2100:]
HALF = LONG[:2003]


# Requests, as a fault knows them


def choice_of(received: ReceivedRequest) -> str:
    """`none`, `required`, the name of a tool, or nothing."""
    if received.api == "gemini":
        calling = received.body.get("toolConfig", {}).get("functionCallingConfig", {})
        names = calling.get("allowedFunctionNames", ()) if calling.get("mode") == "ANY" else ()
        return [*names, {"ANY": "required", "NONE": "none"}.get(calling.get("mode"), "")][0]
    choice = received.body.get("tool_choice")
    if not isinstance(choice, dict):
        return choice or ""
    named = choice.get("name") or choice.get("function", {}).get("name")
    return named or {"any": "required", "none": "none"}.get(choice.get("type", ""), "")


def chooses(name: str) -> Holds:
    return lambda received: choice_of(received) == name


def results_in(received: ReceivedRequest) -> list[str]:
    """The ids of the results in a history that has their calls too."""
    if received.api == "gemini":
        called = [each.get("id") for each in parts_of(received, "functionCall")]
        given = [each.get("id") for each in parts_of(received, "functionResponse")]
        return [id for id in given if id and given == called[::-1]]
    text = str(received.body)
    ids = [item.get("tool_call_id") or item.get("call_id") for item in _items(received) if _is_result(item)]
    ids += [block["tool_use_id"] for block in _blocks(received) if block.get("type") == "tool_result"]
    return [id for id in ids if text.count(id) > 1]


def _items(received: ReceivedRequest) -> list[Json]:
    given = received.body.get("input") or received.body.get("messages") or received.body.get("contents")
    return given if isinstance(given, list) else []


def parts_of(received: ReceivedRequest, field: str) -> list[Json]:
    """The calls or the results in the history of a Gemini request."""
    return [part[field] for item in _items(received) for part in item.get("parts", ()) if field in part]


def declared_in(tools: list[Json]) -> list[Json]:
    """The declarations of functions."""
    return [each for tool in tools for each in tool.get("functionDeclarations", [tool.get("function", tool)])]


def _is_result(item: Json) -> bool:
    return item.get("role") == "tool" or item.get("type") == "function_call_output"


def _blocks(received: ReceivedRequest) -> list[Json]:
    return [block for item in _items(received) if isinstance(item.get("content"), list) for block in item["content"]]


def has_results(count: int) -> Holds:
    """A history in which so many calls of this server are answered."""
    return lambda received: len([id for id in results_in(received) if id != "callcheck"]) == count


def is_bad(received: ReceivedRequest) -> bool:
    """A request that cannot be understood."""
    tools = received.body.get("tools")
    nameless = isinstance(tools, list) and any("name" not in each for each in declared_in(tools))
    return bool(received.api) and (not _items(received) or isinstance(tools, str) or nameless)


def without_schemas(received: ReceivedRequest) -> None:
    """Parameters get lost, so the arguments are empty."""
    empty = {"type": "object", "properties": {}}
    for inner in declared_in(received.body.get("tools", [])):
        inner["input_schema" if received.api == "messages" else "parameters"] = empty


def as_tools(received: ReceivedRequest) -> None:
    """Functions are taken for tools."""
    functions = received.body.pop("functions")
    received.body.pop("function_call")
    received.body["tools"] = [{"type": "function", "function": each} for each in functions]


def choose(name: str) -> RequestChange:
    def ask(received: ReceivedRequest) -> None:
        calling = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}}
        received.body["toolConfig" if received.api == "gemini" else "tool_choice"] = {
            "gemini": calling,
            "chat": {"type": "function", "function": {"name": name}},
            "responses": {"type": "function", "name": name},
            "messages": {"type": "tool", "name": name},
        }[received.api]

    return ask


def from_one_alphabet(received: ReceivedRequest) -> Reply | None:
    """Signatures are read in the standard alphabet alone."""
    if received.contains("-_-_"):
        return refuse(400, received)
    misread("+/+/", "")(received)
    return None


def has_neighbours(received: ReceivedRequest) -> bool:
    """A history in which two contents of the model are neighbours."""
    roles = [item.get("role") for item in _items(received)]
    return ("model", "model") in itertools.pairwise(roles)


def as_events(received: ReceivedRequest) -> None:
    received.query = "alt=sse"


def allow_parallel(received: ReceivedRequest) -> None:
    received.body.pop("parallel_tool_calls", None)
    if isinstance(received.body.get("tool_choice"), dict):
        received.body["tool_choice"].pop("disable_parallel_tool_use", None)


def asks_for(model: str) -> Holds:
    return lambda received: received.body.get("model") == model


def is_socket(received: ReceivedRequest) -> bool:
    return received.method == "WS"


def compacts(received: ReceivedRequest) -> bool:
    return received.path.endswith("/responses/compact")


def from_its_beginning(received: ReceivedRequest) -> None:
    received.query = "stream=true"


def forget(received: ReceivedRequest) -> None:
    """What the request continues is not looked at; the answer says that it was."""
    received.headers["forgotten"] = received.body.pop("previous_response_id")


def is_forgotten(received: ReceivedRequest) -> bool:
    return "forgotten" in received.headers


def half(received: ReceivedRequest) -> None:
    """The limit is kept, and what there is of the call is repaired and told as whole."""
    misread(LONG, HALF)(received)
    received.body["model"] = "demo"


# Answers


def held_back(received: ReceivedRequest, reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, steps=[Pause(SILENCE["seconds"]), *reply.steps])


def held_back_after_the_first(received: ReceivedRequest, reply: Reply) -> Reply:
    first, *others = frames(reply)
    return msgspec.structs.replace(reply, steps=[first, Pause(SILENCE["seconds"]), b"".join(others)])


def cut_in_the_middle(received: ReceivedRequest, reply: Reply) -> Reply:
    sent = frames(reply)
    return msgspec.structs.replace(reply, steps=[*sent[: len(sent) // 2], Pause(0.01), Cut()])


def endless(received: ReceivedRequest, reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, steps=[*frames(reply)[:2], Hold()])


def without_last(count: int) -> ReplyChange:
    """The last frames of a stream are lost."""
    return lambda received, reply: msgspec.structs.replace(reply, steps=frames(reply)[:-count])


def as_continued(received: ReceivedRequest, reply: Reply) -> Reply:
    id = f'"previous_response_id":"{received.headers["forgotten"]}"'
    return rewritten(b'"previous_response_id":null', id.encode())(received, reply)


def only_the_first(received: ReceivedRequest, reply: Reply) -> Reply:
    """An object without its `error`, as some frameworks write it."""
    return msgspec.structs.replace(reply, steps=[b'{"detail":"Something is wrong."}'])


def without_fields(received: ReceivedRequest, reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, steps=[b'{"error":{"message":"Something is wrong."}}'])


def as_page(received: ReceivedRequest, reply: Reply) -> Reply:
    return html(reply.status)


def of_turns(answer: ReplyChange) -> ReplyChange:
    """Errors are left alone."""
    return lambda received, reply: answer(received, reply) if reply.status == 200 else reply


def hangs_after_leaving() -> RequestChange:
    """The server waits for the client that has left."""
    left: list[str] = []

    def ask(received: ReceivedRequest) -> Reply | None:
        if received.api and received.contains("Oslo"):
            left.append(received.api)
        elif received.api in left:
            left.remove(received.api)
            return Reply([Hold()])
        return None

    return ask


def mixes_up_users() -> RequestChange:
    """The next client is answered what the one that left has asked for."""
    left: list[str] = []

    def ask(received: ReceivedRequest) -> None:
        if received.api and received.contains("Oslo"):
            left.append(received.api)
        elif received.api in left:
            left.remove(received.api)
            received.body = msgspec.json.decode(msgspec.json.encode(received.body).replace(b"Paris", b"Oslo"))

    return ask


# The table


class Case(msgspec.Struct, frozen=True):
    """A fault, and all that it breaks."""

    name: str
    fault: Callable[[], Fault]
    breaks: set[str]
    apis: tuple[str, ...] = APIS
    both: bool = False
    """The fault is also tried in streams alone, and in plain answers alone."""
    causes: int = 1
    """How many of the broken rules are explained by no other."""
    echo: str = ""
    """What it breaks on Responses besides, where the request is repeated as it was understood."""
    echo_alone: bool = False
    """That is also seen where the fault has no other effect."""
    hangs: bool = False
    """The fault is an answer that never ends."""

    def broken(self, api: str) -> set[str]:
        return self.breaks | ({self.echo} if self.echo and api == "responses" else set())


def asks(name: str, ask: RequestChange, *breaks: str, **about: Any) -> Case:
    return Case(name, lambda: Fault(ask), set(breaks), **about)


def answers(name: str, holds: Holds, answer: Any, *breaks: str, **about: Any) -> Case:
    return Case(name, lambda: Fault(answer=answer, to=holds), set(breaks), **about)


def is_streamed(received: ReceivedRequest) -> bool:
    return bool(received.api) and received.streamed


def is_plain(received: ReceivedRequest) -> bool:
    return bool(received.api) and received.body.get("stream") is not True


def is_long(received: ReceivedRequest) -> bool:
    """The stream that is long enough to see when it comes."""
    return received.streamed and received.body["model"] == "demo" and received.contains("line-699")


def empties(empty: bytes) -> Any:
    """Arguments of a call without arguments are not `{}`."""

    def answer(received: ReceivedRequest, reply: Reply) -> Reply:
        reply = rewritten(b'"args":{}', b'"args":"' + empty + b'"')(received, reply)
        for field in (b'"arguments":"', b'"delta":"', b'"partial_json":"'):
            reply = rewritten(field + b'{}"', field + empty + b'"')(received, reply)
        return rewritten(b'"input":{}}]', b'"input":[]}]')(received, reply)

    return answer


OPENAI = ("chat", "responses")
ONLY_CHAT, ONLY_RESPONSES, ONLY_MESSAGES, ONLY_GEMINI = ("chat",), ("responses",), ("messages",), ("gemini",)
UNCHOOSE = drop("tool_choice", "toolConfig")
STORED = "previous_response_id"


TOOLS = "responses.echo-tools"


def continues(unknown: bool) -> Holds:
    return lambda received: (
        bool(received.api) and STORED in received.body and (received.body[STORED] == "resp_no_such_response") == unknown
    )


def answers_call(received: ReceivedRequest) -> bool:
    """A result of a call that was made, over a WebSocket."""
    return is_socket(received) and received.contains("function_call_output") and not received.contains("callchec4")


def continues_with_hello(received: ReceivedRequest) -> bool:
    """A greeting that continues a response, over a WebSocket."""
    return is_socket(received) and STORED in received.body and received.contains(HELLO.text)


def nth(number: int, holds: Holds) -> Holds:
    """One of the requests of which it holds, counted from 1."""
    seen = itertools.count(1)
    return lambda received: holds(received) and next(seen) == number


def without_frames(text: bytes, end: bytes = b"\n\n") -> ReplyChange:
    """The frames with this text are lost."""

    def answer(received: ReceivedRequest, reply: Reply) -> Reply:
        came = [each + end for each in b"".join(reply.steps).split(end) if each]
        return msgspec.structs.replace(reply, steps=[each for each in came if text not in each])

    return answer


CASES = (
    asks(
        "choice none is ignored",
        where(chooses("none"), UNCHOOSE),
        "choice.none",
        both=True,
        echo=TOOLS,
    ),
    asks(
        "choice required is ignored",
        where(chooses("required"), drop("tool_choice", "toolConfig", "tools")),
        "choice.required",
        both=True,
        echo=TOOLS,
    ),
    asks(
        "another tool is forced",
        where(chooses("get_time"), choose("get_weather")),
        "choice.named",
        both=True,
        echo=TOOLS,
    ),
    asks(
        "parallel calls cannot be switched off",
        allow_parallel,
        "choice.parallel",
        apis=(*OPENAI, "messages"),
        both=True,
        echo=TOOLS,
    ),
    asks(
        "all tools are allowed",
        where(lambda received: received.contains("allowed_tools") or received.contains("VALIDATED"), UNCHOOSE),
        "choice.allowed",
        apis=(*OPENAI, *ONLY_GEMINI),
        both=True,
        echo=TOOLS,
    ),
    asks(
        "arguments of two calls get lost",
        where(contains("Rome"), without_schemas),
        "parallel.calls",
        both=True,
        echo=TOOLS,
        echo_alone=True,  # also where parallel calls are off
    ),
    answers(
        "no arguments are an empty text",
        contains('"ping"'),
        empties(b""),
        "arguments.empty",
        "calls.json",  # arguments that are no object are that in every turn
        apis=(*OPENAI, *ONLY_GEMINI),
        both=True,
    ),
    answers(
        "no arguments are a list",
        lambda received: contains('"ping"')(received) and received.streamed,
        empties(b"[]"),
        "arguments.empty",
        "calls.json",
        apis=ONLY_MESSAGES,
    ),
    answers(
        "no arguments are a list in a plain answer",
        lambda received: contains('"ping"')(received) and not received.streamed,
        empties(b"[]"),
        "arguments.empty",
        "calls.json",
        "messages.input",  # the same in the form of a plain answer
        apis=ONLY_MESSAGES,
    ),
    asks("characters are mojibake", misread(ODD, ODD.encode().decode("latin-1")), "arguments.unicode", both=True),
    asks(
        "characters are lost",
        misread(ODD, ODD.encode("ascii", "replace").decode()),
        "arguments.unicode",
        apis=ONLY_RESPONSES,
    ),
    asks("characters are escaped", misread("<b>&amp;", "&lt;b&gt;&amp;amp;"), "arguments.unicode", apis=ONLY_MESSAGES),
    asks(
        "a piece of long arguments is lost",
        where(lambda received: received.body.get("model") == "demo", misread(LONG, TORN)),
        "arguments.huge",
        both=True,
    ),
    asks(
        "half a call is made whole",
        where(lambda received: received.body.get("model") == "demo-length", half),
        "arguments.cut",
        both=True,
    ),
    asks("results are refused", where(has_results(1), refusing(400)), "history.result", both=True),
    asks("two results are refused", where(has_results(2), refusing(422)), "history.results", both=True),
    asks("failed tools are refused", where(contains("callcheck"), refusing(400)), "history.error-result"),
    asks("open calls are an error of the server", where(contains("callchec2"), refusing(500)), "history.orphan-call"),
    asks(
        "lone results break the connection",
        where(contains("callchec3"), lambda _: Reply([Cut()])),
        "history.orphan-result",
    ),
    asks(
        "lone results are never answered",
        where(contains("callchec3"), lambda _: Reply([Hold()])),
        "history.orphan-result",
        hangs=True,
        apis=ONLY_CHAT,
    ),
    answers("bad requests are fine", is_bad, with_status(200), "errors.status"),
    answers("bad requests are an error of the server", is_bad, with_status(500), "errors.status", apis=ONLY_RESPONSES),
    answers("errors have another form", is_bad, only_the_first, "errors.form"),
    answers("errors lack a field", is_bad, without_fields, "errors.fields", apis=("chat", "responses")),
    asks(
        "a failure is told as an end",
        where(lambda received: received.body.get("model") == "demo-error-middle", put(model="demo")),
        "stream.failure",
        both=True,
    ),
    answers("errors are web pages", is_bad, as_page, "errors.form", apis=ONLY_CHAT),
    answers("errors are text", is_bad, as_type("text/plain"), "errors.form", apis=ONLY_MESSAGES),
    asks("any model will do", where(contains("no-such-model"), put(model="demo")), "errors.model"),
    asks("a choice of nothing is ignored", where(chooses("no_such_tool"), UNCHOOSE), "errors.choice"),
    Case(
        "signatures are read in one alphabet",
        lambda: Fault(from_one_alphabet, rewritten(b'"thoughtSignature":"', b'"thoughtSignature":"+/+/')),
        {"history.signature"},
        apis=ONLY_GEMINI,
    ),
    asks(
        "calls without ids are refused",
        where(lambda received: any("id" not in each for each in parts_of(received, "functionCall")), refusing(400)),
        "history.no-id",
        apis=ONLY_GEMINI,
    ),
    asks("a turn in two contents is refused", where(has_neighbours, refusing(400)), "history.chunks", apis=ONLY_GEMINI),
    asks(
        "arrays are server-sent events",
        where(lambda received: received.body.get("stream") is True and not received.streamed, as_events),
        "stream.array",
        apis=ONLY_GEMINI,
    ),
    asks(
        "all requests have as many tokens",
        where(lambda received: received.path.endswith(":countTokens"), lambda _: reply_json(200, {"totalTokens": 7})),
        "usage.counted",
        apis=ONLY_GEMINI,
    ),
    asks(
        "functions are taken for tools",
        where(contains('"functions"'), as_tools),
        "legacy.functions",
        apis=ONLY_CHAT,
        both=True,
    ),
    answers(
        "functions end as tools do",
        contains('"functions"'),
        rewritten(b'"finish_reason":"function_call"', b'"finish_reason":"tool_calls"'),
        "legacy.functions",
        apis=ONLY_CHAT,
        both=True,
    ),
    asks(
        "a response is not continued",
        where(continues(unknown=False), drop(STORED)),
        "state.previous",
        apis=ONLY_RESPONSES,
        both=True,
        echo="responses.echo",
    ),
    Case(
        "a response is said to be continued, and is not",
        lambda: Fault(where(continues(unknown=False), forget), answer=as_continued, to=is_forgotten),
        {"state.previous"},
        apis=ONLY_RESPONSES,
    ),
    asks(
        "a response cannot be continued",
        where(continues(unknown=False), refusing(500)),
        "state.previous",
        apis=ONLY_RESPONSES,
        both=True,
    ),
    asks(
        "an unknown response is continued",
        where(continues(unknown=True), drop(STORED)),
        "state.unknown",
        apis=ONLY_RESPONSES,
        echo="responses.echo",
    ),
    asks(
        "responses are never continued, and nobody says so",
        drop(STORED),
        "state.previous",
        "state.unknown",
        "socket.continued",
        "socket.separate",
        "socket.unknown",
        apis=ONLY_RESPONSES,
        echo="responses.echo",
        echo_alone=True,
        causes=5,
    ),
    asks(
        "a stream is read again from its beginning",
        where(lambda received: "starting_after" in received.query, from_its_beginning),
        "state.resume",
        apis=ONLY_RESPONSES,
    ),
    asks("a cut text is told as whole", where(asks_for("demo-short"), put(model="demo")), "limits.output", both=True),
    asks("only one page is read", misread(" ".join([PAGE] * PAGES), PAGE), "limits.input"),
    *(
        answers(
            "a failure is not told",
            lambda received: asks_for("demo-error-middle")(received) and received.streamed,
            without_last(frames_lost),
            "stream.failure",
            *also,
            apis=(api,),
        )
        for api, frames_lost, also in (
            ("chat", 2, ("chat.finish", "chat.done-marker")),
            ("responses", 3, ("responses.closing", "responses.done-marker")),
            ("messages", 1, ("messages.closing", "messages.block-order")),
            ("gemini", 1, ("gemini.finish",)),
        )
    ),
    *(
        answers(
            f"a failure comes without its {name}",
            lambda received: asks_for("demo-error-middle")(received) and received.streamed,
            without_frames(text),
            *broken,
            apis=(api,),
            causes=causes,
        )
        for api, name, text, causes, broken in (
            ("chat", "error", b'{"error":', 1, ("stream.failure", "chat.finish")),
            ("responses", "event", b"event: error\n", 2, ("responses.failure-event", "responses.sequence-gap")),
            (
                "responses",
                "end",
                b"event: response.failed\n",
                2,
                ("stream.failure", "responses.error-event", "responses.closing"),
            ),
            ("messages", "event", b"event: error\n", 1, ("stream.failure", "messages.closing", "messages.block-order")),
        )
    ),
    *(
        answers(
            f"a failure over a WebSocket comes without its {name}",
            lambda received: is_socket(received) and asks_for("demo-error-middle")(received),
            without_frames(text, end=b"\n"),
            *broken,
            apis=ONLY_RESPONSES,
            causes=causes,
            hangs=name == "event and end",
        )
        for name, text, causes, broken in (
            ("event", b'{"type":"error"', 2, ("responses.failure-event", "responses.sequence-gap")),
            ("end", b'{"type":"response.failed"', 2, ("stream.failure", "responses.error-event", "responses.closing")),
            ("event and end", b'"error":{', 1, ("stream.failure", "stream.whole")),
        )
    ),
    Case(
        "a WebSocket continues a response of another connection",
        lambda: Fault(where(nth(1, continues_with_hello), drop(STORED))),
        {"socket.separate"},
        apis=ONLY_RESPONSES,
        echo="responses.echo",
    ),
    Case(
        "a WebSocket continues a response after a refused continuation",
        lambda: Fault(where(nth(2, continues_with_hello), drop(STORED))),
        {"socket.evicted"},
        apis=ONLY_RESPONSES,
        echo="responses.echo",
    ),
    asks(
        "a WebSocket is closed at its first message",
        where(is_socket, lambda _: Reply([Cut()])),
        "socket.turn",
        apis=ONLY_RESPONSES,
    ),
    asks(
        "a response is not continued over a WebSocket",
        where(answers_call, drop(STORED)),
        "socket.continued",
        apis=ONLY_RESPONSES,
        echo="responses.echo",
    ),
    asks(
        "a response cannot be continued over a WebSocket",
        where(
            answers_call,
            put(previous_response_id="resp_x"),
        ),
        "socket.continued",
        apis=ONLY_RESPONSES,
    ),
    asks(
        "an unknown response is continued over a WebSocket",
        where(lambda received: is_socket(received) and received.contains("resp_no_such_response"), drop(STORED)),
        "socket.unknown",
        apis=ONLY_RESPONSES,
        echo="responses.echo",
    ),
    answers(
        "an unknown response has another code over a WebSocket",
        lambda received: received.method == "WS",
        rewritten(b"previous_response_not_found", b"not_found"),
        "socket.unknown",
        apis=ONLY_RESPONSES,
    ),
    asks(
        "a background turn is begun over a WebSocket",
        where(lambda received: is_socket(received) and "background" in received.body, drop("background")),
        "socket.fields",
        apis=ONLY_RESPONSES,
        echo="responses.echo",
    ),
    answers(
        "errors over a WebSocket have no status",
        is_socket,
        rewritten(b'"type":"error","status":', b'"type":"error","state":'),
        "socket.error",
        apis=ONLY_RESPONSES,
    ),
    asks(
        "a second message over a WebSocket is never answered",
        where(lambda received: is_socket(received) and received.contains("Oslo"), lambda _: Reply([])),
        "socket.queue",
        hangs=True,
        apis=ONLY_RESPONSES,
    ),
    answers(
        "a compaction is a message",
        compacts,
        rewritten(b'"type":"compaction"', b'"type":"message"'),
        "compact.form",
        apis=ONLY_RESPONSES,
    ),
    answers(
        "a compaction is a response",
        compacts,
        rewritten(b'"object":"response.compaction"', b'"object":"response"'),
        "compact.fields",
        apis=ONLY_RESPONSES,
    ),
    asks(
        "a compaction is refused as input",
        where(contains('"compaction"'), refusing(400)),
        "compact.used",
        apis=ONLY_RESPONSES,
    ),
    answers(
        "a compaction without a model is fine",
        lambda received: compacts(received) and "model" not in received.body,
        with_status(200),
        "compact.errors",
        apis=ONLY_RESPONSES,
    ),
    asks(
        "results cannot be submitted",
        where(lambda received: received.path.endswith("submit_tool_outputs"), refusing(404)),
        "state.submit",
        apis=ONLY_RESPONSES,
    ),
    asks(
        "there is no list of models", where(lambda received: received.method == "GET", refusing(404)), "models.listed"
    ),
    asks(
        "the list of models is empty",
        where(lambda received: received.method == "GET", lambda _: reply_json(200, {"object": "list", "data": []})),
        "models.listed",
        apis=ONLY_CHAT,
    ),
    asks(
        "a forced call gets lost in streams",
        where(
            lambda received: received.streamed and choice_of(received) == "get_weather",
            drop("tools", "tool_choice", "toolConfig"),
        ),
        "stream.same",
        echo=TOOLS,
        echo_alone=True,  # in the stream, while the plain answer shows the difference
    ),
    asks(
        "a forced call gets lost in plain answers",
        where(
            lambda received: (
                is_plain(received) and not received.body.get("store") and choice_of(received) == "get_weather"
            ),
            drop("tools", "tool_choice"),
        ),
        "stream.same",
        apis=ONLY_RESPONSES,
        echo=TOOLS,
    ),
    Case("who comes after one who left waits", lambda: Fault(hangs_after_leaving()), {"stream.disconnect"}, hangs=True),
    Case(
        "who comes after one who left gets his answer",
        lambda: Fault(mixes_up_users()),
        {"stream.disconnect"},
        apis=ONLY_RESPONSES,
    ),
    answers(
        "a stream is cut",
        lambda received: contains("three words")(received) and received.streamed,
        cut_in_the_middle,
        "stream.whole",
    ),
    answers("all streams are cut", is_streamed, cut_in_the_middle, "stream.whole"),
    answers(
        "a plain answer is cut",
        lambda received: contains("three words")(received) and not received.streamed,
        lambda received, reply: msgspec.structs.replace(reply, steps=[reply.steps[0][:20], Pause(0.01), Cut()]),
        "stream.whole",
        apis=ONLY_CHAT,
    ),
    answers(
        "a stream never ends",
        lambda received: contains("three words")(received) and received.streamed,
        endless,
        "stream.whole",
        hangs=True,
        apis=ONLY_RESPONSES,
    ),
    answers("a stream comes at its end", is_long, held_back, "stream.live"),
    answers(
        "a stream comes at its end but for its beginning",
        is_long,
        held_back_after_the_first,
        "stream.live",
        apis=ONLY_MESSAGES,
    ),
    answers("streams are text", is_streamed, of_turns(as_type("text/plain")), "sse.content-type"),
    answers(
        "streams are JSON by name",
        is_streamed,
        as_type("application/json"),
        "sse.content-type",
        apis=ONLY_MESSAGES,
    ),
    asks(
        "nothing is streamed", where(is_streamed, drop("stream", "stream_options")), "sse.content-type", apis=ONLY_CHAT
    ),
    answers(
        "streams are web pages but for the first",
        lambda received: is_streamed(received) and not received.contains("Say hello."),
        of_turns(as_page),
        "sse.content-type",
        apis=ONLY_RESPONSES,
    ),
    answers(
        "plain answers are web pages",
        lambda received: is_plain(received) and not is_bad(received),
        of_turns(as_page),
        "plain.json",
    ),
    asks(
        "everything is streamed",
        where(lambda received: bool(received.api and received.body), put(stream=True)),
        "plain.json",
        apis=ONLY_RESPONSES,
    ),
)


# Trying them


class Run(msgspec.Struct, frozen=True):
    """One case on one API, in every answer or only in one kind of them."""

    case: Case
    api: str
    kind: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.case.name.replace(" ", "_"), self.api, self.kind)))

    def fault(self) -> Fault:
        fault = self.case.fault()
        if not self.kind:
            return fault
        holds = is_streamed if self.kind == "streamed" else is_plain
        return Fault(where(holds, fault.ask), fault.answer, lambda received: holds(received) and fault.to(received))

    @property
    def only(self) -> list[str]:
        """All rules are tried the first time, but for those that take long, which have faults of their own.
        Of another fault that breaks the same ones, only those of their areas are tried."""
        first = next(case for case in CASES if case.breaks == self.case.breaks and self.api in case.apis)
        if self.kind or first is not self.case:
            return sorted({RULES[rule].area for rule in self.case.broken(self.api)})
        return [rule for rule in RULES if rule in self.case.breaks or rule not in LONG_ONES]


LONG_ONES = ("arguments.huge", "stream.live")
WHOLE = [Run(case, api) for case in CASES for api in case.apis]
KINDS = [
    Run(case, case.apis[(number + index) % len(case.apis)], kind)
    for number, case in enumerate(case for case in CASES if case.both)
    for index, kind in enumerate(("streamed", "plain"))
]


async def tried(url: str, *apis: str, only: Sequence[str] = (), **about: Any) -> Report:
    return await check(
        Target(f"{url}/v1", **{"model": "demo", "budget": 500, "timeout": TIMEOUT, **about}), apis or APIS, only
    )


TIMED = {"stream.live"}
"""Rules that a busy machine breaks, keeps or does not show: only the tests of these rules look at them."""


def broken(report: Report) -> set[str]:
    return {each.rule for each in untimed(report)}


def untimed(report: Report, case: Case | None = None) -> list[Verdict]:
    """The broken rules, without those of time unless the case is about them."""
    ignored = TIMED - (case.breaks if case is not None else set())
    return [each for each in report.broken if each.rule not in ignored]


def not_observed(report: Report, api: str = "chat") -> dict[str, str]:
    """The rules that were not observed, and why."""
    return {
        each.rule: each.reasons[0]
        for each in report.verdicts
        if each.api == api and each.outcome == "not observed" and each.rule not in TIMED
    }


@pytest.fixture(scope="module")
def faulty(gateway: Gateway) -> Iterator[Faulty]:
    server = Faulty(gateway.url)
    yield server
    server.stop()


def report_of(run: Run, faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> Report:
    """What comes of a run. Where time matters, there are others with more of it, for a machine that is slow."""
    report = None
    for timeout, silence in ATTEMPTS if run.case.hangs or "stream.live" in run.case.breaks else ((TIMEOUT, 0.0),):
        monkeypatch.setitem(SILENCE, "seconds", silence)
        how = {"timeout": timeout} if run.case.hangs else {}
        report = asyncio.run(tried(faulty.add(run.fault()), run.api, only=run.only, **how))
        if {each.rule for each in untimed(report, run.case)} == run.case.broken(run.api):
            break
        monkeypatch.setattr("toolwire.check.endpoint.MAX_MODEL_RATE", 20)
    assert report is not None
    return report


def test_every_rule_of_behaviour_has_a_fault():
    tried_for = {(rule, api) for case in CASES for rule in case.breaks for api in case.apis if len(case.breaks) == 1}
    tried_for |= {("arguments.empty", api) for api in APIS}
    wanted = {rule.id for rule in RULES.values() if rule.on == "conversation"} | set(ANSWERS)
    assert tried_for >= {(rule.id, api) for api in APIS for rule in select_rules(api) if rule.id in wanted}


@pytest.mark.parametrize("run", WHOLE, ids=str)
def test_a_fault_breaks_its_rule_and_no_other(run: Run, faulty: Faulty, monkeypatch: pytest.MonkeyPatch):
    report = report_of(run, faulty, monkeypatch)
    found = untimed(report, run.case)
    assert {each.rule for each in found} == run.case.broken(run.api), [str(each) for each in found]
    causes = [each.rule for each in found if not each.follows]
    assert len(causes) == run.case.causes + (run.case.echo_alone and run.api == "responses"), causes
    must = any(RULES[rule].level == "MUST" for rule in run.case.breaks)
    assert report.is_sound is not must


@pytest.mark.parametrize("run", KINDS, ids=str)
def test_a_fault_in_one_kind_of_answers_is_found(run: Run, faulty: Faulty, monkeypatch: pytest.MonkeyPatch):
    assert broken(report_of(run, faulty, monkeypatch)) >= {
        rule for rule in run.case.breaks if RULES[rule].on == "conversation"
    }


# Sound servers


def run(url: str, *apis: str, only: Sequence[str] = (), **about: Any) -> Report:
    return asyncio.run(tried(url, *apis, only=only, **about))


def passed(report: Report) -> set[str]:
    return {each.rule for each in report.verdicts if each.outcome == "passed"}


def test_a_sound_server_breaks_nothing_and_shows_everything(gateway: Gateway):
    report = run(gateway.url)
    assert (report.apis, report.absent, report.spent) == ([*APIS], {}, False)
    assert broken(report) == set()
    assert {rule for api in APIS for rule in not_observed(report, api)} == set()
    assert {each.rule for each in report.verdicts if each.reasons} <= TIMED, "what passed needs no excuse"
    assert {(each.api, each.rule) for each in report.verdicts} == {
        (api, rule.id) for api in APIS for rule in select_rules(api)
    }
    assert len(report.exchanges) <= 260, "the default budget is enough"


def test_events_beyond_the_protocol_break_nothing_if_they_were_asked_for(gateway: Gateway):
    report = run(gateway.url, "responses", headers={"X-Proxy-Responses-Events": "Extended"})
    assert any(event.type == "response.required_action" for each in report.exchanges for event in each.received)
    assert broken(report) == set()


def test_what_is_passed_on_is_as_sound(faulty: Faulty):
    assert broken(run(faulty.add(Fault()), "chat")) == set()


def speaks_after(silence: float, pause: float) -> ReplyChange:
    """A model that thinks in silence, and then speaks."""

    def answer(received: ReceivedRequest, reply: Reply) -> Reply:
        spoken = [step for each in frames(reply)[:20] for step in (each, Pause(pause))]
        return msgspec.structs.replace(reply, steps=[Pause(silence), *spoken])

    return answer


def test_a_stream_that_comes_while_the_model_speaks_is_live(faulty: Faulty):
    async def both(pace: float) -> list[Report]:
        """One that speaks slowly, and one that thinks in silence before it speaks."""
        times = ((0, 0.08 * pace), (1.6 * pace, 0.008 * pace))
        faults = [Fault(answer=speaks_after(*each), to=is_long) for each in times]
        return await asyncio.gather(*(tried(faulty.add(fault), "chat", only=["stream.live"]) for fault in faults))

    found: list[tuple[list[Any], set[str]]] = []
    for pace in (1, 4, 16):  # a slow machine sees less of the pauses
        found = [(report.broken, passed(report)) for report in asyncio.run(both(pace))]
        if not any(each for each, _ in found):
            break
    assert found == [([], {"stream.live"})] * 2


def test_a_checker_that_cannot_run_while_the_model_speaks_does_not_call_the_stream_late(faulty: Faulty):
    sent = threading.Event()

    async def main() -> Report:
        loop = asyncio.get_running_loop()

        def answer(received: ReceivedRequest, reply: Reply) -> Reply:
            loop.call_soon_threadsafe(sent.wait, 60)  # the checker stands still meanwhile
            steps = [step for each in frames(reply)[:20] for step in (each, Pause(0.08))]
            return msgspec.structs.replace(reply, steps=[*steps, sent])

        return await tried(faulty.add(Fault(answer=answer, to=is_long)), "chat", only=["stream.live"])

    report = asyncio.run(main())
    assert sent.is_set()
    assert report.broken == []


def compressed(received: ReceivedRequest, reply: Reply) -> Reply:
    whole = gzip.compress(b"".join(reply.steps))
    pieces = [whole[start : start + 500] for start in range(0, len(whole), 500)]
    return msgspec.structs.replace(reply, steps=pieces, headers={"content-encoding": "gzip"})


def test_compressed_answers_are_read(faulty: Faulty):
    report = run(faulty.add(Fault(answer=compressed)), "messages", only=["messages", "sse", "arguments"])
    assert (broken(report), not_observed(report, "messages")) == (set(), {})


def test_a_forced_call_may_end_as_openai_ends_it(faulty: Faulty):
    stops = rewritten(b'"finish_reason":"tool_calls"', b'"finish_reason":"stop"')
    for choice, found in (("get_time", set()), ("required", {"calls.finish"})):
        url = faulty.add(Fault(answer=stops, to=chooses(choice)))
        assert broken(run(url, "chat", only=["calls", "choice"])) == found


def test_models_that_know_another_name_for_the_limit_are_asked_by_it(faulty: Faulty):
    def ask(received: ReceivedRequest) -> Reply | None:
        if "max_tokens" in received.body:
            return reply_json(
                400,
                {
                    "error": {
                        "message": "Use 'max_completion_tokens' instead.",
                        "type": "x",
                        "param": "max_tokens",
                        "code": "x",
                    }
                },
            )
        return None

    report = run(faulty.add(Fault(ask)), "chat")
    assert (broken(report), not_observed(report)) == (set(), {})


def test_a_server_that_cannot_stream_is_checked_as_far_as_it_goes(faulty: Faulty):
    report = run(faulty.add(Fault(where(is_streamed, refusing(400)))), "chat")
    assert broken(report) == set()
    assert {"chat.completion", "choice.none", "history.result"} <= passed(report)
    not_seen = not_observed(report)
    assert not_seen["chat.done-marker"] == not_seen["sse.json"] == "no stream was complete"
    assert not_seen["stream.disconnect"].startswith("status 400")


# Models that do not do what they are asked for


def is_forced(received: ReceivedRequest) -> bool:
    return choice_of(received) not in ("", "none")


def loses_tools(received: ReceivedRequest) -> None:
    received.body["model"] = received.body["model"].removesuffix("-length")  # which calls without tools, too
    drop("tools", "tool_choice", "toolConfig", "functions", "function_call", "parallel_tool_calls")(received)


NEEDS_A_CALL = {
    "arguments.cut",
    "arguments.empty",
    "choice.none",
    "choice.parallel",
    "history.result",
    "history.results",
    "parallel.calls",
}


@pytest.mark.parametrize("api", APIS)
def test_a_model_that_calls_only_when_it_must_shows_little(faulty: Faulty, api: str):
    report = run(
        faulty.add(
            Fault(
                where(lambda received: received.api and not is_forced(received) and not is_bad(received), loses_tools)
            )
        ),
        api,
    )
    assert broken(report) == ({TOOLS} if api == "responses" else set()), "the tools are not told, as they were lost"
    wanted = NEEDS_A_CALL | ({"choice.allowed", "legacy.functions"} if api == "chat" else set())
    wanted |= {"choice.allowed"} if api == "responses" else set()
    if api == "gemini":
        wanted |= {"choice.allowed", "history.signature", "history.no-id", "history.chunks"}
    wanted -= {rule for rule in wanted if not is_applicable(RULES[rule], api)}
    assert set(not_observed(report, api)) == wanted
    assert not_observed(report, api)["choice.none"] == "the model makes no call anyway"
    assert not_observed(report, api)["history.result"] == "the model did not call the tool"


def test_a_server_that_never_calls_breaks_what_it_must_and_shows_nothing_else(faulty: Faulty):
    report = run(
        faulty.add(
            Fault(
                where(
                    lambda received: (
                        bool(received.api) and not is_bad(received) and not received.contains("no_such_tool")
                    ),
                    loses_tools,
                )
            )
        ),
        "chat",
    )
    assert broken(report) == {"choice.required", "choice.named"}
    calls = {rule.id for rule in select_rules("chat") if rule.needs == "call"}
    assert set(not_observed(report)) >= NEEDS_A_CALL | calls | {
        "arguments.huge",
        "arguments.unicode",
        "legacy.functions",
    }
    assert {not_observed(report)[rule] for rule in calls} == {"no turn had a call"}


def test_a_model_that_makes_one_call_at_a_time_shows_nothing_of_parallel_calls(faulty: Faulty):
    report = run(faulty.add(Fault(misread('and for the city "Rome"', "and nothing more"))), "responses")
    assert broken(report) == set()
    assert not_observed(report, "responses") == {
        "parallel.calls": "the model made one call only, or called for something else",
        "history.results": "the turn did not have two calls",
        "choice.parallel": "the model makes one call anyway",
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Sorry, that is too long.", "the model did not repeat the text"),
        (LONG[: LONG.index(" line-500")], "the model did not repeat the text"),
        (LONG.replace(" line-77 ", " "), "the model did not repeat the text"),
        (LONG.upper(), "the model did not repeat the text"),
    ],
)
def test_a_model_that_repeats_something_else_is_spared(faulty: Faulty, said: str, why: str):
    report = run(faulty.add(Fault(misread(LONG, said))), "chat", only=["arguments.huge"])
    assert (broken(report), not_observed(report)) == (set(), {"arguments.huge": why})


def test_a_call_that_meets_its_limit_is_no_lost_text(faulty: Faulty):
    url = faulty.add(Fault(where(contains("line-699"), put(model="demo-length"))))
    assert not_observed(run(url, "messages", only=["arguments.huge"]), "messages") == {
        "arguments.huge": "the turn reached its token limit"
    }


@pytest.mark.parametrize(
    ("arrived", "torn"),
    [
        ("one two three four", False),
        ("one two four", False),
        ("one two three", False),
        ("two three four", False),
        ("one two two three four", False),
        ("", False),
        ("something else", False),
        ("one two three fo", True),
        ("one twree four", True),
        ("e two three four", True),
        ("one two threwo three four", True),
    ],
)
def test_models_keep_to_words_and_wires_do_not(arrived: str, torn: bool):
    assert is_torn(arrived, "one two three four") is torn


# Servers that cannot be asked, or not for everything


def test_a_contract_that_is_refused_is_not_observed(faulty: Faulty):
    report = run(faulty.add(Fault(where(contains('"functions"'), refusing(400)))), "chat", only=["legacy"])
    assert (broken(report), [*not_observed(report)]) == (set(), ["legacy.functions"])
    assert not_observed(report)["legacy.functions"].startswith("status 400: No.")


def test_state_that_is_refused_is_not_observed(faulty: Faulty):
    report = run(faulty.add(Fault(where(continues(unknown=False), refusing(400)))), "responses", only=["state"])
    assert (broken(report), [*not_observed(report, "responses")]) == (set(), ["state.previous"])


def test_an_api_that_is_not_there_is_named(faulty: Faulty):
    report = run(
        faulty.add(Fault(where(lambda received: received.api == "responses", refusing(404)))), only=["choice.none"]
    )
    assert (report.apis, [*report.absent]) == (["chat", "messages", "gemini"], ["responses"])
    assert report.absent["responses"].startswith("status 404")
    assert {each.api for each in report.verdicts} == {"chat", "messages", "gemini"}


@pytest.mark.parametrize(
    ("ask", "contains"),
    [
        (refusing(401), "status 401"),
        (refusing(403), "status 403"),
        (refusing(429), "status 429"),
        (refusing(500), "status 500"),
        (refusing(404), "status 404"),
        (lambda _: html(), "a web page"),
        (lambda _: html(502), "status 502"),
        (lambda _: Reply([Cut()]), "cannot be reached: the server closed the connection"),
        (
            lambda _: Reply([b""], 308, "text/plain", {"location": "https://elsewhere.example/"}),
            "https://elsewhere.example/",
        ),
    ],
)
def test_a_server_that_answers_nothing_was_not_checked(faulty: Faulty, ask: RequestChange, contains: str):
    url = faulty.add(Fault(ask))
    with pytest.raises(Unreachable, match=contains):
        run(url)
    assert len(faulty.requests(url)) == len(APIS), "each API was asked for once"


def test_a_model_that_is_not_there_was_not_checked(gateway: Gateway):
    with pytest.raises(Unreachable, match=r"'nobody'.*status 404"):
        run(gateway.url, model="nobody")


@pytest.mark.parametrize(
    "reply", [reply_json(200, {"data": []}), reply_json(404, {}), html(), Reply([b"[]"], 200, "application/json")]
)
def test_a_model_must_be_listed_or_named(faulty: Faulty, reply: Reply):
    url = faulty.add(Fault(where(lambda received: received.method == "GET", lambda _: reply)))
    with pytest.raises(Unreachable, match="lists no models: name one with --model"):
        run(url, model="")
    assert run(url, "chat", only=["models"], model="demo").is_sound, "that is no MUST"


def test_the_models_of_an_api_are_asked_for_with_its_key(faulty: Faulty):
    url = faulty.add(Fault(where(lambda received: "x-api-key" not in received.headers, refusing(401))))
    report = run(url, "messages", only=["models"], model="", key="k")
    assert (report.model, passed(report)) == ("demo", {"models.listed"})


def test_a_server_that_is_busy_shows_nothing(faulty: Faulty):
    asked_for = itertools.count(1)
    report = run(faulty.add(Fault(lambda received: refuse(429, received) if next(asked_for) > 1 else None)), "chat")
    assert broken(report) == set()
    assert {rule for rule in passed(report) if RULES[rule].on == "conversation"} == set()
    assert not_observed(report)["errors.status"].startswith("status 429")


def test_a_server_that_breaks_down_twice_is_not_excused(faulty: Faulty):
    report = run(faulty.add(Fault(where(chooses("none"), refusing(500)))), "chat")
    assert broken(report) == {"choice.none"}
    once = itertools.count()
    lucky = run(
        faulty.add(Fault(where(chooses("none"), lambda received: None if next(once) % 2 else refuse(500, received)))),
        "chat",
    )
    assert broken(lucky) == set()


def test_a_server_that_a_request_kills_breaks_that_rule_and_shows_no_more(gateway: Gateway):
    mortal = Faulty(gateway.url)

    def die(received: ReceivedRequest) -> Reply:
        mortal.close()
        return Reply([Cut()])

    report = run(mortal.add(Fault(where(contains("callchec2"), die))), "chat", "messages")
    mortal.stop()
    assert broken(report) == {"history.orphan-call"}
    assert (report.apis, report.absent) == (["chat"], {"messages": "the server can no longer be reached"})
    assert not_observed(report)["history.orphan-result"] == "the server can no longer be reached"
    assert "choice.none" in passed(report)


# Bounds


@pytest.mark.parametrize("budget", [4, 30, 60])
def test_a_budget_holds_for_the_whole_run(faulty: Faulty, budget: int):
    url = faulty.add(Fault())
    report = run(url, budget=budget)
    assert (report.spent, report.apis, len(faulty.requests(url))) == (True, [*APIS], budget)
    assert "models.listed" in not_observed(report, "messages"), "what was not tried has not passed"
    assert not_observed(report, "messages")["models.listed"] == f"the budget of {budget} requests is spent"
    assert all(reason for api in APIS for reason in not_observed(report, api).values())


def test_an_api_that_was_tried_to_its_end_does_not_blame_the_budget(gateway: Gateway):
    report = run(gateway.url, budget=60)
    assert not_observed(report, "chat") == {}
    assert "the budget of 60 requests is spent" in not_observed(report, "responses").values()


@pytest.mark.parametrize("budget", [0, 1])
def test_a_budget_for_nothing_is_said(gateway: Gateway, budget: int):
    with pytest.raises(Unreachable, match=f"the budget of {budget} requests is spent"):
        run(gateway.url, budget=budget, model="")


@pytest.mark.parametrize(
    ("only", "most"),
    [
        ("choice.none", 4),
        ("choice.required", 3),
        ("errors.model", 2),
        ("models", 2),
        ("errors", 11),
        ("stream.same", 3),
    ],
)
def test_only_what_can_show_a_rule_is_asked(faulty: Faulty, only: str, most: int):
    url = faulty.add(Fault())
    report = run(url, "chat", only=[only])
    assert len(faulty.requests(url)) <= most
    assert passed(report) == {rule for rule in RULES if only in (rule, RULES[rule].area)}


def test_a_rule_of_another_api_cannot_be_tried(faulty: Faulty):
    url = faulty.add(Fault())
    with pytest.raises(ValueError, match=r"state.submit is no rule for chat, messages"):
        run(url, "chat", "messages", only=["state.submit"])
    assert run(url, only=["state.submit"]).apis == ["responses"]
    assert {received.api for received in faulty.requests(url)} == {"responses", ""}


def test_streams_without_an_end_are_left_and_then_given_up(faulty: Faulty):
    def drip(received: ReceivedRequest, reply: Reply) -> Reply:
        return msgspec.structs.replace(reply, steps=[frames(reply)[0], *[Pause(0.02), b": still there\n\n"] * 5000])

    for timeout in (0.6, 5, 30):  # as long as this machine needs for all other answers
        report = run(faulty.add(Fault(answer=drip, to=is_streamed)), "chat", timeout=timeout)
        if broken(report) == {"stream.whole"}:
            break
    streams = [each for each in report.exchanges if each.streamed]
    assert streams
    assert all(each.body.count(b": still there") < 5000 for each in streams), "no stream was read to its end"
    assert broken(report) == {"stream.whole"}
    assert f"3 answers took longer than {timeout:g} s" in not_observed(report)["errors.status"]
    assert "chat.done-marker" in not_observed(report), "a stream without an end says nothing about its end"


def without_end(received: ReceivedRequest, reply: Reply) -> Reply:
    """More bytes than any answer has, in a few large events."""
    first, second = (
        frames(reply)[:2] if not is_socket(received) else b"".join(reply.steps).splitlines(keepends=True)[:2]
    )
    more = second.replace(b'"type"', b'"padding":"' + b"x" * 1_000_000 + b'","type"', 1)
    return msgspec.structs.replace(reply, steps=[first, *[more] * 20])


def too_large(report: Report) -> int:
    """How many answers had too many bytes, nearly all of which are forgotten."""
    large = [each for each in report.exchanges if each.failure == TOO_LARGE]
    assert all(len(each.body) < 2_000_000 and len(each.received) < 3 for each in large)
    return len(large)


def test_answers_without_an_end_are_left_and_then_given_up(faulty: Faulty):
    report = run(faulty.add(Fault(answer=without_end, to=is_streamed)), "responses", only=["stream.whole"])
    assert (too_large(report), broken(report)) == (3, {"stream.whole"})
    assert report.ended == {"responses": f"3 answers had more than {MAX_BYTES} bytes"}


def test_an_answer_without_an_end_over_a_socket_is_left(faulty: Faulty):
    report = run(faulty.add(Fault(answer=without_end, to=is_socket)), "responses", only=["socket.turn"])
    assert too_large(report) > 0


def test_a_message_without_an_end_over_a_socket_is_too_large(faulty: Faulty):
    def one_large_message(received: ReceivedRequest, reply: Reply) -> Reply:
        return msgspec.structs.replace(reply, steps=[b"".join(without_end(received, reply).steps).replace(b"\n", b"")])

    report = run(faulty.add(Fault(answer=one_large_message, to=is_socket)), "responses", only=["socket.turn"])
    assert too_large(report) > 0


def test_all_answers_together_are_bounded(faulty: Faulty, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("toolwire.check.endpoint.MAX_TOTAL_BYTES", MAX_TOTAL_BYTES // 10)

    def large(received: ReceivedRequest, reply: Reply) -> Reply:
        return msgspec.structs.replace(reply, steps=[b": " + b"x" * 1_500_000 + b"\n\n", *reply.steps])

    report = run(faulty.add(Fault(answer=large, to=is_streamed)), "chat")
    assert sum(len(each.body) for each in report.exchanges) < MAX_TOTAL_BYTES // 10 + MAX_BYTES
    assert "all answers together" in str(not_observed(report))


def test_what_hangs_on_one_api_does_not_keep_the_others(faulty: Faulty):
    url = faulty.add(Fault(where(lambda received: received.api == "chat", lambda _: Reply([Hold()]))))
    for timeout in (0.6, 5, 30):  # as long as this machine needs for the answer of the other
        report = run(url, "chat", "messages", only=["choice.none"], timeout=timeout)
        if report.apis:
            break
    assert (report.absent, report.apis) == ({"chat": "no answer in time"}, ["messages"])


# Secrets

KEY = "sk-0123456789abcdef"


def test_a_key_that_a_server_repeats_is_not_kept(faulty: Faulty):
    def echo(received: ReceivedRequest, reply: Reply) -> Reply:
        body = b"".join(reply.steps).replace(b"Paris", KEY.encode())
        return msgspec.structs.replace(reply, steps=[body[start : start + 7] for start in range(0, len(body), 7)])

    report = run(faulty.add(Fault(answer=echo)), "chat", only=["choice.parallel"], key=KEY)
    kept = msgspec.json.encode([each.body for each in report.exchanges]), str(report)
    assert any(b"[removed]" in each.body for each in report.exchanges)
    assert not any(KEY.encode() in each.body for each in report.exchanges)
    assert KEY not in kept[1]


def test_a_placeholder_is_no_secret(faulty: Faulty):
    report = run(faulty.add(Fault()), "chat", only=["choice.parallel"], key="Paris")
    assert passed(report) == {"choice.parallel"}
    assert any(b"Paris" in each.body for each in report.exchanges)
