"""ReasoningCache and their signatures: back to whoever made them, in their place, and to nobody else."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.museum.cases import Theme
from tests.museum.clients import Json
from tests.museum.gate import Door, ResponsesDoor, Routes, Wire
from tests.museum.lines import ask, ask_responses, cc, part
from tests.museum.routes import ASK, KINDS, ask_all, ask_messages, began, chunks, hear, over, sent, thought, told, use
from tests.support.frames import call, completed, created, rs, stream
from tests.support.gateway import Gateway, backend
from tests.support.upstream import Reply, Upstream
from toolwire.core.request import Request

theme = Theme("reasoning")

_USER: Json = {"role": "user", "content": "Go."}
_SEALED: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "signed by A"}
_PAIR: list[Json] = [
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "ok"},
]
_CALLED: list[Json] = [
    {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
]


def _types(request: Request) -> list[str]:
    """The items that a Responses server is sent."""
    return [item.get("type", "message") for item in sent("responses", request).body["input"]]


# A thought alone

_ORPHAN = [_USER, _SEALED, {"role": "user", "content": "Go on."}]


@theme.row("rz-reasoning-alone")
def _() -> None:
    for kind in ("chat", "messages"):
        shown = sent(kind, ask_responses(input=_ORPHAN))
        assert shown.codes == ["reasoning_dropped"]
        assert "assistant" not in [message["role"] for message in shown.messages]
    assert _types(ask_responses(input=_ORPHAN)) == ["message", "message"]
    assert sent("responses", ask_responses(input=_ORPHAN)).codes == ["reasoning_dropped"]
    # One that leads to something stays with it.
    assert _types(ask_responses(input=[_USER, _SEALED, *_PAIR])) == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]


# Signed thinking

_THINKS = began() + thought(0, "Hm.") + use(1, "c1", "f", "{}") + over("tool_use")
_SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "SIG"}


def _as_answered(dialect: str, plain: Json) -> list[Json]:
    """What a client that carries signatures adds to its history: the answer as it came, and the result."""
    if dialect == "responses":
        return [*plain["output"], _PAIR[1]]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    return [{"role": "assistant", "content": plain["content"]}, {"role": "user", "content": [result]}]


def _next_turn(dialect: str, plain: Json) -> Request:
    field = "input" if dialect == "responses" else "messages"
    return ASK[dialect](tools=("f",), **{field: [_USER, *_as_answered(dialect, plain)]})


@theme.row("rz-thinking-first")
def _(routes: Routes) -> None:
    # Clients that carry signatures bring it back themselves.
    for dialect in ("responses", "messages"):
        answered = hear("messages", _THINKS, ASK[dialect](tools=("f",)))
        _, assistant, _ = sent("messages", _next_turn(dialect, answered.plain)).body["messages"]
        assert assistant["content"][0] == _SIGNED
        assert [each["type"] for each in assistant["content"]] == ["thinking", "tool_use"]
    # For a chat client it is kept.
    for stream_it in (True, False):
        model = routes.script("messages", _THINKS)
        asked = {"tools": ("f",), "reasoning_effort": "high"}
        routes.chat.stream(model, **asked) if stream_it else routes.chat.plain(model, **asked)
        routes.chat.plain(model, messages=[_USER, *_CALLED], **asked)
        _, assistant, _ = routes.asked(model)[-1].body["messages"]
        assert assistant["content"][0] == _SIGNED
    # What was never signed is not made up, and nothing is asked that insists on it: adaptive thinking does not.
    for history in ([_USER, *_CALLED], [_USER, {**_CALLED[0], "reasoning_content": "Hm."}, _CALLED[1]]):
        request = sent("messages", ask(messages=history, tools=("f",), reasoning_effort="high"))
        assert [each["type"] for each in request.body["messages"][1]["content"]] == ["tool_use"]
        assert request.body["thinking"] == {"type": "adaptive"}
        assert request.codes == (["reasoning_dropped"] if "reasoning_content" in history[1] else [])


# A signature on a call

_SIGNATURE = {"extra_content": {"google": {"thought_signature": "S"}}}
_SIGNED_CALLS = chunks(
    cc(part("{}", index=0, id="a", name="f", **_SIGNATURE), part("{}", index=1, id="b", name="g")),
    cc(finish="tool_calls"),
)


def _answers_both(**signature: Any) -> list[Json]:
    made = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id, name in zip("ab", "fg", strict=True)
    ]
    results = [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in "ab"]
    return [_USER, {"role": "assistant", "tool_calls": [{**made[0], **signature}, made[1]]}, *results]


def _carries_signatures(calls: list[Json]) -> bool:
    return [call.get("extra_content") for call in calls] == [_SIGNATURE["extra_content"], None]


@theme.row("rz-gemini-sig")
def _(routes: Routes) -> None:
    assert told("chat", _SIGNED_CALLS, ask_all("f", "g")).calls == [("a", "f", "{}"), ("b", "g", "{}")]
    # A chat client gets it, and may bring it back.
    answered = hear("chat", _SIGNED_CALLS, ask(tools=("f", "g")))
    assert _carries_signatures(answered.plain["choices"][0]["message"]["tool_calls"])
    back = sent("chat", ask(messages=_answers_both(**_SIGNATURE), tools=("f", "g")))
    assert _carries_signatures(back.messages[1]["tool_calls"])
    # For one that drops it, it is kept.
    model = routes.script("chat", _SIGNED_CALLS)
    routes.chat.stream(model, ("f", "g"))
    routes.chat.plain(model, ("f", "g"), messages=_answers_both())
    assert _carries_signatures(routes.asked(model)[-1].body["messages"][1]["tool_calls"])


# Seals of others


def _blocks(*content: Json) -> Request:
    """A Messages client that brings these blocks back before the call it answers."""
    called: Json = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    result: Json = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    history = [_USER, {"role": "assistant", "content": [*content, called]}, {"role": "user", "content": [result]}]
    return ask_messages(messages=history, tools=("f",))


_SEALED_WITH_WORDS = {**_SEALED, "summary": [{"type": "summary_text", "text": "Hm."}]}
_FOREIGN = {
    # what a client brings: the request, the servers that must not see it, and what they must not see
    "encrypted by OpenAI": (
        ask_responses(input=[_USER, _SEALED_WITH_WORDS, *_PAIR], tools=("f",)),
        ("chat", "messages"),
        "signed by A",
    ),
    "signed by Anthropic": (_blocks(_SIGNED), ("chat", "responses"), "SIG"),
    "redacted by Anthropic": (_blocks({"type": "redacted_thinking", "data": "SIG"}), ("chat", "responses"), "SIG"),
}


@theme.row("rz-foreign-sig")
def _() -> None:
    for what, (request, kinds, signature) in _FOREIGN.items():
        for kind in kinds:
            shown = sent(kind, request)
            assert signature not in shown.text, (what, kind)
            assert shown.codes == ["reasoning_dropped"]
        [own] = set(KINDS) - set(kinds)
        assert signature in sent(own, request).text
    # Not even the words of a signed thought go to a server that would take them for its own.
    left = sent("chat", _blocks(_SIGNED), reasoning="reasoning_content")
    assert "Hm." not in left.text
    assert left.codes == ["reasoning_dropped"]
    # A package of ours is opened for the origin, and goes to nobody else as it is either.
    carried = _next_turn("responses", hear("messages", _THINKS, ask_responses(tools=("f",))).plain)
    for kind in ("chat", "responses"):
        assert "toolwire.signature" not in sent(kind, carried).text
        assert "SIG" not in sent(kind, carried).text


# Seals of another account

_SEALS = stream(
    created(),
    rs("output_item.done", output_index=0, item=_SEALED),
    call("c1", "f", "{}", index=1),
    completed(),
)
_REFUSED = Reply(
    [
        json.dumps(
            {
                "error": {
                    "message": "The encrypted content for item rs_1 could not be verified.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "invalid_encrypted_content",
                }
            }
        ).encode()
    ],
    status=400,
    content_type="application/json",
)


class Accounts:
    """A gateway with two accounts, A and B, at servers of one kind."""

    def __init__(self, gateway: Gateway, upstream: Upstream, http: httpx.Client) -> None:
        self.upstream = upstream
        self.chat = Wire(gateway, upstream, http)
        self.responses = ResponsesDoor(gateway, upstream, http)

    def turn(self, door: Door, account: str, model: str, **history: Any) -> str:
        """Ask, and say what the account was sent."""
        answered = door.plain(f"{account}/{model}", ("f",), **history)
        assert answered.status_code == 200, answered.text
        return json.dumps(self.upstream.of(model)[-1].body)


@pytest.fixture(scope="module")
def accounts(upstream: Upstream, http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    tables = backend(upstream.url, "A") + backend(upstream.url, "B")
    gateway = Gateway(tmp_path_factory.mktemp("accounts"), tables)
    upstream.replies["sealing"] = Reply([_SEALS])
    yield Accounts(gateway, upstream, http)
    gateway.stop()


_BROUGHT = {"input": [_USER, _SEALED, *_PAIR]}
"""What a Responses client brings back by itself."""


@theme.row("rz-wrong-provider-400")
def _(accounts: Accounts, routes: Routes) -> None:
    accounts.turn(accounts.chat, "A", "sealing")
    assert "signed by A" in accounts.turn(accounts.chat, "A", "sealing", messages=[_USER, *_CALLED])
    assert "signed by A" in accounts.turn(accounts.responses, "A", "sealing", **_BROUGHT)
    # A request that is refused for another reason is not asked again.
    model = routes.script("responses", Reply([b'{"error":{"message":"no"}}'], 400, "application/json"))
    assert routes.responses.plain(model, ("f",), **_BROUGHT).status_code == 400
    assert len(routes.asked(model)) == 1
    # To another account go neither what was kept,
    assert "signed by A" not in accounts.turn(accounts.chat, "B", "sealing", messages=[_USER, *_CALLED])
    # nor what a client carried.
    answered = accounts.responses.plain("A/sealing", ("f",)).json()
    history = {"input": [_USER, *answered["output"], _PAIR[1]]}
    assert "signed by A" in accounts.turn(accounts.responses, "A", "sealing", **history)
    assert "signed by A" not in accounts.turn(accounts.responses, "B", "sealing", **history)


@pytest.mark.parametrize("stream_it", [True, False], ids=["streamed", "plain"])
def test_a_refused_seal_is_left_out_once(routes: Routes, *, stream_it: bool) -> None:
    model = routes.script("responses", _REFUSED, Reply([stream(created(), completed())]))
    door, asked = routes.responses, {"tools": ("f",), **_BROUGHT}
    status = door.stream(model, **asked).status if stream_it else door.plain(model, **asked).status_code
    assert status == 200
    first, second = routes.asked(model)
    assert "signed by A" in json.dumps(first.body)
    assert "signed by A" not in json.dumps(second.body)


test_museum = theme.test()
