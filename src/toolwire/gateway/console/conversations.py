"""Turns that belong together, how their context grows, and where the prompt cache broke.

Turns of one key belong together if one continues the other's response, or if they name the same conversation or
session. They are joined too if they have the same cache key, or if the messages of one are the beginning of the
other's; but not if that would join two sessions, for these may begin with the same words. Replays belong to none.
"""

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from toolwire.gateway.console.prompts import PREFIX, SEGMENT, Prompt
from toolwire.gateway.console.rows import MAX_NAME_LENGTH, Row
from toolwire.gateway.console.said import Call, Excerpt, Result, Said, unpacked

LOOKED_AT = 10
"""Earlier turns of a conversation among which the one is sought whose prompt a turn goes on with."""
SHOWN = 200
"""Most turns of a conversation that are shown, the last ones."""
ALIKE = 8
"""Turns with the same messages, or the same cache key, among which one is sought that a turn can be joined with."""
FORM = "form"
"""What `replay_of` is for a turn that the page's form made; such a turn is like any other."""

Mark: TypeAlias = tuple[str, str, str | bytes]
"""A key, a kind of name, and the name."""


class Member(msgspec.Struct, frozen=True):
    """A turn with its prompt."""

    row: Row
    prompt: Prompt


def grouped(members: Iterable[Member]) -> list[list[Member]]:
    """The conversations, each in the order of time; the one with the latest turn first."""
    turns = [each for each in members if each.row.replay_of in ("", FORM)]
    turns.sort(key=lambda each: each.row.at)
    groups = _Groups(turns)
    for index, turn in enumerate(turns):
        groups.add(index, turn)
    return sorted(groups.found(), key=lambda each: -each[-1].row.at)


class _Groups:
    """Sets of turns that are joined one by one (union-find); each knows the sessions and conversations in it."""

    def __init__(self, turns: Sequence[Member]) -> None:
        self._turns = turns
        self._parents = list(range(len(turns)))
        self._named: list[set[str]] = [{kind for kind, _ in _names(each.prompt)} for each in turns]
        self._known: defaultdict[Mark, list[int]] = defaultdict(list)

    def add(self, index: int, turn: Member) -> None:
        """Join a turn with earlier ones."""
        key, prompt = turn.row.key, turn.prompt
        names = [(key, kind, name) for kind, name in _names(prompt)]
        for mark in (*names, (key, "response", prompt.previous)):
            for other in self._known.get(mark, ())[-1:]:
                self._join(index, other)
        cached = [(key, "cache", prompt.cache_key)] if prompt.cache_key else []
        prefixes = ((key, "messages", digest) for digest in _prefixes(prompt))  # all messages, all but the last, ...
        whole = [*islice(prefixes, 1)]  # not joined by: many turns just say "Hi"
        self._join_first(index, cached)
        self._join_first(index, prefixes)
        for mark in (*names, *cached, *whole, (key, "response", prompt.response)):
            self._known[mark].append(index)

    def found(self) -> Iterable[list[Member]]:
        out: defaultdict[int, list[Member]] = defaultdict(list)
        for index, turn in enumerate(self._turns):
            out[self._root(index)].append(turn)
        return out.values()

    def _root(self, index: int) -> int:
        parents = self._parents
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    def _join(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        if one != other:
            self._parents[one] = other
            self._named[other] |= self._named[one]

    def _join_first(self, index: int, marks: Iterable[Mark]) -> None:
        """Join a turn with the first of those with these marks that is of no other session."""
        for mark in marks:
            for other in islice(reversed(self._known.get(mark, ())), ALIKE):
                if self._are_one(index, other):
                    return self._join(index, other)
        return None

    def _are_one(self, one: int, other: int) -> bool:
        """Whether two turns can be of one session. Those that name the same one are joined already."""
        one, other = self._root(one), self._root(other)
        return one == other or not self._named[one] & self._named[other]


def _names(prompt: Prompt) -> list[tuple[str, str]]:
    named = (("conversation", prompt.conversation), ("session", prompt.session))
    return [(kind, name) for kind, name in named if name]


def _prefixes(prompt: Prompt) -> Iterator[bytes]:
    """The digests of the first messages, that of all of them first."""
    digests = prompt.prefixes
    return (digests[end - PREFIX : end] for end in range(len(digests), 0, -PREFIX))


def overview(members: Sequence[Member]) -> dict[str, Any]:
    """A conversation in one line."""
    first, last = members[0], members[-1]
    return {
        "id": first.row.id,
        "title": first.prompt.title,
        "began": first.row.at,
        "ended": last.row.at,
        "turns": len(members),
        "key": first.row.key,
        "client": last.row.client,
        "models": sorted({each.row.model for each in members}),
        "calls": sum(each.row.call_count for each in members),
        "input": sum(each.row.input for each in members),
        "output": sum(each.row.output for each in members),
        "errors": sum(each.row.failed for each in members),
    }


def version(members: Sequence[Member]) -> str:
    """Changes with every turn that comes, goes or changes."""
    rows = "".join(f"{each.row.id} {each.row.seq}\n" for each in members)
    return hashlib.blake2b(rows.encode(), digest_size=8).hexdigest()


def timeline(members: Sequence[Member]) -> list[dict[str, Any]]:
    """The last turns of a conversation, each with its context and what was said in it."""
    begin = max(0, len(members) - SHOWN)
    said = [unpacked(each.prompt.said) for each in members[begin:]]
    results = _Results(said)
    return [
        {
            "row": msgspec.to_builtins(member.row),
            "asked": _shown(spoken.asked) if spoken.is_new else None,
            "brought": results.brought(index),
            "answer": _shown(spoken.answer),
            "reasoning": spoken.reasoning,
            "calls": [_call(call, results.of(call.id, index), members[begin:]) for call in spoken.calls],
            "more_calls": max(0, spoken.call_count - len(spoken.calls)),
            "context": None if member.prompt.is_partial else member.prompt.context,
            "added": sum(member.prompt.context.values()),
            "cache": cache_state(member, members[max(0, begin + index - LOOKED_AT) : begin + index]),
        }
        for index, (member, spoken) in enumerate(zip(members[begin:], said, strict=True))
    ]


class _Results:
    """Which turn brought the result of which call. Later requests repeat it."""

    def __init__(self, said: Sequence[Said]) -> None:
        self._said = said
        self._where: defaultdict[str, dict[int, Result]] = defaultdict(dict)
        for index, each in enumerate(said):
            for result in each.results:
                self._where[result.call][index] = result  # the last one, where a model uses an id again

    def of(self, call: str, made: int) -> tuple[int, Excerpt] | None:
        """The first turn behind the one that made a call which has its result, and the text of that."""
        found = self._where.get(call, {})
        turns = list(found)
        at = bisect_right(turns, made)
        if at == len(turns):
            return None
        texts = (found[turn].content for turn in turns[at:])
        return turns[at], next((each for each in texts if each.text), found[turns[at]].content)

    def brought(self, index: int) -> int:
        """How many results came with a turn: those behind all that the model said, or that earlier calls waited for."""
        calls = {call.id for each in self._said[:index] for call in each.calls}
        results = {each.call for each in self._said[index].results if each.call in calls}
        waited = sum(1 for call in results if next(iter(self._where[call])) == index)
        return max(waited, self._said[index].new_results)


def _call(call: Call, found: tuple[int, Excerpt] | None, members: Sequence[Member]) -> dict[str, Any]:
    shown = {"id": call.id, "name": call.name, "arguments": _shown(call.arguments), "result": None}
    if found is None:
        return shown
    index, content = found
    row = members[index].row
    return {**shown, "result": _shown(content), "result_turn": row.id, "result_at": row.at}


def _shown(excerpt: Excerpt) -> dict[str, Any]:
    return {"text": excerpt.text, "size": excerpt.size, "cut": len(excerpt.text) < excerpt.size}


def cache_state(member: Member, earlier: Sequence[Member]) -> dict[str, Any] | None:
    """How far a prompt begins like one before it, and where that ends too early. None if there is none before it, or if
    all of the prompt is not known here."""
    own = member.prompt
    candidates = [each for each in earlier if each.row.model == member.row.model and _is_known(each.prompt)]
    if not candidates or not _is_known(own):
        return None

    def likeness(other: Member) -> tuple[int, bool]:
        """How many segments are the same, and whether the other prompt has no more than these."""
        common = _common(own, other.prompt)
        return common, common == len(other.prompt.segments) // SEGMENT.size

    best = max(reversed(candidates), key=likeness)
    common, is_all = likeness(best)
    sizes = [size for size, _ in SEGMENT.iter_unpack(own.segments)]
    state: dict[str, Any] = {
        "against": best.row.id,
        "shared": sum(sizes[:common]),
        "before": sum(best.prompt.context.values()),
        "broken": not is_all and common < len(sizes),
    }
    if state["broken"]:
        state |= {"segment": common, "byte": state["shared"]}
    return state


def _is_known(prompt: Prompt) -> bool:
    return bool(prompt.segments) and not prompt.is_partial


def _common(one: Prompt, other: Prompt) -> int:
    return common_bytes(one.segments, other.segments) // SEGMENT.size


def located(own: Sequence[str], other: Sequence[str]) -> dict[str, Any]:
    """Where two segments differ first, and what stands there; each is given by what it is, its name, and its text."""
    now, was = own[2].encode(), other[2].encode()
    at = common_bytes(now, was)
    return {
        "part": other[0],
        "label": other[1][:MAX_NAME_LENGTH],
        "at": at,
        "now": _around(now, at),
        "was": _around(was, at),
    }


def _around(data: bytes, at: int) -> str:
    return data[max(0, at - 40) : at + 80].decode(errors="replace")


def common_bytes(a: bytes, b: bytes) -> int:
    """How many bytes are the same at the beginning."""
    same, differs = 0, min(len(a), len(b)) + 1  # so many bytes are the same, so many are not
    while same + 1 < differs:
        middle = (same + differs) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differs = middle
    return same
