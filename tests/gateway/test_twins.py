"""A call that a model makes twice, as text and in structure: delivered once, on every route, and answered for both."""

import json
from typing import Any

import httpx
import pytest

from tests.support.conversations import AGENTS, Client, Result, ScriptedConversation, Step, Strict
from tests.support.fold import fold_chat
from tests.support.frames import call, completed, created, text
from tests.support.gateway import Gateway, backend, chat_body, read_sse, tool
from tests.support.pace import at_any_pace
from tests.support.routes import Routes
from tests.support.scripts import KINDS, Calls, Name, Says, Script, Thinks
from tests.support.transcripts import Model, Tools, transcript
from tests.support.upstream import Asked, Hold, Pause, Reply, Upstream

BLOCK = "<use_tool>\n<name>look</name>\n<q>x</q>\n</use_tool>"
TWICE = Script(
    (
        Thinks("Hm.", "SEAL"),
        Says(f"Let me see.\n{BLOCK}\n"),
        Calls("c1", "look", '{"q": "x"}'),
        Calls("c2", "find", "{}"),
    )
)
DONE = Script((Says("Done."),))


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", AGENTS)
def test_a_twin_is_dropped_and_the_conversation_goes_on(routes: Routes, client: Client, kind: Name, streamed: bool):
    model = f"twins {client} {kind} {streamed}"
    service = Strict(kind, [TWICE, DONE], stream=streamed)
    routes.upstream.replies[model] = service
    conversation = ScriptedConversation((Step(TWICE, "Go."), Step(DONE)), thinks=True)
    agent = AGENTS[client](routes, f"{kind}/{model}", conversation, stream=streamed)
    seen = agent.take(conversation.steps[0])
    assert seen.text.strip() == "Let me see."
    assert [(made.name, json.loads(made.arguments), made.whole) for made in seen.calls] == [
        ("look", {"q": "x"}, True),
        ("find", {}, True),
    ]
    delivered, other = (made.id for made in seen.calls)
    assert (delivered != "c1", other) == (True, "c2")
    results = (Result(delivered, "Here."), Result(other, "There."))
    assert agent.take(Step(DONE, results=results)).text == "Done."
    *_, turn, answers = transcript(kind, service.bodies[-1])
    assert isinstance(turn, Model)
    assert [name for _, name, _ in turn.calls] == ["look", "find"]
    assert answers == Tools(((0, "Here.", False, False), (1, "There.", False, False)))


TOOLS = [tool("look", q={"type": "string"}), tool("find")]


def chunk(reason: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return (
        b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": [choice]}).encode() + b"\n\n"
    )


def test_the_signature_of_a_twin_returns_with_the_call_that_stands_for_it(routes: Routes):
    signature = {"google": {"thought_signature": "SIGNED"}}
    made = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"q":"x"}'}}
    told = [chunk(content=BLOCK), chunk(tool_calls=[{**made, "extra_content": signature}]), chunk("tool_calls")]
    asked: list[Asked] = []

    def answer(request: Asked) -> Reply:
        asked.append(request)
        return Reply([*told, b"data: [DONE]\n\n"] if len(asked) == 1 else [chunk("stop", content="Done.")])

    routes.upstream.replies["signs"] = answer
    user = {"role": "user", "content": "Go."}
    body = {"model": "chat/signs", "messages": [user], "tools": TOOLS, "stream": True}
    said = routes.ask("chat", body).own
    [call] = said["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Here."}
    routes.post("chat", {**body, "messages": [user, said, result]})
    [sent] = asked[-1].body["messages"][1]["tool_calls"]
    assert (sent["id"], sent["extra_content"]) == (call["id"], signature)


# Stopping


@pytest.mark.parametrize("mode", ["burst", "first"])
def test_a_textual_call_is_stopped_after_where_tools_went_upstream_too(http, start, upstream: Upstream, mode):
    upstream.replies["talks on"] = Reply([created(), text(BLOCK), *[text("tail "), Pause(0.05)] * 10_000, Hold()])
    upstream.gone.clear()
    gateway = start(
        backend(upstream.url),
        PROXY_STOP_AFTER_TOOLS="TRUE",
        PROXY_STOP_AFTER_TOOLS_MODE=mode.upper(),
        PROXY_STOP_AFTER_TOOLS_GRACE_MS="100",
    )
    message, comment = asked_of(http, gateway, "up/talks on")
    assert ([made["function"]["name"] for made in message["tool_calls"]], message["content"]) == (["look"], None)
    assert comment["stop_after_tools_mode"] == mode
    assert upstream.gone.wait(60)
    assert [turn["stop_after_tools_mode"] for turn in gateway.wait_for_turns(1)] == [mode]


@pytest.mark.parametrize("mode", ["openai-json", "obsidian-xml"])
def test_a_call_that_is_on_its_way_keeps_a_burst_open(http, start, upstream: Upstream, mode):
    def count(factor: float) -> None:
        """Each further call takes longer than the grace period."""
        letters = BLOCK.replace("<q>x", "<q>y")
        pause = Pause(0.4 * factor / len(letters))
        slowly = [step for letter in letters for step in (text(letter), pause)]
        second = [call("c2", "look", '{"q":"z"}', index=2)[:-1], Pause(0.4 * factor), b"\n"]
        upstream.replies["on its way"] = Reply([created(), text(BLOCK), *slowly, *second, completed()])
        grace = str(int(300 * factor))
        gateway = start(backend(upstream.url), PROXY_STOP_AFTER_TOOLS="1", PROXY_STOP_AFTER_TOOLS_GRACE_MS=grace)
        message, _ = asked_of(http, gateway, "up/on its way", **{"x-proxy-output-mode": mode})
        made = [json.loads(each["function"]["arguments"])["q"] for each in message["tool_calls"]]
        assert made == ["x", "y", "z"]

    at_any_pace(count)


def asked_of(http: httpx.Client, gateway: Gateway, model: str, **headers: str) -> tuple[Any, Any]:
    body = chat_body(model, stream=True, tools=TOOLS)
    frames = list(read_sse(http.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)))
    comment = json.loads(next(value for kind, value in frames if kind == "comment"))
    return fold_chat(frames)["message"], comment
