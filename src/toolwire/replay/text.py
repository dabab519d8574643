"""A recorded turn as text.

turn 8f3a…: chat client, responses backend, model gpt-5, status 200, 2026-11-17T05:41:22.118+00:00

client asks: model gpt-5, streamed, 812 bytes, tool: find
    user       Where is x?

sent to the backend: POST /responses, model gpt-5, streamed, 790 bytes, tool: find
    the same conversation

received:
    0.213 s    reasoning  The question fits the tool.
    0.250 s    call       find c1 {"q":"x"}
    0.251 s    end        calls
"""

from collections.abc import Sequence
from typing import TextIO

from toolwire.core.recording import Head
from toolwire.core.terminal import escaped
from toolwire.replay.steps import Direction, Step

MAX_CHARS = 600
"""Characters shown of one text, unless all are asked for."""
TITLES: dict[Direction, str] = {"client": "client asks", "sent": "sent to the backend", "received": "received"}


def show_turn(name: str, head: Head, steps: Sequence[Step], out: TextIO, *, is_full: bool, is_filtered: bool) -> None:
    """Print one turn. Nothing in it controls the terminal."""
    client = f"{head.dialect} client, " if head.dialect else ""
    when = f", {head.at}" if head.at else ""
    about = f"turn {name}: {client}{head.kind} backend, model {head.model}, status {head.status or 'none'}{when}"
    print(escaped(about), file=out)
    asked = [step.said for step in steps if step.direction == "client" and step.type != "request"]
    for direction, title in TITLES.items():
        found = [step for step in steps if step.direction == direction]
        if not found:
            continue
        requests = [step for step in found if step.type == "request"]
        others = [step for step in found if step.type != "request"]
        about = "; ".join(step.text for step in requests)
        print(escaped(f"\n{title}: {about}".rstrip()), file=out)
        if direction == "sent" and asked and not is_filtered and [step.said for step in others] == asked:
            print("    the same conversation", file=out)
            continue
        for step in others:
            print(_line(step, is_full=is_full), file=out)


def _line(step: Step, *, is_full: bool) -> str:
    label = "" if step.t is None else f"{step.t:.3f} s"
    kind = step.type if step.t is not None or step.type not in ("text", "other") else ""
    first = f"{label or step.who:<10} {kind:<10}" if kind else f"{label or step.who:<10}"
    words = _words(step)
    if len(words) > MAX_CHARS and not is_full:
        words = f"{words[:MAX_CHARS]}… ({len(words) - MAX_CHARS:,} more characters: --full)"
    text = escaped(words).replace("\n", "\n" + " " * (len(first) + 5))
    return f"    {escaped(first)} {text}".rstrip()


def _words(step: Step) -> str:
    match step.type:
        case "call":
            return f"{step.name} {step.id} {step.text}"
        case "result":
            return f"{step.name} {step.id}: {step.text}".lstrip()
        case "note" | "failure":
            return f"{step.name}: {step.text}".removeprefix(": ").removesuffix(": ")
        case _:
            return step.text
