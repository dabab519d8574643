"""The words of a person in a user message, without the text that client programs put around them.

    <system-reminder>…</system-reminder>                                  Claude Code
    <environment_context><cwd>/home/me</cwd>…</environment_context>       Codex
    # AGENTS.md instructions for /home/me … <INSTRUCTIONS>…</INSTRUCTIONS>
    <environment_details>…</environment_details>                          Cline

Their tags begin a line and have a hyphen, an underscore, a space or only capitals in their names, unlike those of HTML.
A few tags hold the user's words instead, such as `<user_query>` and `<task>`.
"""

import re
from collections.abc import Sequence

from toolwire.core.request import Part, TextPart

_OPENING = re.compile(r"^[ \t]*<([A-Za-z][^<>\n/]{0,80})>", re.MULTILINE)
_HEADING = re.compile(r"^# AGENTS\.md instructions.*\n*", re.MULTILINE)
_USER_TAGS = ("user_query", "user_request", "userRequest", "user_message", "user_input", "task")
_QUOTED = re.compile(r'"[^"]+"')
"""`opencode run` puts its argument into quotes."""
MAX_BLOCKS = 200
"""Maximum tags examined in one text."""


def find_own_words(text: str) -> str:
    """The user's words in the text of a user message."""
    kept: list[str] = []
    start = at = 0
    for _ in range(MAX_BLOCKS):
        opening = _OPENING.search(text, at)
        if opening is None:
            break
        at = opening.end()
        for name in (opening[1], opening[1].split(maxsplit=1)[0]):
            end = text.find(f"</{name}>", at)
            if end >= 0:
                break
        else:
            continue
        if opening[1] in _USER_TAGS:
            return text[at:end].strip()
        if any(sign in name for sign in "-_ ") or name.isupper():
            kept.append(text[start : opening.start()])
            start = at = end + len(name) + 3
    kept.append(text[start:])
    words = (_HEADING.sub("", "".join(kept)) if len(kept) > 1 else text).strip()
    return words[1:-1] if _QUOTED.fullmatch(words) else words


def join_own_words(parts: Sequence[Part]) -> str:
    """The user's words in a user message; empty if it has none."""
    return " ".join(filter(None, (find_own_words(part.text) for part in parts if isinstance(part, TextPart))))
