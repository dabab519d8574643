"""What a service was told of a conversation, in nobody's words, and what it had to be told.

A transcript is a list of what was said in order: by the system, by the user, by the model in one turn, by the tools for
one turn. Calls are counted, because an id may be another one on the way.
"""

import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from tests.support.backend_writers import name_told
from tests.support.conversations import Client, Result, ScriptedConversation, compact
from tests.support.scripts import Calls, Declines, Name, Says, Script, Thinks, wrapped
from tests.support.strict import UNKNOWN_SIGNATURE

Json = dict[str, Any]


class System(msgspec.Struct, frozen=True):
    text: str


class User(msgspec.Struct, frozen=True):
    text: str


class Model(msgspec.Struct, frozen=True):
    """One turn of the model: the signatures of its thoughts, its words, its calls (number, name, arguments)."""

    signatures: tuple[str, ...] = ()
    text: str = ""
    calls: tuple[tuple[int, str, str], ...] = ()


class Tools(msgspec.Struct, frozen=True):
    """All results of one turn, in the order of the calls: number, text, whether it failed, whether it shows an image."""

    results: tuple[tuple[int, str, bool, bool], ...]


Line: TypeAlias = System | User | Model | Tools


class Writer:
    """Puts a transcript together: what belongs to one turn becomes one line."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._calls: dict[str, int] = {}

    def system(self, text: str) -> None:
        self.lines.append(System(text))

    def user(self, text: str) -> None:
        self.lines.append(User(text))

    def thought(self, signature: str) -> None:
        self._add(Model((signature,)))

    def said(self, text: str) -> None:
        self._add(Model((), text))

    def call(self, id: str, name: str, arguments: str) -> None:
        self._calls[id] = len(self._calls)
        self._add(Model((), "", ((self._calls[id], name, arguments),)))

    def result(self, id: str, text: str, *, failed: bool = False, image: bool = False) -> None:
        number = self._calls.get(id, -1)
        results = (*self._results(), (number, text, failed, image))
        self.lines.append(Tools(tuple(sorted(results))))

    def show(self, id: str) -> None:
        """The result of this call has an image after all."""
        shown = [(*each[:3], each[3] or each[0] == self._calls[id]) for each in self._results()]
        self.lines.append(Tools(tuple(shown)))

    def _results(self) -> tuple[tuple[int, str, bool, bool], ...]:
        """The results at the end of the transcript, taken off it."""
        last = self.lines[-1]
        if not isinstance(last, Tools):
            return ()
        self.lines.pop()
        return last.results

    def _add(self, more: Model) -> None:
        turn = self.lines[-1] if self.lines else None
        if isinstance(turn, Model):
            self.lines.pop()
            more = Model(turn.signatures + more.signatures, turn.text + more.text, turn.calls + more.calls)
        self.lines.append(more)


# What was told

FAILED = "Error: "
"""How a service that has no flag for it learns that a tool failed."""
_SHOWN = re.compile(r"\n?\(The result of (\S+) is shown in the next message\.\)$")


def of_chat(body: Json) -> list[Line]:
    out = Writer()
    for message in body["messages"]:
        match message["role"]:
            case "system" | "developer":
                out.system(message["content"])
            case "user" if isinstance(message["content"], list):
                for part in message["content"]:
                    if part["type"] == "text":
                        out.show(part["text"].removeprefix("The result of ").rstrip(":"))
            case "user":
                out.user(message["content"])
            case "assistant":
                _chat_turn(message, out)
            case _:
                _marked_result(message["tool_call_id"], _SHOWN.sub("", message["content"]), out)
    return out.lines


def _chat_turn(message: Json, out: Writer) -> None:
    out.said((message.get("content") or "") + (message.get("refusal") or ""))
    for call in message.get("tool_calls", ()):
        out.call(call["id"], call["function"]["name"], compact(call["function"]["arguments"]))


def _marked_result(id: str, text: str, out: Writer, *, image: bool = False) -> None:
    out.result(id, text.removeprefix(FAILED), failed=text.startswith(FAILED), image=image)


def of_responses(body: Json) -> list[Line]:
    out = Writer()
    if body.get("instructions"):
        out.system(body["instructions"])
    for item in body["input"]:
        match item.get("type", "message"):
            case "message":
                say = {"system": out.system, "developer": out.system, "user": out.user, "assistant": out.said}
                say[item["role"]](_text(item["content"]))
            case "reasoning":
                out.thought(item["encrypted_content"])
            case "function_call":
                space = f"{item['namespace']}__" if item.get("namespace") else ""
                out.call(item["call_id"], space + item["name"], compact(item["arguments"]))
            case "custom_tool_call":
                out.call(item["call_id"], item["name"], compact(wrapped(item["input"])))
            case _:
                shows = not isinstance(item["output"], str) and item["output"][-1]["type"] == "input_image"
                _marked_result(item["call_id"], _text(item["output"]), out, image=shows)
    return out.lines


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", part.get("refusal", "")) for part in content)


def of_messages(body: Json) -> list[Line]:
    out = Writer()
    if body.get("system"):
        out.system(_text(body["system"]))
    for message in body["messages"]:
        say = out.user if message["role"] == "user" else out.said
        if isinstance(message["content"], str):
            say(message["content"])
            continue
        for block in message["content"]:
            _block(block, say, out)
    return out.lines


def _block(block: Json, say: Callable[[str], None], out: Writer) -> None:
    match block["type"]:
        case "text":
            say(block["text"])
        case "thinking" | "redacted_thinking":
            out.thought(block.get("signature") or block["data"])
        case "tool_use":
            out.call(block["id"], block["name"], compact(block["input"]))
        case _:
            content: Any = block.get("content") or ""
            shows = not isinstance(content, str) and content[-1]["type"] == "image"
            out.result(block["tool_use_id"], _text(content), failed=bool(block.get("is_error")), image=shows)


def of_gemini(body: Json) -> list[Line]:
    out = Writer()
    if "systemInstruction" in body:
        out.system("".join(part["text"] for part in body["systemInstruction"]["parts"]))
    calls: dict[str, bool] = {}
    for content in body["contents"]:
        for part in content["parts"]:
            _part(part, out.user if content["role"] == "user" else out.said, calls, out)
    return out.lines


def _part(part: Json, say: Callable[[str], None], calls: dict[str, bool], out: Writer) -> None:
    """A part. `calls` says of each call whether it has its result; without ids the results come in their order."""
    if part.get("thoughtSignature", UNKNOWN_SIGNATURE) != UNKNOWN_SIGNATURE:
        out.thought(b64decode(part["thoughtSignature"]).decode())
    if call := part.get("functionCall"):
        id = f"{len(calls)} {call.get('id')}"
        calls[id] = False
        out.call(id, call["name"], compact(call["args"]))
    elif result := part.get("functionResponse"):
        [(kind, text)] = result["response"].items()
        id = next(id for id, done in calls.items() if not done and id.partition(" ")[2] == str(result.get("id")))
        calls[id] = True
        out.result(id, text, failed=kind == "error", image=bool(result.get("parts")))
    elif "inlineData" in part:  # beside the result that shows it
        out.show([id for id, done in calls.items() if done][-1])
    elif not part.get("thought"):
        say(part["text"])


TOLD: dict[Name, Callable[[Json], list[Line]]] = {
    "chat": of_chat,
    "responses": of_responses,
    "messages": of_messages,
    "gemini": of_gemini,
}


def declared(body: Json) -> list[str]:
    """The names of the tools that a service was shown, whichever way."""
    tools = [*body.get("tools", ()), *(tool for item in body.get("input", ()) for tool in item.get("tools", ()))]
    flat = [each for tool in tools for each in tool.get("tools", tool.get("functionDeclarations", [tool]))]
    return [tool["function"]["name"] if "function" in tool else tool["name"] for tool in flat]


def transcript(kind: Name, body: Json) -> list[Line]:
    """What a service of this kind was told; a turn that says nothing may be left out."""
    return _without_empty_turns(TOLD[kind](body))


# What had to be told


def expected(conversation: ScriptedConversation, client: Client, kind: Name, *, until: int) -> list[Line]:
    """The conversation as a service of this kind must know it when it gives the turn of step `until`."""
    out = Writer()
    if conversation.system:
        out.system(conversation.system)
    for place, step in enumerate(conversation.steps[: until + 1]):
        for result in step.results:
            _expect_result(result, out)
        if step.user:
            out.user(step.user)
        if place < until:
            _expect_turn(step.turn, client, kind, out)
    return _without_empty_turns(out.lines)


def _without_empty_turns(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line != Model()]


def _expect_result(result: Result, out: Writer) -> None:
    out.result(result.id, result.text, failed=result.failed, image=result.image)


def _expect_turn(turn: Script, client: Client, kind: Name, out: Writer) -> None:
    for item in turn.items:
        match item:
            case Thinks(signature=signature):
                # A Chat service signatures nothing, and a Chat client has its thoughts kept for it by their calls.
                if kind != "chat" and signature and (client != "chat" or turn.calls):
                    out.thought(signature)
            case Says(text) | Declines(text):
                # Messages takes no block that says nothing.
                out.said(text if text.strip() or "messages" not in (client, kind) else "")
            case Calls():
                custom = item.kind == "custom"
                out.call(item.id, name_told(item), compact(wrapped(item.arguments) if custom else item.arguments))
