"""The built-in model: a small deterministic script that calls tools, for a first try and for every situation.

It writes the stream of a Responses server, so a demo turn is processed like any other. `demo` looks at the request:
with a tool result it answers from it, with tools it calls one (two, if the prompt names two things), else it answers
with text. `demo-SITUATION` plays a situation for which a client should be tested; `SITUATIONS` lists them.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from toolwire.backends import responses
from toolwire.core import sse
from toolwire.core.backend import Break, Refuse, Script, Step, Wait
from toolwire.core.errors import BadRequest
from toolwire.core.request import CallEntry, Message, Request, ResultEntry, TextPart, Tool
from toolwire.core.tokens import estimated_tokens
from toolwire.notations.use_tool import write_use_tool

_json = msgspec.json.encode
_AND = re.compile(r"\s*(?:,|;|\band\b|\bund\b|\bet\b)\s+", re.IGNORECASE)


class Conversation(responses.Conversation):
    """One request to the demo model, answered as a Responses server would."""

    def __init__(self, request: Request, seed: str) -> None:
        super().__init__(request, seed)
        situation = request.model.removeprefix("demo").removeprefix("-")
        if situation not in SITUATIONS:
            models = ", ".join(MODELS)
            message = f"The demo model has no situation {situation!r}; there are {models}."
            raise BadRequest(message, "model", "model_not_found", status=404)
        self._script = SITUATIONS[situation]
        self._writer = DemoWriter(request, seed)

    def start(self) -> Script:
        return Script(self._script(self._writer))


class DemoWriter:
    """Writes the events of a Responses stream for one turn."""

    def __init__(self, request: Request, seed: str) -> None:
        self.request = request
        self._seed = seed
        self._output: list[dict[str, Any]] = []
        self._chars = 0

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        for entry in reversed(self.request.entries):
            if isinstance(entry, Message) and entry.role == "user":
                return " ".join(part.text for part in entry.parts if isinstance(part, TextPart))
        return ""

    @property
    def result(self) -> tuple[str, str] | None:
        """The tool and the text of the last result, when the history ends with results."""
        last = self.request.entries[-1] if self.request.entries else None
        if not isinstance(last, ResultEntry):
            return None
        names = {entry.id: entry.name for entry in self.request.entries if isinstance(entry, CallEntry)}
        texts: list[str] = []
        for entry in reversed(self.request.entries):
            if not isinstance(entry, ResultEntry):
                break
            texts.insert(0, "".join(part.text for part in entry.parts if isinstance(part, TextPart)))
        return names.get(last.call_id, "the tool"), " ".join(texts)

    @property
    def tools(self) -> list[Tool]:
        """The tools it may call, the one that fits the prompt best first."""
        if not self.request.wants_calls:
            return []
        forced = self.request.forced_tool
        names = (forced,) if forced else self.request.tool_names
        tools = [tool for tool in self.request.tools if tool.name in names]
        words = set(re.findall(r"\w+", self.prompt.lower()))
        return sorted(tools, key=lambda tool: -len(words & _words_of(tool)))

    def event(self, type: str, **fields: Any) -> bytes:
        """One event of the stream."""
        return sse.write_named(type, _json({"type": type, **fields}))

    def created(self) -> bytes:
        """The event that opens the stream."""
        return self.event("response.created", response=self._response("in_progress"))

    def reason(self, text: str) -> Iterator[bytes]:
        """A reasoning item with this summary."""
        whole = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
        yield from self._item("rs", whole, "summary", [], "reasoning_summary_text", _pieces(text), summary_index=0)

    def text(self, text: str) -> Iterator[bytes]:
        """A message with this text."""
        self._chars += len(text)
        whole = _message({"type": "output_text", "text": text, "annotations": []})
        yield from self._item("msg", whole, "content", [], "output_text", _pieces(text), content_index=0)

    def refuse(self, text: str) -> Iterator[bytes]:
        """A message with this refusal."""
        whole = _message({"type": "refusal", "refusal": text})
        yield from self._item("msg", whole, "content", [], "refusal", _pieces(text), content_index=0)

    def call(self, name: str, arguments: str, step: int = 12, namespace: str = "") -> Iterator[bytes]:
        """A function call, with arguments in deltas of `step` characters."""
        whole = {"type": "function_call", "name": name}
        if namespace:
            whole["namespace"] = namespace
        yield from self._call("fc", whole, "arguments", "function_call_arguments", arguments, step)

    def call_tool(self, tool: Tool, topic: str) -> Iterator[bytes]:
        """A call that fits the tool, about this topic."""
        if tool.kind == "function":
            yield from self.call(tool.name, fill(tool, topic), namespace=tool.namespace)
        else:
            whole = {"type": "custom_tool_call", "name": tool.name, "namespace": tool.namespace}
            if not tool.namespace:
                del whole["namespace"]
            yield from self._call("ctc", whole, "input", "custom_tool_call_input", topic, 12)

    def _call(
        self, prefix: str, whole: dict[str, Any], field: str, delta: str, text: str, step: int
    ) -> Iterator[bytes]:
        self._chars += len(text)
        id = f"call_{self._seed}{len(self._output) + 1:02d}"
        pieces = [text[start : start + step] for start in range(0, len(text), step)]
        yield from self._item(prefix, {**whole, "call_id": id, field: text}, field, "", delta, pieces)

    def complete(self, status: str = "completed", **fields: Any) -> bytes:
        """The event that ends the stream."""
        return self.event(f"response.{status}", response={**self._response(status), **fields})

    def _item(
        self,
        prefix: str,
        whole: dict[str, Any],
        filled: str,
        empty: object,
        delta: str,
        pieces: list[str],
        **fields: int,
    ) -> Iterator[bytes]:
        """The events of one item: added with its field empty, filled by deltas, done."""
        index = len(self._output)
        item = {"id": f"{prefix}_{self._seed}{index + 1:02d}", **whole}
        self._output.append(item)
        opened = {**item, filled: empty, "status": "in_progress"}
        yield self.event("response.output_item.added", output_index=index, item=opened)
        for piece in pieces:
            yield self.event(f"response.{delta}.delta", item_id=item["id"], output_index=index, delta=piece, **fields)
        yield self.event("response.output_item.done", output_index=index, item={**item, "status": "completed"})

    def _response(self, status: str) -> dict[str, Any]:
        response: dict[str, Any] = {"id": f"resp_{self._seed}", "model": self.request.model, "status": status}
        if status != "in_progress":
            response["output"] = self._output
            response["usage"] = {
                "input_tokens": estimated_tokens(self.request),
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": self._chars // 4 + 1,
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        return response


def _message(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [part]}


def _pieces(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def _words_of(tool: Tool) -> set[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", tool.name)
    return {word.lower() for word in re.findall(r"\w+", f"{spaced} {tool.description}") if len(word) > 2}


def fill(tool: Tool, topic: str) -> str:
    """Arguments that fit the tool's schema, made from the words of the prompt."""
    if tool.parameters is None:
        return "{}"
    try:
        schema = msgspec.json.decode(tool.parameters)
        return _json(_value(schema, topic, 0)).decode() if isinstance(schema, dict) else "{}"
    except RecursionError:
        return "{}"


def _value(schema: Any, topic: str, depth: int) -> Any:
    """A value for a schema. One that is not an object, such as `true`, allows anything."""
    read = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    if "const" in read:
        return read["const"]
    choices = _listed(read.get("enum"))
    if choices:
        return next((value for value in choices if str(value).lower() in topic.lower()), choices[0])
    for key in ("anyOf", "oneOf", "allOf"):
        options = _listed(read.get(key))
        if options:
            return _value(options[0], topic, depth + 1)
    kind = _kind(read)
    if kind == "object":
        return _object(read, topic, depth)
    if kind == "array":
        return [_value(read.get("items"), topic, depth + 1)] if depth < 4 else []
    number = re.search(r"\d+", topic)
    simple: dict[str, Any] = {
        "integer": int(number[0][:15]) if number else 1,
        "number": int(number[0][:15]) if number else 1,
        "boolean": True,
        "null": None,
    }
    return simple.get(kind, topic)


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _kind(schema: dict[str, Any]) -> str:
    declared = schema.get("type", "object" if "properties" in schema else "string")
    return next((str(kind) for kind in _listed(declared) or [declared] if kind not in (None, "null")), "null")


def _object(schema: dict[str, Any], topic: str, depth: int) -> dict[str, Any]:
    given = schema.get("properties")
    properties = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if depth >= 4:
        return {}
    wanted = [key for key in _listed(schema.get("required")) if isinstance(key, str)] or list(properties)
    return {key: _value(properties.get(key), topic, depth + 1) for key in wanted}


def _topics(prompt: str) -> list[str]:
    """The topics of a prompt: `the weather in Paris and Rome` has two. Quoted text is not split."""
    quoted = [one or other for one, other in _QUOTED.findall(prompt)]
    if quoted:
        return quoted
    parts = [part.strip(" ?!.") for part in _AND.split(prompt) if part.strip(" ?!.")]
    names = [_proper(part) for part in parts]
    return [name or part for name, part in zip(names, parts, strict=True)] or [prompt or "demo"]


_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"")
_FILE = re.compile(r"(?<!\S)(?:/(?:[\w*.~-]+/)*[\w*.~-]+/?|(?:[\w*.~-]+/)*[\w*-]+\.[A-Za-z]\w{0,5})(?!\S)")


def _proper(text: str) -> str:
    """A file name or path in the text, else the last group of capitalised words, else nothing."""
    found = _FILE.findall(text) or re.findall(r"(?:\b[A-Z]\w*\s?)+", text[1:])
    return found[-1].strip() if found else ""


# Situations


def _usual(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    result, tools = writer.result, writer.tools
    if result is not None:
        name, text = result
        yield from writer.text(f"According to {name}: {text}")
    elif tools:
        yield from writer.reason(f"The question fits the tool {tools[0].name}.")
        for topic in _topics(writer.prompt)[: 1 if writer.request.parallel_calls is False else 2]:
            yield from writer.call_tool(tools[0], topic)
    else:
        yield from writer.text(f"This is the demo model. You said: {writer.prompt}")
    yield writer.complete()


def _unless_answered(script: Callable[[DemoWriter], Iterator[Step]]) -> Callable[[DemoWriter], Iterator[Step]]:
    """The situation until results of its calls come, so that an agent comes to an end."""
    return lambda writer: script(writer) if writer.result is None else _usual(writer)


def _slow(writer: DemoWriter) -> Iterator[Step]:
    for step in _usual(writer):
        yield step
        yield Wait(0.1)


def _error(writer: DemoWriter) -> Iterator[Step]:
    yield Refuse(503, b'{"error":{"message":"The demo model is overloaded.","code":"server_is_overloaded"}}')


def _rate_limit(writer: DemoWriter) -> Iterator[Step]:
    body = b'{"error":{"message":"The demo model is busy.","type":"rate_limit_error","code":"rate_limit_exceeded"}}'
    yield Refuse(429, body, {"retry-after": "60"})


def _error_middle(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    yield from writer.text("This answer will not be finished,")
    error = {"code": "server_error", "message": "The demo model broke down."}
    yield writer.event("response.failed", response={"status": "failed", "error": error})


def _cut(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    name, arguments = _any_call(writer)
    steps = list(writer.call(name, arguments))
    yield from steps[: max(2, len(steps) // 2)]
    yield Break()


def _huge(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    name, _ = _any_call(writer)
    yield from writer.call(name, _json({"content": "0123456789abcdef" * 65536}).decode(), step=4096)
    yield writer.complete()


def _parallel(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    tools = writer.tools
    for number in range(3):
        if tools:
            tool = tools[number % len(tools)]
            yield from writer.call_tool(tool, f"{writer.prompt or 'demo'} {number + 1}")
        else:
            yield from writer.call("demo_tool", _json({"number": number + 1}).decode())
    yield writer.complete()


def _text(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    name, arguments = _any_call(writer)
    yield from writer.text(f"Let me look.\n\n{write_use_tool(name, arguments).text}\n")
    yield writer.complete()


def _refusal(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    yield from writer.refuse("I cannot help with that.")
    yield writer.complete()


def _length(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    name, arguments = _any_call(writer)
    steps = list(writer.call(name, arguments, step=4))
    yield from steps[:3]
    yield writer.complete("incomplete", incomplete_details={"reason": "max_output_tokens"}, output=[])


def _short(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    steps = list(writer.text(f"This is the demo model. You said: {writer.prompt}"))
    yield from steps[: max(2, len(steps) // 2)]
    yield writer.complete("incomplete", incomplete_details={"reason": "max_output_tokens"}, output=[])


def _silent(writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    yield Wait(3600)


def _any_call(writer: DemoWriter) -> tuple[str, str]:
    tools = writer.tools
    if not tools:
        return "demo_tool", _json({"query": writer.prompt}).decode()
    return tools[0].name, fill(tools[0], _topics(writer.prompt)[0])


SITUATIONS: dict[str, Callable[[DemoWriter], Iterator[Step]]] = {
    "": _usual,
    "slow": _slow,
    "error": _error,
    "rate-limit": _rate_limit,
    "error-middle": _error_middle,
    "cut": _cut,
    "huge": _unless_answered(_huge),
    "parallel": _unless_answered(_parallel),
    "use-tool": _unless_answered(_text),
    "refusal": _refusal,
    "length": _length,
    "short": _short,
    "silent": _silent,
}
"""What each `demo-NAME` plays."""

MODELS = tuple("demo" if not name else f"demo-{name}" for name in SITUATIONS)
