r"""Notations whose markers are control tokens of a tokenizer: Mistral, Kimi, and Harmony, the format of gpt-oss.

    [TOOL_CALLS]search[ARGS]{"q": "x"}[TOOL_CALLS]get_date[ARGS]{}

    [TOOL_CALLS] [{"name": "search", "arguments": {"q": "x"}}, {"name": "get_date", "arguments": {}}]

Mistral has these two forms, neither with an end marker. Some tokenizers put `[CALL_ID]` and an id before `[ARGS]`, and
some servers lose `[ARGS]`. The id is not used: the structured calls of the same server have others.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{"q": "x"}
    <|tool_call_end|><|tool_calls_section_end|>

Kimi writes a section of calls, each with a name and a number. (The line breaks here and below are for legibility.)

    <|channel|>analysis<|message|>They want the weather.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Rome"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It rains.<|return|>

Harmony has messages with a head that names the channel and the recipient. `analysis` is reasoning, `final` the answer,
`commentary` text before a call. The reply begins after `<|start|>assistant`, which is part of the prompt, and engines
tend to drop the last marker. The recipient may also precede the channel.
"""

import re

from toolwire.notations.table import Channel, Head, Notation, Wrapper
from toolwire.notations.write import WrittenCall, escape_markers_in_json

MISTRAL = Notation(
    open="[TOOL_CALLS]",
    json=True,
    listed=True,
    head=Head(
        pattern=re.compile(r"(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?"),
        end="[ARGS]",
        stop="{",
    ),
)


def write_mistral(name: str, arguments: str) -> WrittenCall:
    """A call as the newer tokenizers write it."""
    return WrittenCall(f"{MISTRAL.open}{name}[ARGS]{escape_markers_in_json(arguments, (MISTRAL.open,))}")


_KIMI_CALL = Notation(
    open="<|tool_call_begin|>",
    close="<|tool_call_end|>",
    head=Head(
        pattern=re.compile(r"\s*(?:functions\.)?(?P<name>[^\s:]+)(?::\d+)?\s*"),
        end="<|tool_call_argument_begin|>",
    ),
)
_KIMI_SECTION = Wrapper("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", (_KIMI_CALL,))
KIMI = (_KIMI_SECTION, _KIMI_CALL)


def write_kimi(name: str, arguments: str) -> WrittenCall:
    """A call in a section of its own."""
    given = escape_markers_in_json(arguments, ("<|tool_call",))
    call = f"{_KIMI_CALL.open}functions.{name}:0<|tool_call_argument_begin|>{given}{_KIMI_CALL.close}"
    return WrittenCall(f"{_KIMI_SECTION.open}{call}{_KIMI_SECTION.close}")


_TO = r"to=[^\s<]+"
_NAME = r"(?=(?:.*?\bto=(?:functions\.)?(?P<name>[^\s<]+))?)"
_CHANNEL = rf"\s*(?P<channel>\w+)(?:\s*{_TO})?\s*(?:<\|constrain\|>)?\s*\w*\s*"
_ROLE = rf"\s*assistant(?:\s*{_TO})?\s*(?:<\|channel\|>{_CHANNEL})?"
_CHANNELS: dict[str, Channel] = {"analysis": "reasoning", "commentary": "text", "final": "text", "": "text"}
HARMONY = tuple(
    Notation(
        open=open,
        head=Head(pattern=re.compile(_NAME + head, re.DOTALL), end="<|message|>", channels=_CHANNELS),
        ends=("<|end|>", "<|call|>", "<|return|>"),
    )
    for open, head in (("<|channel|>", _CHANNEL), ("<|start|>", _ROLE))
)
