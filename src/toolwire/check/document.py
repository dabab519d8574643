"""The rules as a page: `python -m toolwire.check.document > docs/rules.md`."""

import sys
from collections.abc import Iterator

from toolwire.check.rules import RULES
from toolwire.check.turns.rule import Rule

AREAS = {
    "calls": "What every turn says about its calls, in every API, streamed or not.",
    "plain": "Answers that are not streamed, in every API.",
    "stream": "How a stream behaves, in every API.",
    "usage": "Token counts, in every API.",
    "choice": "What the client chooses about tools.",
    "parallel": "Several calls in one turn.",
    "arguments": "What arrives of arguments.",
    "limits": "More than fits.",
    "history": "Calls and results that come back.",
    "errors": "Requests that cannot be served.",
    "legacy": "The contract from before tools, in Chat Completions.",
    "state": "Responses that are continued.",
    "socket": "Responses over a WebSocket, where there is one.",
    "compact": "Histories of Responses that are made short, where there is such an endpoint.",
    "models": "The list of models.",
    "sse": "The framing of streams: server-sent events.",
    "chat": "The form of Chat Completions.",
    "responses": "The form of Responses.",
    "messages": "The form of Messages.",
}

HEAD = """\
# The rules

What `toolwire check` holds an endpoint to ([how to use it](check.md)).
This page is written by `python -m toolwire.check.document`.

**MUST**: clients lose or mangle calls where it is broken.
**SHOULD**: some client stumbles, or something is lost besides.
Ids are stable.

One fault can break several rules.
Reports show the cause first: `responses.output-index`, for example, before `responses.final-output`.
"""


def as_markdown() -> str:
    return "\n".join([HEAD, *(line for area, says in AREAS.items() for line in _area(area, says))])


def _area(area: str, says: str) -> Iterator[str]:
    yield f"## {area}\n\n{says}\n"
    yield "| rule | level | what it says | who demands it | what goes wrong otherwise |"
    yield "| --- | --- | --- | --- | --- |"
    for rule in RULES.values():
        if rule.area == area:
            yield _row(rule)
    yield ""


def _row(rule: Rule) -> str:
    return f"| `{rule.id}` | {rule.level} | {rule.says} | {rule.source} | {rule.harm} |"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
