"""Writes the rules as a page: `python -m toolwire.check.document > docs/rules.md`."""

import sys
from collections.abc import Iterator

from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Rule

AREAS = {
    "calls": "How every turn reports its calls, in every API, streamed or not.",
    "plain": "Answers that are not streamed, in every API.",
    "stream": "How a stream behaves, in every API.",
    "usage": "Token counts, in every API.",
    "choice": "`tool_choice` and related settings.",
    "parallel": "Several calls in one turn.",
    "arguments": "Arguments arrive as the model wrote them.",
    "limits": "Answers and requests that are longer than the limit.",
    "history": "Calls and results in the history of a request.",
    "errors": "Requests that cannot be served.",
    "legacy": "The contract from before tools, in Chat Completions.",
    "state": "Responses that are continued.",
    "socket": "Responses over a WebSocket, where there is one.",
    "compact": "Compaction of Responses histories, where there is such an endpoint.",
    "models": "The list of models.",
    "sse": "The framing of streams: server-sent events.",
    "chat": "The form of Chat Completions.",
    "responses": "The form of Responses.",
    "messages": "The form of Messages.",
}

HEAD = """\
# The rules

The rules that `toolwire check` tests an endpoint for ([how to use it](check.md)).
This page is written by `python -m toolwire.check.document`.

**MUST**: clients lose or mangle calls where it is broken.
**SHOULD**: some clients fail, or information other than calls is lost.
Ids are stable.

One fault can break several rules.
Reports show the cause first: `responses.output-index`, for example, before `responses.final-output`.
"""


def as_markdown() -> str:
    """All rules as Markdown, a table for each area."""
    return "\n".join([HEAD, *(line for area, description in AREAS.items() for line in _area(area, description))])


def _area(area: str, description: str) -> Iterator[str]:
    yield f"## {area}\n\n{description}\n"
    yield "| rule | level | requirement | required by | what goes wrong otherwise |"
    yield "| --- | --- | --- | --- | --- |"
    for rule in RULES.values():
        if rule.area == area:
            yield _row(rule)
    yield ""


def _row(rule: Rule) -> str:
    return f"| `{rule.id}` | {rule.level} | {rule.requirement} | {rule.source} | {rule.harm} |"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
