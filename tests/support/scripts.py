"""A turn in no protocol's words: what a model says, thinks and calls, and how it ends.

A script is the one truth of the matrix. `tellers` renders it as each kind of backend tells it, `hands` reads what a
client of each dialect got of it, and `truth` says what that must be.
"""

import hashlib
import json
import random
import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

Name: TypeAlias = Literal["chat", "responses", "messages", "gemini"]
NAMES: tuple[Name, ...] = ("chat", "responses", "messages", "gemini")
"""The dialects, which are also the kinds of backends that are HTTP servers."""
KINDS = NAMES
TEXTUAL: tuple[Name, ...] = ("chat", "responses", "messages")
"""Kinds of backends that write arguments as text, which may be anything; the others write an object."""
End: TypeAlias = Literal["stop", "sequence", "length", "filter", "error", "cut"]
Finish: TypeAlias = Literal["stop", "calls", "length", "filter", "refused", "failed"]


class Says(msgspec.Struct, frozen=True):
    text: str


class Declines(msgspec.Struct, frozen=True):
    """The words with which the model refuses."""

    text: str


class Thinks(msgspec.Struct, frozen=True):
    """A thought: what is shown of it, and the signature with which its origin knows it again."""

    text: str = ""
    signature: str = ""
    redacted: bool = False


class Calls(msgspec.Struct, frozen=True):
    """A call. `whole` is false where the model was cut off inside it."""

    id: str
    name: str
    arguments: str = "{}"
    kind: Literal["function", "custom"] = "function"
    namespace: str = ""
    whole: bool = True


Item: TypeAlias = Says | Declines | Thinks | Calls


class Tokens(msgspec.Struct, frozen=True):
    """`input` includes what was read from and written to the cache, `output` includes reasoning."""

    input: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0
    reasoning: int = 0


class Declared(msgspec.Struct, frozen=True):
    """A tool the client declares."""

    name: str
    kind: Literal["function", "custom"] = "function"
    namespace: str = ""


LOOK, FIND = Declared("look"), Declared("find")


class Script(msgspec.Struct, frozen=True):
    """One turn. One that is `cut` lacks its end, as if the service had gone away in the middle.

    `chars` is about how long the pieces of its stream are; `recorded` names a recording of it.
    """

    items: tuple[Item, ...] = ()
    end: End = "stop"
    tokens: Tokens | None = Tokens(10, 6)
    tools: tuple[Declared, ...] = (LOOK, FIND)
    dialects: tuple[Name, ...] = KINDS
    kinds: tuple[Name, ...] = KINDS
    chars: int = 5
    recorded: str = ""

    @property
    def calls(self) -> tuple[Calls, ...]:
        return tuple(item for item in self.items if isinstance(item, Calls))


def pieces(text: str, chars: int) -> list[str]:
    """The text in pieces of about this many chars, cut anywhere, the same way each time."""
    rnd = random.Random(f"{chars} {text[:200]} {len(text)}")
    out: list[str] = []
    while text:
        size = rnd.randint(1, 2 * chars)
        out.append(text[:size])
        text = text[size:]
    return out


# What a client must see


class Call(msgspec.Struct, frozen=True):
    """A call in a client's hand. One that is not whole must not be run."""

    id: str
    name: str
    arguments: str
    kind: str = "function"
    namespace: str = ""
    whole: bool = True


class Seen(msgspec.Struct, frozen=True):
    """A turn as a client of any dialect sees it."""

    text: str = ""
    refusal: str = ""
    reasoning: str = ""
    signed: int = 0
    """How many thoughts came with a signature, for the client to bring back."""
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    tokens: Tokens | None = None


def truth(script: Script, dialect: Name, kind: Name, *, stream: bool) -> Seen:
    """What a client of this dialect must see of the turn when a backend of this kind tells it."""
    told_turn = told(script, kind, stream=stream)
    if dialect == kind == "gemini":  # whose clients see the finish message themselves
        told_turn = msgspec.structs.replace(told_turn, refusal="")
    seen = shown(told_turn, dialect)
    if dialect == "chat" and kind == "responses":  # whose messages have a blank line between them in one text
        seen = msgspec.structs.replace(
            seen, text="\n\n".join(item.text for item in script.items if isinstance(item, Says))
        )
    return seen


def told(script: Script, kind: Name, *, stream: bool) -> Seen:
    """The turn as far as a backend of this kind has words for it."""
    # A plain message of the Messages API has no way to show half an object.
    lost = kind == "messages" and not stream
    thoughts = [item for item in script.items if isinstance(item, Thinks)]
    declined = "".join(item.text for item in script.items if isinstance(item, Declines))
    said = "".join(_spoken(item, kind) for item in script.items)
    calls = tuple(_made(call, "" if lost else call.arguments) for call in script.calls)
    signed = sum(1 for item in thoughts if item.signature)
    tokens = script.tokens if script.end not in ("error", "cut") else None
    if kind == "gemini":
        calls = tuple(_rewritten(call) for call in calls if call.whole or stream)
        signed = 0 if script.calls else signed  # the signature is on the call
        tokens = None if tokens is None else msgspec.structs.replace(tokens, written=0)
        withheld = script.end == "filter" and not (said or calls)
    else:
        withheld = False
    return Seen(
        text=said,
        # Messages and Gemini servers decline in plain text, with a stop reason.
        refusal=WITHHELD if withheld else declined if kind not in IN_PLAIN_TEXT else "",
        reasoning="\n\n".join(item.text for item in thoughts if item.text),
        # Chat servers signature nothing, and have no word for a thought that cannot be seen.
        signed=signed if kind != "chat" else 0,
        calls=calls,
        finish=_finish(script, kind, declined),
        tokens=tokens,
    )


IN_PLAIN_TEXT = ("messages", "gemini")
WITHHELD = "Withheld."
"""What a Gemini server says in place of an answer."""


def _rewritten(call: "Call") -> "Call":
    """The call with its arguments as they are after they were an object."""
    if not call.whole or call.kind == "custom":
        return call
    arguments = msgspec.json.format(call.arguments, indent=-1)
    return msgspec.structs.replace(call, arguments=arguments)


def _spoken(item: Item, kind: Name) -> str:
    if isinstance(item, Says) or (isinstance(item, Declines) and kind in IN_PLAIN_TEXT):
        return item.text
    return ""


def _made(call: Calls, half: str) -> Call:
    """The call in the end: a function called with nothing has an empty object, half a call what there is of it."""
    whole = call.arguments or ("{}" if call.kind == "function" else "")
    return Call(call.id, call.name, whole if call.whole else half, call.kind, call.namespace, call.whole)


def _finish(script: Script, kind: Name, declined: str) -> Finish:
    if script.end in ("error", "cut"):
        return "failed"
    if script.end in ("length", "filter"):
        return script.end
    if declined:
        return "filter" if kind in IN_PLAIN_TEXT else "refused"
    return "calls" if script.calls else "stop"


def shown(seen: Seen, dialect: Name) -> Seen:
    """The turn as far as this dialect has a place for it."""
    if dialect == "chat":
        return msgspec.structs.replace(seen, signed=0)
    if dialect == "gemini":
        return _shown_to_gemini(seen)
    if dialect == "messages" and seen.finish in ("filter", "refused"):
        return msgspec.structs.replace(seen, text=seen.text + seen.refusal, refusal="", finish="refused")
    return seen


def _shown_to_gemini(seen: Seen) -> Seen:
    """Half a call is not shown, because clients would run it. An id that clients would change is another."""
    calls = tuple(msgspec.structs.replace(call, id=id_shown(call.id)) for call in seen.calls if call.whole)
    tokens = None if seen.tokens is None else msgspec.structs.replace(seen.tokens, written=0)
    finish = "filter" if seen.finish == "refused" else seen.finish
    return msgspec.structs.replace(
        seen, text=seen.text + seen.refusal, refusal="", calls=calls, finish=finish, tokens=tokens
    )


def id_shown(id: str) -> str:
    """An id as clients of Gemini get it."""
    fits = len(id) <= 64 and re.fullmatch("[A-Za-z0-9_-]+", id)
    return id if fits else "call_" + hashlib.sha256(id.encode()).hexdigest()[:24]


# What is declared


def declared_in_chat(tools: tuple[Declared, ...]) -> list[object]:
    return [
        {"type": "custom", "custom": {"name": tool.name, "description": "Takes text."}}
        if tool.kind == "custom"
        else {"type": "function", "function": {"name": tool.name, "parameters": SCHEMA}}
        for tool in tools
    ]


def declared_in_responses(tools: tuple[Declared, ...]) -> list[object]:
    spaces = dict.fromkeys(tool.namespace for tool in tools if tool.namespace)
    flat = [_flat(tool) for tool in tools if not tool.namespace]
    return [*flat, *(_space(space, tools) for space in spaces)]


def _flat(tool: Declared) -> dict[str, object]:
    if tool.kind == "custom":
        return {"type": "custom", "name": tool.name, "description": "Takes text."}
    return {"type": "function", "name": tool.name, "parameters": SCHEMA, "strict": False}


def _space(space: str, tools: tuple[Declared, ...]) -> dict[str, object]:
    inner = [_flat(tool) for tool in tools if tool.namespace == space]
    return {"type": "namespace", "name": space, "description": "A group.", "tools": inner}


def declared_in_messages(tools: tuple[Declared, ...]) -> list[object]:
    return [{"name": tool.name, "input_schema": SCHEMA} for tool in tools]


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


def declared_in_gemini(tools: tuple[Declared, ...]) -> list[object]:
    functions = [{"name": tool.name, "parametersJsonSchema": SCHEMA} for tool in tools]
    return [{"functionDeclarations": functions}]


DECLARED = {
    "chat": declared_in_chat,
    "responses": declared_in_responses,
    "messages": declared_in_messages,
    "gemini": declared_in_gemini,
}


def wrapped(input: str) -> str:
    """A custom tool's input as a server gets and tells it that knows functions only."""
    return json.dumps({"input": input})


def each_route(script: Script) -> Iterator[tuple[Name, Name]]:
    """The dialects and kinds that can have this turn."""
    for dialect in script.dialects:
        for kind in script.kinds:
            yield dialect, kind
