"""Scripted conversations with tools, clients that hold them, and a strict service.

An `Agent` keeps its history as a client of its dialect does: what the gateway gave it goes back as it came. A `Strict`
service refuses what the real one refuses, and else tells the next turn.
"""

import json
from typing import Any, Literal, TypeAlias

import msgspec

from tests.support.backend_writers import refusal, reply
from tests.support.routes import Routes
from tests.support.scripts import DECLARED, FIND, KINDS, LOOK, Declared, Name, Script, Seen, Thinks, id_shown
from tests.support.strict import refusals
from tests.support.upstream import Asked, Reply

Json = dict[str, Any]
Client: TypeAlias = Literal["chat", "responses", "messages", "gemini", "chained", "nameless"]
"""The dialects, Responses with `previous_response_id` in place of a history, and Gemini without ids of calls."""
CLIENTS: tuple[Client, ...] = ("chat", "responses", "messages", "gemini", "chained", "nameless")

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Result(msgspec.Struct, frozen=True):
    """What a tool gave back. Only Messages can say that it failed; Chat cannot show an image."""

    id: str
    text: str = ""
    failed: bool = False
    image: bool = False


class Step(msgspec.Struct, frozen=True):
    """What the client sends, and the turn it gets for it: results, or a user's words, or both."""

    turn: Script
    user: str = ""
    results: tuple[Result, ...] = ()


class ScriptedConversation(msgspec.Struct, frozen=True):
    """A conversation with tools: what the client sends, and the turns that the model gives."""

    steps: tuple[Step, ...]
    system: str = "Be brief."
    tools: tuple[Declared, ...] = (LOOK, FIND)
    thinks: bool = False
    """Whether the client requests reasoning."""
    clients: tuple[Client, ...] = CLIENTS
    kinds: tuple[Name, ...] = KINDS


# The service


class Strict:
    """A service of one kind that gives the turns one after the other, to requests that it cannot refuse."""

    def __init__(self, kind: Name, turns: list[Script], *, stream: bool) -> None:
        self.kind: Name = kind
        self.issued: dict[str, str] = {}
        self.bodies: list[Json] = []
        self._turns = list(turns)
        self._stream = stream

    def __call__(self, asked: Asked) -> Reply:
        self.bodies.append(asked.body)
        reasons = refusals(self.kind, asked.body, self.issued)
        if reasons:
            return Reply([refusal(self.kind, 400, " ".join(reasons))], 400, "application/json")
        turn = self._turns.pop(0)
        self.issued |= {item.signature: item.text for item in turn.items if isinstance(item, Thinks) and item.signature}
        return reply(turn, self.kind, stream=self._stream)


# The clients


class Agent:
    """A client of one dialect with its history."""

    dialect: Name

    def __init__(self, routes: Routes, model: str, conversation: ScriptedConversation, *, stream: bool) -> None:
        self.routes = routes
        self._key = model
        self._body: Json = {"model": model, "stream": stream}
        if conversation.tools:
            self._body["tools"] = DECLARED[self.dialect](conversation.tools)
        self._history: list[Json] = []
        self._prepare(conversation)

    def take(self, step: Step) -> Seen:
        """Send what the step says and keep what comes back."""
        held = self.routes.ask(self.dialect, self.request(step), self._key)
        self._keep(held.own)
        return held.seen

    def request(self, step: Step) -> Json:
        """What the client sends in this step, which from now on belongs to its history."""
        self._send(step)
        return self._request()

    def switch(self, model: str) -> None:
        """Go on with another model."""
        self._body["model"] = model

    def _prepare(self, conversation: ScriptedConversation) -> None:
        raise NotImplementedError

    def _send(self, step: Step) -> None:
        raise NotImplementedError

    def _request(self) -> Json:
        raise NotImplementedError

    def _keep(self, own: Json) -> None:
        raise NotImplementedError


class ChatAgent(Agent):
    dialect = "chat"

    def _prepare(self, conversation: ScriptedConversation) -> None:
        if self._body["stream"]:
            self._body["stream_options"] = {"include_usage": True}
        if conversation.system:
            self._history.append({"role": "system", "content": conversation.system})
        if conversation.thinks:
            self._body["reasoning_effort"] = "high"

    def _send(self, step: Step) -> None:
        for result in step.results:
            self._history.append({"role": "tool", "tool_call_id": result.id, "content": result.text})
        if step.user:
            self._history.append({"role": "user", "content": step.user})

    def _request(self) -> Json:
        return {**self._body, "messages": self._history}

    def _keep(self, own: Json) -> None:
        # As most clients do: the message as it is, without what is null; one that says nothing says the empty string.
        said = {key: value for key, value in own.items() if value is not None}
        self._history.append({"content": None if "tool_calls" in said else "", **said})


class ResponsesAgent(Agent):
    dialect = "responses"

    def _prepare(self, conversation: ScriptedConversation) -> None:
        self._body |= {"instructions": conversation.system or None, "include": ["reasoning.encrypted_content"]}
        if conversation.thinks:
            self._body["reasoning"] = {"effort": "high", "summary": "auto"}
        self._custom = {tool.name for tool in conversation.tools if tool.kind == "custom"}
        self._kinds: dict[str, str] = {}

    def _send(self, step: Step) -> None:
        for result in step.results:
            parts: list[Json] = [{"type": "input_text", "text": result.text}]
            parts.append({"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"})
            output = parts if result.image else result.text
            type = f"{self._kinds[result.id]}_output"
            self._history.append({"type": type, "call_id": result.id, "output": output})
        if step.user:
            self._history.append({"role": "user", "content": step.user})

    def _request(self) -> Json:
        return {**self._body, "store": False, "input": self._history}

    def _keep(self, own: Json) -> None:
        self._kinds |= {item["call_id"]: item["type"] for item in own["output"] if "call_id" in item}
        self._history += own["output"]


class ChainedAgent(ResponsesAgent):
    """A client that leaves its history to us."""

    def _request(self) -> Json:
        return {**self._body, "store": True, "input": self._history}

    def _keep(self, own: Json) -> None:
        super()._keep(own)
        self._history = []
        self._body["previous_response_id"] = own["id"]


class MessagesAgent(Agent):
    dialect = "messages"

    def _prepare(self, conversation: ScriptedConversation) -> None:
        self._body["max_tokens"] = 4096
        if conversation.system:
            self._body["system"] = conversation.system
        if conversation.thinks:
            self._body["thinking"] = {"type": "enabled", "budget_tokens": 2048}

    def _send(self, step: Step) -> None:
        content = [self._result(result) for result in step.results]
        if step.user:
            content.append({"type": "text", "text": step.user})
        self._history.append({"role": "user", "content": content})

    def _result(self, result: Result) -> Json:
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        parts = [{"type": "text", "text": result.text}, {"type": "image", "source": source}]
        written: Json = {"type": "tool_result", "tool_use_id": result.id}
        written["content"] = parts if result.image else result.text
        return {**written, "is_error": True} if result.failed else written

    def _request(self) -> Json:
        return {**self._body, "messages": self._history}

    def _keep(self, own: Json) -> None:
        # A client cannot send back blocks that say nothing.
        content = [block for block in own["content"] if block.get("text", "x").strip()]
        if content:
            self._history.append({"role": "assistant", "content": content})


class GeminiAgent(Agent):
    """A client of Gemini like google-genai: each chunk goes back as a content of its own."""

    dialect = "gemini"

    def _prepare(self, conversation: ScriptedConversation) -> None:
        if conversation.system:
            self._body["systemInstruction"] = {"role": "user", "parts": [{"text": conversation.system}]}
        if conversation.thinks:
            self._body["generationConfig"] = {"thinking_config": {"include_thoughts": True, "thinking_level": "HIGH"}}
        self._names: dict[str, str] = {}

    def _send(self, step: Step) -> None:
        parts = [part for result in step.results for part in self._result(result)]
        if parts:
            self._history.append({"role": "user", "parts": parts})
        if step.user:
            self._history.append({"role": "user", "parts": [{"text": step.user}]})

    def _result(self, result: Result) -> list[Json]:
        id = id_shown(result.id)
        response = {"error" if result.failed else "output": result.text}
        written = {"name": self._names[id], "id": id, "response": response}
        image = {"inlineData": {"mime_type": "image/png", "data": PIXEL}}
        return [{"functionResponse": written}, *([image] if result.image else [])]

    def _request(self) -> Json:
        return {**self._body, "contents": self._history}

    def _keep(self, own: Json) -> None:
        for content in own["contents"]:
            for part in content["parts"]:
                if call := part.get("functionCall"):
                    self._names[call["id"]] = call["name"]
                # As the SDK writes Base64.
                if "thoughtSignature" in part:
                    part["thoughtSignature"] = part["thoughtSignature"].replace("+", "-").replace("/", "_")
            self._history.append(content)


class NamelessAgent(GeminiAgent):
    """A client of Gemini like LangChain's, which returns calls and their results without ids, in the order of the calls."""

    def _send(self, step: Step) -> None:
        order = [*self._names]
        results = sorted(step.results, key=lambda result: order.index(id_shown(result.id)))
        super()._send(msgspec.structs.replace(step, results=tuple(results)))

    def _request(self) -> Json:
        return {**self._body, "contents": [_without_ids(content) for content in self._history]}


def _without_ids(content: Json) -> Json:
    def bare(value: Any) -> Any:
        return {key: each for key, each in value.items() if key != "id"} if isinstance(value, dict) else value

    return {**content, "parts": [{name: bare(value) for name, value in part.items()} for part in content["parts"]]}


AGENTS: dict[Client, type[Agent]] = {
    "chat": ChatAgent,
    "responses": ResponsesAgent,
    "messages": MessagesAgent,
    "gemini": GeminiAgent,
    "nameless": NamelessAgent,
    "chained": ChainedAgent,
}


def dialect_of(client: Client) -> Name:
    return AGENTS[client].dialect


def compact(arguments: Any) -> str:
    """Arguments in one form, whether they were text or an object."""
    read = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    return json.dumps(read, separators=(",", ":"), ensure_ascii=False)
