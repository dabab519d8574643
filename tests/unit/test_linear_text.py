"""Calls in text are read and written in steps that grow as the text does, whatever is written there."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.support.steps import Meter, counted, metered
from toolwire.notations.registry import CALLS, PROMPT_NOTATIONS, REASONING
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL

SIZE = 600
"""Characters of the smaller text; the larger has four times as many."""

ALL_BLOCKS = 2000
"""Characters of a text in which more blocks fail than are tried."""

MOST = 6
"""How many times the steps the larger one may take: four, and something for what is only reached late."""

READERS = {"usual": (USE_TOOL, TOOL_CALL), **{name: calls for name, calls in CALLS.items() if name != "glm"}}
WRITERS = ("use_tool", "tool_call", *PROMPT_NOTATIONS)


@cache
def loaded() -> tuple[Meter, dict[str, Any]]:
    return metered(
        ("core.events", "core.request", "notations.registry", "notations.read", "notations.reasoning", "notations.tool_call",
         "notations.use_tool", "notations.values", "notations.write")
    )  # fmt: skip


def _filled(unit: Callable[[int], str], head: str = "", tail: str = "") -> Callable[[int], str]:
    """Texts of a given size: units, each with its number, between a head and a tail."""

    def text(size: int) -> str:
        pieces: list[str] = []
        length = number = 0
        while length < size:
            pieces.append(unit(number))
            length += len(pieces[-1])
            number += 1
        return head + "".join(pieces) + tail

    return text


def _same(unit: str, head: str = "", tail: str = "") -> Callable[[int], str]:
    return _filled(lambda _: unit, head, tail)


def _markers(name: str) -> list[str]:
    openers = READERS[name]
    marks = [mark for opener in openers for mark in (opener.open, getattr(opener, "close", ""), *opener.ends)]
    return [mark for mark in dict.fromkeys(marks) if mark][:6]


PLAIN: dict[str, Callable[[int], str]] = {
    "letters": _same("a"),
    "signs": _same("<"),
    "brackets": _same("["),
    "spaces": _same(" "),
    "lines": _same("\n"),
    "backticks": _same("`"),
    "tildes": _same("~"),
    "fences": _same("```\n"),
    "fences in a line": _same("``` "),
    "growing fences": _filled(lambda number: "`" * (number % 40 + 1) + "a"),
    "spans": _same("`a"),
    "list marks": _same("- > 1. "),
    "entities": _same("&lt;use_tool&gt;"),
    "closings": _same("</use_tool>"),
    "other tags": _same("<b>x</b>"),
}

BODIES: dict[str, tuple[str, Callable[[int], str], str]] = {
    "letters": ("", lambda _: "a", ""),
    "spaces": ("", lambda _: " ", ""),
    "name": ("<name>", lambda _: "a", "</name>"),
    "one value": ("<name>a</name><x>", lambda _: "y", "</x>"),
    "one value of signs": ("<name>a</name><x>", lambda _: "<", "</x>"),
    "one value of spaces": ("<name>a</name><x>", lambda _: " ", "</x>"),
    "one value of nearly closings": ("<name>a</name><x>", lambda _: "</x", "</x>"),
    "values": ("<name>a</name>", lambda number: f"<p{number}>v</p{number}>", ""),
    "typed values": ("<name>typed</name>", lambda number: f"<p{number}>1</p{number}>", ""),
    "values before the name": ("", lambda number: f"<p{number}>v</p{number}>", "<name>a</name>"),
    "one value again and again": ("<name>typed</name>", lambda _: "<text>v</text>", ""),
    "open values": ("<name>a</name>", lambda number: f"<p{number}>", ""),
    "parameters": ("<function=a>", lambda _: "<parameter=text>v</parameter>", "</function>"),
    "pairs": ("a", lambda number: f"<arg_key>k{number}</arg_key><arg_value>v</arg_value>", ""),
    "json": ('{"name":"a","arguments":{', lambda number: f'"k{number}":1,', '"z":0}}'),
    "json text": ('{"name":"a","arguments":{"k":"', lambda _: "y", '"}}'),
    "json escapes": ('{"name":"a","arguments":{"k":"', lambda _: "\\\\", '"}}'),
    "json line ends": ('{"name":"a","arguments":{"k":"', lambda _: "\n", '"}}'),
    "json lists": ('{"name":"a","arguments":', lambda _: "[", ""),
    "json keys": ("{", lambda number: f'"k{number}":1,', '"name":"a"}'),
    "json strings": ("{", lambda number: f'"k{number}":"x",', '"name":"a"}'),
    "json number": ('{"name":"a","arguments":{},"k":', lambda _: "1", "}"),
    "calls in a list": ("[", lambda number: f'{{"name":"a","arguments":{{"k":{number}}}}},', ""),
    "the same calls in a list": ("[", lambda _: '{"name":"a","arguments":{}},', ""),
    "invocations": ("", lambda _: '<invoke name="a"><parameter name="text">v</parameter></invoke>', ""),
    "arguments": ('a[ARGS]{"k":"', lambda _: "v", '"}'),
}


EXAMPLES: dict[str, Callable[[int], str]] = {
    "usual": lambda number: f'<use_tool>{{"name":"a","arguments":{{"k":{number}}}}}</use_tool>\n',
    "mistral": lambda number: f'[TOOL_CALLS]a[ARGS]{{"k":{number}}}',
    "invoke": lambda number: f'<invoke name="a"><parameter name="text">{number}</parameter></invoke>',
    "kimi": lambda number: (
        f'<|tool_call_begin|>a:{number}<|tool_call_argument_begin|>{{"k":{number}}}<|tool_call_end|>'
    ),
    "harmony": lambda number: (
        f"<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.a <|message|>"
        f'{{"k":{number}}}<|call|>'
    ),
}


def _texts(name: str) -> dict[str, Callable[[int], str]]:
    opener = READERS[name][0]
    close = getattr(opener, "close", "")
    found = {**PLAIN, "calls": _filled(EXAMPLES[name])}
    for body, (head, unit, tail) in BODIES.items():
        found[body] = _filled(unit, opener.open + head, tail + close)
        found[f"{body}, open"] = _filled(unit, opener.open + head)
    return found


def _blocks(name: str) -> dict[str, Callable[[int], str]]:
    found: dict[str, Callable[[int], str]] = {}
    for mark in _markers(name):
        found[f"{mark} again and again"] = _same(mark)
        found[f"{mark} nearly"] = _same(mark[:-1])
        found[f"{mark} in lines"] = _same(mark + "\n")
        found[f"{mark} in code"] = _same(f"`{mark}`\n")
        found[f"{mark} in spans that stay open"] = _same(f"`{mark}\n")
    for opener in READERS[name][:3]:
        found[f"{opener.open} with what is no call"] = _calls(opener.open, getattr(opener, "close", ""))
    return found


def _calls(open: str, close: str) -> Callable[[int], str]:
    return _filled(lambda number: f'{open}{{"name":"a","arguments":{{"k":{number}}}}}{close}\n')


def _cut(text: str, way: str) -> list[str]:
    if way == "whole":
        return [text]
    if way == "by letter":
        return list(text)
    rnd = random.Random(1)
    cuts = sorted(rnd.sample(range(len(text)), len(text) // 30))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _grows(steps: Callable[[int], int], size: int = SIZE) -> str:
    """What grows too fast, in figures; nothing if all is well."""
    small, large = steps(size), steps(4 * size)
    return f"{small} → {large} steps, × {large / small:.1f}" if large > MOST * small else ""


def _tools(modules: dict[str, Any]) -> Any:
    numbers = {f"p{number}": {"type": "integer"} for number in range(50)}
    schema = json.dumps({"type": "object", "properties": {"text": {"type": "string"}, **numbers}}).encode()
    request = modules["core.request"]
    return tuple(request.Tool(name, parameters=request.msgspec.Raw(schema)) for name in ("a", "typed"))


def _read(name: str, text: Callable[[int], str], way: str, mode: str, size: int = SIZE) -> str:
    meter, modules = loaded()
    events = modules["core.events"]
    usual = (modules["notations.use_tool"].USE_TOOL, modules["notations.tool_call"].TOOL_CALL)
    openers = usual if name == "usual" else modules["notations.registry"].CALLS[name]
    tools = _tools(modules)

    def steps(size: int) -> int:
        pieces = [events.TextDelta(piece) for piece in _cut(text(size), way)]

        def read() -> None:
            schemas = modules["notations.values"].Schemas(tools)
            names = ("a", "typed") if mode == "whole" else None
            reader = modules["notations.read"].ReadTextCalls(openers, "s", schemas, names, mode=mode)
            for piece in (*pieces, events.TurnEnded()):
                reader.feed(piece)

        return counted(meter, read)

    return _grows(steps, size)


WAYS = (("whole", "whole"), ("whole", "live"), ("by letter", "whole"), ("at random", "live"))
COSTLY = {(name, "by letter") for name in READERS if name not in ("usual", "kimi")}
"""What is tried in long runs only."""


@pytest.mark.parametrize(
    ("name", "way", "mode"),
    [
        pytest.param(name, way, mode, marks=pytest.mark.soak if (name, way) in COSTLY else ())
        for name in READERS
        for way, mode in WAYS
    ],
)
def test_reading(name: str, way: str, mode: str) -> None:
    size = SIZE // 2 if way == "by letter" else SIZE
    found = {what: grown for what, text in _texts(name).items() if (grown := _read(name, text, way, mode, size))}
    assert not found


@pytest.mark.parametrize("name", READERS)
def test_reading_blocks_that_are_no_calls(name: str) -> None:
    found = {
        what: grown
        for what, text in _blocks(name).items()
        if (grown := _read(name, text, "whole", "whole", ALL_BLOCKS))
    }
    assert not found


def test_a_reader_that_copies_what_is_left_is_caught() -> None:
    """The count sees work that one operation does in C: here a copy of the rest for each of many lines."""
    meter = Meter()

    def steps(size: int) -> int:
        def read() -> None:
            text = "a\n" * size
            while text:
                text = meter.made(text[2:])

        return counted(meter, read)

    assert _grows(steps)


def _unfit(number: int) -> str:
    """A name that is another one for each number, and not when it is made a tag."""
    return f"{number:012b}".replace("0", " ").replace("1", "<")


ARGUMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "letters": lambda size: {"text": "a" * size},
    "signs": lambda size: {"text": "<" * size},
    "closed signs": lambda size: {"text": "<" * size + ">"},
    "ends of signs": lambda size: {"text": ">" * size},
    "tags": lambda size: {"text": "<b>" * (size // 3)},
    "pairs": lambda size: {"text": "<b></b>" * (size // 7)},
    "pairs that stay": lambda size: {"text": "".join(f"<b{number}></c{number}>" for number in range(size // 12))},
    "nested tags": lambda size: {"text": "<b<" * (size // 3) + ">"},
    "crowded tags": lambda size: {"text": ("<" * 60 + "b>") * (size // 62)},
    "own closings": lambda size: {"text": "</text>" * (size // 7)},
    "own closings with spaces": lambda size: {"text": "</text >" * (size // 8)},
    "blocks": lambda size: {"text": "<use_tool></use_tool><tool_call></tool_call>" * (size // 44)},
    "backslashes": lambda size: {"text": "<" + "\\" * size + "tool_call>"},
    "openings of brackets": lambda size: {"text": "[" * size + "]"},
    "spaces": lambda size: {"text": " " * size},
    "parameters": lambda size: {f"p{number}": number for number in range(size // 10)},
    "parameters that are no tags": lambda size: {
        f"a{' ' * (number % 7)} {number}": "x" for number in range(size // 10)
    },
    "parameters that become the same": lambda size: {_unfit(number): 1 for number in range(size // 10)},
    "parameters that close": lambda size: {f"use_tool{_unfit(number)}": 1 for number in range(size // 20)},
    "lists": lambda size: {"text": ["<"] * (size // 4)},
}


def _write(writer: str, arguments: Callable[[int], dict[str, Any]]) -> str:
    meter, modules = loaded()
    own = {
        "use_tool": modules["notations.use_tool"].write_use_tool,
        "tool_call": modules["notations.tool_call"].write_tool_call,
    }
    write = own[writer] if writer in own else modules["notations.registry"].PROMPT_NOTATIONS[writer].write

    def steps(size: int) -> int:
        text = json.dumps(arguments(size))
        return counted(meter, lambda: write("a", text))

    return _grows(steps)


@pytest.mark.parametrize("writer", WRITERS)
def test_writing(writer: str) -> None:
    found = {what: grown for what, arguments in ARGUMENTS.items() if (grown := _write(writer, arguments))}
    assert not found


def test_names_are_written_as_fast_as_values() -> None:
    meter, modules = loaded()
    write = modules["notations.use_tool"].write_use_tool
    for unit in ("a", "<b></b>", "</name>", "<"):
        assert not _grows(lambda size, unit=unit: counted(meter, lambda: write(unit * (size // len(unit)), "{}")))


@pytest.mark.parametrize("way", ["whole", "by letter", "at random"])
@pytest.mark.parametrize("name", REASONING)
def test_thoughts(name: str, way: str) -> None:
    meter, modules = loaded()
    events, thought = modules["core.events"], modules["notations.registry"].REASONING[name]
    open, close = REASONING[name].open, REASONING[name].close
    texts = {
        "spaces": _same(" "),
        "openings": _same(open),
        "nearly openings": _same(open[:-1]),
        "closings": _same(close, open),
        "nearly closings": _same(close[:-1], open),
        "thoughts": _same(f"{open}x{close}"),
        "empty thoughts": _same(f"{open}{close} "),
        "one thought": _same("a", open),
        "spaces in a thought": _same(" ", open),
    }
    found: dict[str, str] = {}
    for what, text in texts.items():

        def steps(size: int, text: Callable[[int], str] = text) -> int:
            pieces = [events.TextDelta(piece) for piece in _cut(text(size), way)]

            def read() -> None:
                reader = modules["notations.reasoning"].ReadReasoning(thought)
                for piece in (*pieces, events.TurnEnded()):
                    reader.feed(piece)

            return counted(meter, read)

        grown = _grows(steps)
        if grown:
            found[what] = grown
    assert not found
