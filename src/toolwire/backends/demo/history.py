"""Reads a history for the demo model: the user's prompt, and the results of its calls."""

import re
from collections.abc import Iterator

import msgspec

from toolwire.core.own_words import find_own_words, join_own_words
from toolwire.core.request import CallEntry, Message, Request, ResultEntry, TextPart

_REMINDER = re.compile(r"\s*<system-reminder>.*?</system-reminder>", re.DOTALL)

_FAILURE = re.compile(r"error\b|failed\b|.{0,2000}\bexit(?:ed with)? code:? [1-9]", re.IGNORECASE | re.DOTALL)
"""The beginning of a result that reports a failure, for protocols without a field for that."""
_DEMAND = re.compile(r"^Call (?:a tool|the tool \S+) before you answer\.$", re.MULTILINE)
"""The instruction with which `backends/codex` demands a call: app-server has no `tool_choice`."""
_DIRECTORY = re.compile(
    r"<cwd>\s*(?P<codex>[^<\n]+?)\s*</cwd>|working (?:in the )?directory:[ \t]*[`\"]?(?P<other>[^`\"\n]+)",
    re.IGNORECASE,
)


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call: the name of its tool, and the text."""

    name: str
    text: str
    failed: bool


def find_prompt(request: Request) -> str:
    """The user's last words; empty if the model has answered them and only messages without words follow."""
    skipped = False
    for entry in reversed(request.entries):
        if isinstance(entry, Message) and entry.role == "user":
            words = join_own_words(entry.parts)
            if words:
                return words
            skipped = True
        elif skipped and not _is_aside(entry):
            break
    return ""


def find_results(request: Request) -> tuple[CallResult, ...]:
    """The results at the end of the history. What clients add after them does not count."""
    names = {entry.id: entry.name for entry in request.entries if isinstance(entry, CallEntry)}
    found: list[CallResult] = []
    for entry in reversed(request.entries):
        if isinstance(entry, ResultEntry):
            text = _REMINDER.sub("", "".join(_texts_of(entry)))
            failed = entry.failed or _FAILURE.match(text) is not None
            found.insert(0, CallResult(names.get(entry.call_id, "the tool"), text, failed))
        elif found or not _is_aside(entry):
            break
    return tuple(found)


def _is_aside(entry: object) -> bool:
    """Whether an entry is neither the user's words, nor the model's, nor a call or a result."""
    if isinstance(entry, Message):
        has_words = entry.role == "user" and any(map(find_own_words, _texts_of(entry)))
        return entry.role != "assistant" and not has_words
    return not isinstance(entry, CallEntry | ResultEntry)


def _texts_of(entry: Message | ResultEntry) -> Iterator[str]:
    return (part.text for part in entry.parts if isinstance(part, TextPart))


def _list_client_texts(request: Request) -> Iterator[str]:
    """The instructions, and the texts of all messages that are not the model's."""
    yield request.instructions
    for entry in request.entries:
        if isinstance(entry, Message) and entry.role != "assistant":
            yield from _texts_of(entry)


def demands_call(request: Request) -> bool:
    """Whether the request, or an instruction in place of its tool choice, demands a call."""
    choice = request.tool_choice
    if choice is not None and (choice.mode == "required" or choice.name):
        return True
    return any(_DEMAND.search(text) for text in _list_client_texts(request))


def find_directory(request: Request) -> str:
    """The last working directory that the client reports, or an empty string."""
    found = ""
    for match in (match for text in _list_client_texts(request) for match in _DIRECTORY.finditer(text)):
        path = (match["codex"] or match["other"]).strip()
        if path.startswith("/") or path[1:3] in (":\\", ":/"):
            found = path
    return found
