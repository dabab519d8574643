"""Turns that belong together, how their context grows, and where the prompt cache broke.

Turns of one key belong together if one continues the other's response, if they name the same conversation, session or
cache key, or if the messages of one are the beginning of the other's.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from toolwire.gateway.console.prompts import Prompt, Segment
from toolwire.gateway.console.rows import Row

LOOKED_AT = 10
"""Earlier turns of a conversation among which the one is sought whose prompt a turn goes on with."""


class Member(msgspec.Struct, frozen=True):
    """A turn with its prompt."""

    row: Row
    prompt: Prompt


def grouped(members: Iterable[Member]) -> list[list[Member]]:
    """The conversations, each in the order of time; the one with the latest turn first."""
    ordered = sorted(members, key=lambda each: each.row.at)
    parents = list(range(len(ordered)))

    def root(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    known: dict[tuple[str, str, str], int] = {}
    for index, member in enumerate(ordered):
        for mark in _joins(member):
            if mark in known:
                parents[root(index)] = root(known[mark])
        for mark in _known_by(member):
            known[mark] = index
    found: dict[int, list[Member]] = {}
    for index, member in enumerate(ordered):
        found.setdefault(root(index), []).append(member)
    return sorted(found.values(), key=lambda each: -each[-1].row.at)


def _marks(member: Member) -> list[tuple[str, str, str]]:
    key, prompt = member.row.key, member.prompt
    named = (("conversation", prompt.conversation), ("session", prompt.session), ("cache", prompt.cache_key))
    return [(key, kind, value) for kind, value in named if value]


def _joins(member: Member) -> list[tuple[str, str, str]]:
    """By what a turn finds earlier ones it belongs to."""
    key, prompt = member.row.key, member.prompt
    previous = [(key, "response", prompt.previous)] if prompt.previous else []
    prefixes = [(key, "messages", digest) for digest in _prefixes(prompt.messages)[:-1]]
    return [*_marks(member), *previous, *prefixes]


def _known_by(member: Member) -> list[tuple[str, str, str]]:
    """By what later turns find this one."""
    key, prompt = member.row.key, member.prompt
    whole = [(key, "messages", _prefixes(prompt.messages)[-1])] if prompt.messages else []
    return [*_marks(member), (key, "response", prompt.response), *whole]


def _prefixes(messages: Sequence[str]) -> list[str]:
    """A digest of the first message, of the first two, and so on."""
    chain = hashlib.blake2b(digest_size=12)
    out: list[str] = []
    for message in messages:
        chain.update(message.encode())
        out.append(chain.hexdigest())
    return out


def overview(members: Sequence[Member]) -> dict[str, Any]:
    """A conversation in one line."""
    first, last = members[0], members[-1]
    return {
        "id": first.row.id,
        "title": next((each.prompt.asked for each in members if each.prompt.asked), "")[:200],
        "began": first.row.at,
        "ended": last.row.at,
        "turns": len(members),
        "key": first.row.key,
        "client": last.row.client,
        "models": sorted({each.row.model for each in members}),
        "calls": sum(each.row.call_count for each in members),
        "input": last.row.input,
        "output": sum(each.row.output for each in members),
        "errors": sum(each.row.failed for each in members),
    }


def timeline(members: Sequence[Member]) -> list[dict[str, Any]]:
    """The turns of a conversation, each with its context and what is new in it."""
    results = {  # later requests repeat them: that which brought one first is its turn
        each.call: (member, each.text) for member in reversed(members) for each in reversed(member.prompt.results)
    }
    out: list[dict[str, Any]] = []
    for index, member in enumerate(members):
        calls = [
            {"id": id, "name": name, **_result(results.get(id))}
            for id, name in zip(member.row.call_ids, member.row.calls, strict=False)
        ]
        out.append(
            {
                "row": msgspec.to_builtins(member.row),
                "asked": member.prompt.asked,
                "context": composition(member.prompt.segments),
                "cache": cache_state(member, members[max(0, index - LOOKED_AT) : index]),
                "calls": calls,
            }
        )
    return out


def _result(found: tuple[Member, str] | None) -> dict[str, Any]:
    if found is None:
        return {"result": None}
    member, text = found
    return {"result": text, "result_turn": member.row.id, "result_at": member.row.at}


def composition(segments: Sequence[Segment]) -> dict[str, int]:
    """Bytes of a prompt by what they are."""
    sizes = {"system": 0, "tools": 0, "history": 0, "results": 0}
    for segment in segments:
        sizes[segment.part] += segment.size
    return sizes


def cache_state(member: Member, earlier: Sequence[Member]) -> dict[str, Any] | None:
    """How far a prompt begins like one before it, and where that ends too early; None if there is none before it."""
    own = member.prompt.segments
    candidates = [each for each in earlier if each.prompt.segments and each.row.model == member.row.model]
    if not candidates or not own:
        return None
    best = max(reversed(candidates), key=lambda each: _common(own, each.prompt.segments))
    common = _common(own, best.prompt.segments)
    state: dict[str, Any] = {
        "against": best.row.id,
        "shared": sum(segment.size for segment in own[:common]),
        "before": sum(segment.size for segment in best.prompt.segments),
        "broken": common < min(len(own), len(best.prompt.segments)),
    }
    if state["broken"]:
        broken = best.prompt.segments[common]
        state |= {"segment": common, "part": broken.part, "label": broken.label, "byte": state["shared"]}
    return state


def _common(one: Sequence[Segment], other: Sequence[Segment]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a.digest != b.digest), min(len(one), len(other)))


def first_difference(one: str, other: str) -> int:
    """How many bytes two texts have in common at the beginning."""
    a, b = one.encode(), other.encode()
    same, differs = 0, min(len(a), len(b)) + 1  # so many bytes are the same, so many are not
    while same + 1 < differs:
        middle = (same + differs) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differs = middle
    return same
