"""Reasoning of chat servers over tool turns: back to the server that made it, in its own fields, and to nobody else."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.backend_writers import reply
from tests.support.conversations import AGENTS, Agent, ChatAgent, Client, Result, ScriptedConversation, Step, Strict
from tests.support.routes import Routes
from tests.support.scripts import LOOK, Calls, Name, Says, Script, Thinks
from tests.support.upstream import Asked, Reply

Json = dict[str, Any]

STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
CLIENTS = pytest.mark.parametrize("client", ["chat", "forgetful", "messages", "responses", "chained"])
OF_REASONING = ("reasoning_content", "reasoning", "reasoning_details")

CONVERSATION = ScriptedConversation(
    (
        Step(Script(()), "Go."),
        Step(Script(()), results=(Result("call_1", "Here."),)),
        Step(Script(()), results=(Result("call_2", "And here."),)),
        Step(Script(()), "Thanks. Go on."),
    ),
    tools=(LOOK,),
)


class Forgetful(ChatAgent):
    """A chat client that keeps what it knows of a message: its text and its calls."""

    def _keep(self, own: Json) -> None:
        calls = [{name: call[name] for name in ("id", "type", "function")} for call in own.get("tool_calls") or ()]
        kept = {name: own.get(name) for name in ("role", "content")}
        self._history.append({**kept, "tool_calls": calls} if calls else kept)


def agent_of(client: str, routes: Routes, model: str, *, stream: bool) -> Agent:
    kind = Forgetful if client == "forgetful" else AGENTS[client]  # type: ignore[index]
    return kind(routes, model, CONVERSATION, stream=stream)


# The servers


def texts(number: int) -> list[str]:
    return [f"Step {number}: ", "ha", "ha", ", I must ", "look."]


def whole(number: int) -> str:
    return "".join(texts(number))


class Server:
    """A chat server that thinks before its two calls, and refuses a message of its own that it does not recognise."""

    field = "reasoning_content"
    complaint = "The `reasoning_content` in the thinking mode must be passed back to the API."

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self.bodies: list[Json] = []

    def __call__(self, asked: Asked) -> Reply:
        self.bodies.append(asked.body)
        fault = self.fault(asked.body)
        if fault is not None:
            return Reply([json.dumps(fault).encode()], 400, "application/json")
        number = 1 + sum(1 for message in asked.body["messages"] if message["role"] == "assistant")
        deltas = [*self.deltas(number)] if number <= 2 else [{"role": "assistant", "content": "Done."}]
        finish = "tool_calls" if number <= 2 else "stop"
        if not self._stream:
            message = self.message(number) if number <= 2 else deltas[0]
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return Reply([json.dumps({"id": "x", "model": "m", "choices": [choice]}).encode()], 200, "application/json")
        chunks: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        chunks.append({"index": 0, "delta": {}, "finish_reason": finish})
        frames = [f"data: {json.dumps({'id': 'x', 'model': 'm', 'choices': [chunk]})}\n\n" for chunk in chunks]
        return Reply([("".join(frames) + "data: [DONE]\n\n").encode()])

    def call(self, number: int) -> Json:
        return {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}

    def written(self, number: int) -> Json:
        """The fields in which the server has written its reasoning."""
        return {self.field: whole(number)}

    def deltas(self, number: int) -> Iterator[Json]:
        yield {"role": "assistant", "content": None, self.field: ""}
        yield from ({self.field: text} for text in texts(number))
        yield {"tool_calls": [{"index": 0, **self.call(number)}]}

    def message(self, number: int) -> Json:
        return {"role": "assistant", "content": None, **self.written(number), "tool_calls": [self.call(number)]}

    def fault(self, body: Json) -> Json | None:
        calling = [message for message in body["messages"] if message.get("tool_calls")]
        for number, message in enumerate(calling, 1):
            if {name: message[name] for name in OF_REASONING if name in message} != self.written(number):
                return {"error": {"message": self.complaint, "type": "invalid_request_error"}}
        return None


class Silent(Server):
    """It has nothing to think, says so, and wants that back too."""

    def written(self, number: int) -> Json:
        return {self.field: ""}

    def deltas(self, number: int) -> Iterator[Json]:
        yield {"role": "assistant", "content": None, self.field: ""}
        yield {"tool_calls": [{"index": 0, **self.call(number)}]}


class Renamed(Server):
    """vLLM and Ollama."""

    field = "reasoning"


class OpenRouter(Server):
    """Its details come in pieces, the signature behind the text, and what is encrypted behind the call."""

    field = "reasoning"
    complaint = "reasoning_details are missing"

    def written(self, number: int) -> Json:
        text = {"type": "reasoning.text", "text": whole(number), "format": "f-v1", "index": 0, "signature": "SIG"}
        hidden = {
            "type": "reasoning.encrypted",
            "data": f"E{number}",
            "id": f"call_{number}",
            "format": "f-v1",
            "index": 1,
        }
        return {"reasoning": whole(number), "reasoning_details": [text, hidden]}

    def deltas(self, number: int) -> Iterator[Json]:
        _, hidden = self.written(number)["reasoning_details"]
        for text in texts(number):
            piece = {"type": "reasoning.text", "text": text, "format": "f-v1", "index": 0}
            yield {"role": "assistant", "content": "", "reasoning": text, "reasoning_details": [piece]}
        signed = {"type": "reasoning.text", "signature": "SIG", "format": "f-v1", "index": 0}
        yield {"role": "assistant", "content": "", "reasoning": None, "reasoning_details": [signed]}
        yield {"role": "assistant", "content": "", "tool_calls": [{"index": 0, **self.call(number)}]}
        yield {"role": "assistant", "content": "", "reasoning_details": [hidden]}


class Gemini(Server):
    """Gemini 3 over its OpenAI-compatible API: the signature is in the call."""

    def call(self, number: int) -> Json:
        return {**super().call(number), "extra_content": {"google": {"thought_signature": f"S{number}"}}}

    def written(self, number: int) -> Json:
        return {}

    def deltas(self, number: int) -> Iterator[Json]:
        yield {"role": "assistant", "tool_calls": [{"index": 0, **self.call(number)}]}

    def fault(self, body: Json) -> Json | None:
        calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
        if calls == [self.call(number) for number, _ in enumerate(calls, 1)]:
            return None
        return {"error": {"message": "Function call is missing a thought_signature in functionCall parts."}}


class SignedLate(Gemini):
    """The same, with the signature in a delta of its own behind the call, which names no call."""

    def deltas(self, number: int) -> Iterator[Json]:
        call = self.call(number)
        signature = {"extra_content": call.pop("extra_content")}
        yield {"role": "assistant", "tool_calls": [{"index": 0, **call}]}
        yield {"tool_calls": [signature]}


SERVERS: dict[str, type[Server]] = {
    "deepseek": Server,
    "nothing to think": Silent,
    "vllm": Renamed,
    "openrouter": OpenRouter,
    "gemini": Gemini,
    "gemini, signed late": SignedLate,
}


def is_prefix(shorter: list[Json], longer: list[Json]) -> bool:
    return json.dumps(longer).startswith(json.dumps(shorter)[:-1])


@STREAMS
@CLIENTS
@pytest.mark.parametrize("server", SERVERS)
def test_a_server_gets_its_own_reasoning_back(routes: Routes, server: str, client: Client, stream: bool):
    model = f"strict {server} {client} {stream}"
    service = routes.upstream.replies[model] = SERVERS[server](stream=stream)
    agent = agent_of(client, routes, f"chat/{model}", stream=stream)
    seen = [agent.take(step) for step in CONVERSATION.steps]
    assert [[call.id for call in turn.calls] for turn in seen] == [["call_1"], ["call_2"], [], []]
    assert len(service.bodies) == len(CONVERSATION.steps)
    # What was put back from memory stays there: a prompt cache holds.
    for one, other in zip(service.bodies, service.bodies[1:], strict=False):
        assert is_prefix(one["messages"], other["messages"])


@STREAMS
@pytest.mark.parametrize("server", ["deepseek", "vllm", "openrouter"])
@pytest.mark.parametrize("client", ["chat", "messages", "responses"])
def test_reasoning_has_its_place_in_every_dialect(routes: Routes, server: str, client: Client, stream: bool):
    model = f"shown {server} {client} {stream}"
    routes.upstream.replies[model] = SERVERS[server](stream=stream)
    agent = agent_of(client, routes, f"chat/{model}", stream=stream)
    held = routes.ask(agent.dialect, agent.request(CONVERSATION.steps[0]))
    if client == "chat":
        field = SERVERS[server].field
        assert held.own[field] == whole(1)
        assert ("reasoning_details" in held.own) == (server == "openrouter")
        assert [name for name in ("reasoning_content", "reasoning") if held.own.get(name)] == [field]
    else:
        assert held.seen.reasoning == whole(1)


# Another origin


@CLIENTS
@pytest.mark.parametrize(("kind", "other"), [("chat", "other-chat"), ("chat", "messages"), ("chat", "responses")])
def test_nobody_else_gets_it(routes: Routes, client: Client, kind: Name, other: str):
    model = f"elsewhere {client} {other}"
    routes.upstream.replies[model] = Renamed(stream=False)
    agent = agent_of(client, routes, f"{kind}/{model}", stream=False)
    agent.take(CONVERSATION.steps[0])
    agent.switch(f"{other}/{model}")
    routes.upstream.replies[model] = Reply([b'{"error":{"message":"enough"}}'], 400, "application/json")
    response = routes.post(agent.dialect, agent.request(CONVERSATION.steps[1]), f"{kind}/{model}")
    assert response.status_code == 400
    sent = json.dumps(routes.upstream.of(model)[-1].body)
    assert "look" in sent
    assert "I must" not in sent


SEALED = Script((Thinks("I must look.", "SEAL"), Says("So."), Calls("call_1", "look", "{}")))


@STREAMS
@pytest.mark.parametrize("client", ["chat", "messages", "responses"])
@pytest.mark.parametrize("kind", ["messages", "responses"])
def test_a_chat_server_gets_no_reasoning_of_others(routes: Routes, client: Client, kind: Name, stream: bool):
    model = f"of others {client} {kind} {stream}"
    routes.upstream.replies[model] = Strict(kind, [SEALED], stream=stream)
    agent = agent_of(client, routes, f"{kind}/{model}", stream=stream)
    assert agent.take(CONVERSATION.steps[0]).reasoning == "I must look."
    agent.switch(f"chat/{model}")
    service = routes.upstream.replies[model] = Refusing("reasoning", _groq, stream=stream)
    assert routes.post(agent.dialect, agent.request(CONVERSATION.steps[1]), f"{kind}/{model}").status_code == 200
    [body] = service.bodies
    assert "I must look." not in json.dumps(body)
    assert "SEAL" not in json.dumps(body)


def test_nobody_else_who_asks_gets_it(routes: Routes):
    model = "another owner"
    service = routes.upstream.replies[model] = Renamed(stream=False)
    agent = agent_of("forgetful", routes, f"chat/{model}", stream=False)
    agent.take(CONVERSATION.steps[0])
    body = agent.request(CONVERSATION.steps[1])
    assert routes.post("chat", body, "somebody else").status_code == 400
    assert "I must" not in json.dumps(service.bodies[-1])


# Servers that refuse it


class Refusing(Server):
    """It writes its reasoning and does not want it back."""

    def __init__(self, field: str, fault: Callable[[int, str], Json], *, stream: bool) -> None:
        super().__init__(stream=stream)
        self.field = field
        self._fault = fault

    def fault(self, body: Json) -> Json | None:
        for index, message in enumerate(body["messages"]):
            for name in OF_REASONING:
                if name in message:
                    return self._fault(index, name)
        return None


def _groq(index: int, name: str) -> Json:
    inner = f"('messages.{index}' : property '{name}' is unsupported)"
    message = f"'messages.{index}' : for 'role:assistant' the following must be satisfied[{inner}]"
    return {"error": {"message": message, "type": "invalid_request_error"}}


def _cerebras(index: int, name: str) -> Json:
    path = f"messages.{index}.assistant.{name}"
    return {
        "message": f"{path}: property '{path}' is unsupported",
        "param": "validation_error",
        "code": "wrong_api_format",
    }


def _pydantic(index: int, name: str) -> Json:
    said = {"type": "extra_forbidden", "loc": ["body", "messages", index, "assistant", name], "msg": "Extra inputs are not permitted", "input": "It is missing."}  # fmt: skip
    return {"detail": [said]}


REFUSALS = {"groq": _groq, "cerebras": _cerebras, "mistral": _pydantic}


@STREAMS
@CLIENTS
@pytest.mark.parametrize("words", REFUSALS)
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_server_that_refuses_it_is_asked_without_it(
    routes: Routes, words: str, field: str, client: Client, stream: bool
):
    model = f"refusing {words} {field} {client} {stream}"
    service = routes.upstream.replies[model] = Refusing(field, REFUSALS[words], stream=stream)
    agent = agent_of(client, routes, f"chat/{model}", stream=stream)
    agent.take(CONVERSATION.steps[0])
    response = routes.post(agent.dialect, agent.request(CONVERSATION.steps[1]), f"chat/{model}")
    assert response.status_code == 200, response.text
    assert (response.text if stream else response.headers["x-toolwire-notes"]).count("reasoning_dropped") == 1
    assert [service.fault(body) is None for body in service.bodies] == [True, False, True]
    # It is remembered: no second refusal.
    response = routes.post(agent.dialect, agent.request(CONVERSATION.steps[3]), f"chat/{model}")
    assert response.status_code == 200, response.text
    assert [service.fault(body) is None for body in service.bodies] == [True, False, True, True]


def test_what_one_model_refuses_another_gets(routes: Routes):
    one, other = "refuses", "takes"
    routes.upstream.replies |= {
        one: Refusing("reasoning", _groq, stream=False),
        other: Renamed(stream=False),
    }
    for model in (one, other):
        agent = agent_of("forgetful", routes, f"chat/{model}", stream=False)
        for step in CONVERSATION.steps[:2]:
            agent.take(step)
    assert "I must" not in json.dumps(routes.upstream.of(one)[-1].body)
    assert "I must" in json.dumps(routes.upstream.of(other)[-1].body)


@pytest.mark.parametrize(
    "complaint",
    [
        Server.complaint,
        "Missing `reasoning_content` field in the assistant message at message index 2.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
    ],
)
def test_a_server_that_misses_it_is_not_asked_without_it(routes: Routes, complaint: str):
    model = f"misses {complaint}"
    error = {"error": {"message": complaint, "type": "invalid_request_error", "param": None}}
    routes.upstream.replies[model] = Reply([json.dumps(error).encode()], 400, "application/json")
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    history = [{"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": [call], "reasoning_content": "Hm."}, {"role": "tool", "tool_call_id": "c", "content": "ok"}]  # fmt: skip
    for count in (1, 2):
        response = routes.post("chat", {"model": f"chat/{model}", "messages": history})
        assert (response.status_code, response.json()["error"]["message"]) == (400, complaint)
        asked = routes.upstream.of(model)
        assert len(asked) == count
        assert asked[-1].body["messages"] == history


# Encrypted reasoning of Responses servers

DONE: Json = {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Done.", "annotations": []}]}]}  # fmt: skip

INCLUDE = [
    {"message": "Encrypted content is not supported with this model.", "param": "include", "code": None},
    {"message": "Unknown parameter: 'include'.", "param": None},
    {"message": "Unsupported value", "param": "include[0]"},
]


@pytest.mark.parametrize("client", ["chat", "messages"])
@pytest.mark.parametrize("error", INCLUDE, ids=["param", "message", "element"])
def test_encrypted_reasoning_is_asked_for_unless_it_is_refused(routes: Routes, client: Client, error: Json):
    model = f"include {client} {error['message']}"

    def answer(asked: Asked) -> Reply:
        if asked.body.get("include"):
            return Reply([json.dumps({"error": error}).encode()], 400, "application/json")
        return Reply([json.dumps(DONE).encode()], 200, "application/json")

    routes.upstream.replies[model] = answer
    agent = agent_of(client, routes, f"responses/{model}", stream=False)
    response = routes.post(agent.dialect, agent.request(CONVERSATION.steps[0]))
    assert response.status_code == 200, response.text
    notes = json.loads(response.headers["x-toolwire-notes"])
    assert {"code": "field_dropped", "subject": "include"} in notes
    agent = agent_of(client, routes, f"responses/{model}", stream=False)
    assert routes.post(agent.dialect, agent.request(CONVERSATION.steps[0])).status_code == 200
    sent = [asked.body for asked in routes.upstream.of(model)]
    assert [body.get("include") for body in sent] == [["reasoning.encrypted_content"], None, None]
    assert {body["store"] for body in sent} == {False}


def test_what_a_responses_client_includes_is_its_own_affair(routes: Routes):
    model = "own include"
    error = {"error": {"message": "no", "param": "include"}}
    routes.upstream.replies[model] = Reply([json.dumps(error).encode()], 400, "application/json")
    body = {"model": f"responses/{model}", "input": "Go.", "include": ["reasoning.encrypted_content"], "store": False}
    assert routes.post("responses", body).status_code == 400
    assert len(routes.upstream.of(model)) == 1


# Messages servers that sign nothing


@STREAMS
def test_thinking_that_a_messages_server_does_not_sign_returns_to_it_alone(routes: Routes, stream: bool):
    model = f"unsigned {stream}"
    thinks = Script((Thinks("I must look."), Calls("call_1", "look", "{}")))
    routes.upstream.replies[model] = reply(thinks, "messages", stream=stream)
    agent = agent_of("messages", routes, f"messages/{model}", stream=stream)
    assert agent.take(CONVERSATION.steps[0]).reasoning == "I must look."
    body = agent.request(CONVERSATION.steps[1])
    for backend in ("messages", "other-messages"):
        routes.upstream.replies[model] = reply(Script((Says("Done."),)), "messages", stream=stream)
        asked = {**body, "model": f"{backend}/{model}"}
        assert routes.ask("messages", asked, f"messages/{model}").seen.text == "Done."
    own, others = (asked.body["messages"] for asked in routes.upstream.of(model)[-2:])
    assert own == body["messages"]
    assert "I must look." not in json.dumps(others)
    # One of which nothing is known is not tried: Anthropic refuses it.
    unknown = json.loads(json.dumps(body).replace("I must look.", "Who knows?"))
    assert routes.ask("messages", unknown, f"messages/{model}").seen.text == "Done."
    assert "Who knows?" not in json.dumps(routes.upstream.of(model)[-1].body)
