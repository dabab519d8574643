"""What the demo model is asked, found in the history: the user's own words, or the results of its calls.

Client programs put text of their own into user messages, around the user's words or in messages of their own:

    <system-reminder>…</system-reminder>                                  Claude Code
    <environment_context><cwd>/home/me</cwd>…</environment_context>       Codex
    # AGENTS.md instructions for /home/me … <INSTRUCTIONS>…</INSTRUCTIONS>
    <environment_details>…</environment_details>                          Cline

Their tags stand at the beginning of a line and have a hyphen, an underscore, a space or capitals in their names, which
those of HTML have not. A few tags hold the user's words instead, such as `<user_query>` and `<task>`.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from toolwire.core.request import CallEntry, Message, Part, Request, ResultEntry, TextPart

_OPENING = re.compile(r"^[ \t]*<([A-Za-z][^<>\n/]{0,80})>", re.MULTILINE)
_HEADING = re.compile(r"^# AGENTS\.md instructions.*\n*", re.MULTILINE)
_REMINDER = re.compile(r"\s*<system-reminder>.*?</system-reminder>", re.DOTALL)
_HOLDS_WORDS = ("user_query", "user_request", "userRequest", "user_message", "user_input", "task")
_MOST_BLOCKS = 200
"""Blocks that are looked at in one text."""


def own_words(text: str) -> str:
    """The user's words in the text of a user message."""
    kept: list[str] = []
    start = at = 0
    for _ in range(_MOST_BLOCKS):
        found = _OPENING.search(text, at)
        if found is None:
            break
        name = found[1]
        end, after = _closing(text, found.end(), name)
        at = found.end()
        if end >= 0 and name in _HOLDS_WORDS:
            return text[at:end].strip()
        if end >= 0 and _is_added(name, text[end:after]):
            kept.append(text[start : found.start()])
            start = at = after
    kept.append(text[start:])
    return (_HEADING.sub("", "".join(kept)) if len(kept) > 1 else text).strip()


def _closing(text: str, start: int, name: str) -> tuple[int, int]:
    """Where the block with this tag ends, and where its closing tag does; -1 if there is none."""
    for closing in (f"</{name}>", f"</{name.split(maxsplit=1)[0]}>"):
        end = text.find(closing, start)
        if end >= 0:
            return end, end + len(closing)
    return -1, -1


def _is_added(name: str, closing: str) -> bool:
    plain = closing[2:-1]
    return any(sign in plain for sign in "-_ ") or plain.isupper()


class Result(msgspec.Struct, frozen=True):
    """What came of a call: the name of its tool, and the text of the result."""

    name: str
    text: str
    failed: bool


_FAILURE = re.compile(r"error\b|failed\b|.{0,2000}\bexit(?:ed with)? code:? [1-9]", re.IGNORECASE | re.DOTALL)
"""How results begin that report a failure where the protocol has no field for that."""


def prompt_of(request: Request) -> str:
    """The user's words in the last message that has any, unless something was answered since."""
    skipped = False
    for entry in reversed(request.entries):
        if isinstance(entry, Message) and entry.role == "user":
            words = " ".join(filter(None, map(own_words, _texts(entry.parts))))
            if words:
                return words
            skipped = True
        elif skipped and not _is_aside(entry):
            break
    return ""


def results_of(request: Request) -> tuple[Result, ...]:
    """The results at the end of the history. What clients add after them does not count."""
    names = {entry.id: entry.name for entry in request.entries if isinstance(entry, CallEntry)}
    found: list[Result] = []
    for entry in reversed(request.entries):
        if isinstance(entry, ResultEntry):
            text = _REMINDER.sub("", "".join(_texts(entry.parts)))
            failed = entry.failed or _FAILURE.match(text) is not None
            found.insert(0, Result(names.get(entry.call_id, "the tool"), text, failed))
        elif found or not _is_aside(entry):
            break
    return tuple(found)


def _is_aside(entry: object) -> bool:
    """Whether an entry is neither words of the user nor anything of the model."""
    if isinstance(entry, Message):
        return entry.role in ("system", "developer") or (
            entry.role == "user" and not any(map(own_words, _texts(entry.parts)))
        )
    return not isinstance(entry, CallEntry | ResultEntry)


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    return (part.text for part in parts if isinstance(part, TextPart))


_DEMAND = re.compile(r"^Call (?:a tool|the tool \S+) before you answer\.$", re.MULTILINE)
"""How a server without `tool_choice` is told to call a tool, as `backends/codex` does."""


def demands_call(request: Request) -> bool:
    """Whether the request, or an instruction in place of its tool choice, demands a call."""
    choice = request.tool_choice
    if choice is not None and (choice.mode == "required" or choice.name):
        return True
    return any(_DEMAND.search(text) for text in _instructions(request))


def _instructions(request: Request) -> Iterator[str]:
    yield request.instructions
    for entry in request.entries:
        if isinstance(entry, Message) and entry.role in ("system", "developer"):
            yield from _texts(entry.parts)


_DIRECTORY = re.compile(
    r"<cwd>\s*(?P<codex>[^<\n]+?)\s*</cwd>|working directory:[ \t]*[`\"]?(?P<other>[^`\"\n]+)", re.IGNORECASE
)


def directory_of(request: Request) -> str:
    """The working directory that the client reports in its prompt, or nothing."""
    found = ""
    messages = (entry for entry in request.entries if isinstance(entry, Message) and entry.role != "assistant")
    for text in (request.instructions, *(text for message in messages for text in _texts(message.parts))):
        for match in _DIRECTORY.finditer(text):
            path = (match["codex"] or match["other"]).strip()
            if path.startswith("/") or path[1:3] in (":\\", ":/"):
                found = path
    return found
