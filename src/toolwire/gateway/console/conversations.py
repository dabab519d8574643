"""Conversations: which turns belong together, how their context grows, and where the prompt cache broke.

Turns of one key belong together if one continues the other's response, or if they name the same conversation or
session. They are also joined if they have the same cache key, or if the history of one begins with that of the other,
unless that would join two sessions, which may begin with the same words. Replays belong to no conversation.
Side requests belong to the conversation that they are made beside, but are neither its title nor counted as its turns.
"""

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from toolwire.gateway.console.prompts import (
    NO_TEXT,
    PREFIX_SIZE,
    SEGMENT,
    Excerpts,
    ResultExcerpt,
    TextExcerpt,
    TurnPrompt,
    unpack_excerpts,
)
from toolwire.gateway.console.rows import MAX_NAME_LENGTH, TurnRow

MAX_COMPARED = 10
"""Maximum number of earlier turns with which the prompt of a turn is compared."""
MAX_SHOWN_TURNS = 200
"""Maximum number of turns of a conversation that are shown: its last ones."""
MAX_ALIKE = 8
"""Maximum number of turns with the same history or cache key that are tried for a join."""
FORM = "form"
"""The value of `replay_of` in turns of the page's form. Such a turn is grouped like any other."""

Mark: TypeAlias = tuple[str, str, str | bytes]
"""Something that joins turns: the key, the kind of name, and the name."""


class ConversationTurn(msgspec.Struct, frozen=True, array_like=True):
    """A turn of a conversation."""

    row: TurnRow
    prompt: TurnPrompt


def group_turns(members: Iterable[ConversationTurn]) -> list[list[ConversationTurn]]:
    """The conversations, each in chronological order; the one with the latest turn first."""
    turns = [each for each in members if each.row.replay_of in ("", FORM)]
    turns.sort(key=lambda each: each.row.at)
    groups = _Groups(turns)
    for index, turn in enumerate(turns):
        groups.add(index, turn)
    members_by_root: defaultdict[int, list[ConversationTurn]] = defaultdict(list)
    for index, turn in enumerate(turns):
        members_by_root[groups.find_root(index)].append(turn)
    return sorted(members_by_root.values(), key=lambda each: -each[-1].row.at)


class _Groups:
    """Sets of turns that are joined one by one (union-find). Each set has the kinds of names of its turns."""

    def __init__(self, turns: Sequence[ConversationTurn]) -> None:
        self._parents = list(range(len(turns)))
        self._kinds: list[set[str]] = [{*each.prompt.names} for each in turns]
        self._known: defaultdict[Mark, list[int]] = defaultdict(list)

    def add(self, index: int, turn: ConversationTurn) -> None:
        """Join a turn with earlier ones."""
        key, prompt = turn.row.key, turn.prompt
        names = [(key, kind, name) for kind, name in prompt.names.items()]
        for mark in (*names, (key, "response", prompt.previous)):
            for other in self._known.get(mark, ())[-1:]:
                self._join(index, other)
        cached = [(key, "cache", prompt.cache_key)] if prompt.cache_key else []
        # The digest of the whole history, of all but its last entry, and so on. An equal whole history joins no turns:
        # many conversations begin with "Hi".
        digests, step = prompt.prefixes, PREFIX_SIZE
        prefixes = ((key, "history", digests[end - step : end]) for end in range(len(digests), 0, -step))
        whole = [*islice(prefixes, 1)]
        self._join_first(index, cached)
        self._join_first(index, prefixes)
        for mark in (*names, *cached, *whole, (key, "response", f"resp_{turn.row.id}")):
            self._known[mark].append(index)

    def find_root(self, index: int) -> int:
        parents = self._parents
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    def _join(self, one: int, other: int) -> None:
        one, other = self.find_root(one), self.find_root(other)
        if one != other:
            self._parents[one] = other
            self._kinds[other] |= self._kinds[one]

    def _join_first(self, index: int, marks: Iterable[Mark]) -> None:
        """Join a turn with the latest one that has one of these marks and belongs to no other session."""
        for mark in marks:
            for other in islice(reversed(self._known.get(mark, ())), MAX_ALIKE):
                one, root = self.find_root(index), self.find_root(other)
                # Turns that name the same session are joined already, so two that are not name different ones.
                if one == root or not self._kinds[one] & self._kinds[root]:
                    self._join(index, other)
                    return


def summarize(members: Sequence[ConversationTurn]) -> dict[str, object]:
    """A conversation as a row of the list."""
    first, last = members[0], members[-1]
    turns = [each for each in members if not each.prompt.side] or members
    return {
        "id": first.row.id,
        "title": next((each.prompt.title for each in turns if each.prompt.title != NO_TEXT), NO_TEXT),
        "began": first.row.at,
        "ended": last.row.at,
        "turns": len(turns),
        "side_requests": len(members) - len(turns),
        "key": first.row.key,
        "client": last.row.client,
        "models": sorted({each.row.model for each in members}),
        "calls": sum(each.row.call_count for each in members),
        "input": sum(each.row.input for each in members),
        "output": sum(each.row.output for each in members),
        "errors": sum(each.row.failed for each in members),
    }


def make_version(members: Sequence[ConversationTurn]) -> str:
    """A text that changes with every turn that is added, dropped or changed."""
    rows = "".join(f"{each.row.id} {each.row.seq}\n" for each in members)
    return hashlib.blake2b(rows.encode(), digest_size=8).hexdigest()


def make_timeline(members: Sequence[ConversationTurn]) -> list[dict[str, Any]]:
    """The last turns of a conversation, each with its context and excerpts."""
    begin = max(0, len(members) - MAX_SHOWN_TURNS)
    turns = members[begin:]
    excerpts = [unpack_excerpts(each.prompt.excerpts) for each in turns]
    results = _Results(turns, excerpts)
    return [
        {
            "row": msgspec.to_builtins(turn.row),
            "side": turn.prompt.side,
            "asked": _show(excerpt.asked) if excerpt.is_new else None,
            "brought": results.count_new(index),
            "answer": _show(excerpt.answer),
            "reasoning": excerpt.reasoning,
            "calls": [
                {"id": call.id, "name": call.name, "arguments": _show(call.arguments), **results.find(call.id, index)}
                for call in excerpt.calls
            ],
            "more_calls": max(0, excerpt.call_count - len(excerpt.calls)),
            "context": None if turn.prompt.is_partial else turn.prompt.context,
            "added": sum(turn.prompt.context.values()),
            "cache": compare_prompts(turn, members[max(0, begin + index - MAX_COMPARED) : begin + index]),
        }
        for index, (turn, excerpt) in enumerate(zip(turns, excerpts, strict=True))
    ]


class _Results:
    """Finds the turn whose request first carried the result of a call. Later requests repeat it."""

    def __init__(self, turns: Sequence[ConversationTurn], excerpts: Sequence[Excerpts]) -> None:
        self._turns = turns
        self._excerpts = excerpts
        self._by_call: defaultdict[str, dict[int, ResultExcerpt]] = defaultdict(dict)
        for index, each in enumerate(excerpts):
            for result in each.results:
                self._by_call[result.call][index] = result  # the last one, if a model reuses an id

    def find(self, call: str, made: int) -> dict[str, object]:
        """The result of a call, and the first turn with it after the one that made the call."""
        found = self._by_call.get(call, {})
        indexes = list(found)
        at = bisect_right(indexes, made)
        if at == len(indexes):
            return {"result": None}
        row, first = self._turns[indexes[at]].row, found[indexes[at]].content
        contents = (found[index].content for index in indexes[at:])
        content = next((each for each in contents if each.text), first)
        return {"result": _show(content), "result_turn": row.id, "result_at": row.at}

    def count_new(self, index: int) -> int:
        """Count the results that are new in a turn: after the model's last entry, or for calls that had none."""
        calls = {call.id for each in self._excerpts[:index] for call in each.calls}
        results = {each.call for each in self._excerpts[index].results if each.call in calls}
        awaited = sum(1 for call in results if next(iter(self._by_call[call])) == index)
        return max(awaited, self._excerpts[index].new_results)


def _show(excerpt: TextExcerpt) -> dict[str, object]:
    return {"text": excerpt.text, "size": excerpt.size, "cut": len(excerpt.text) < excerpt.size}


def compare_prompts(member: ConversationTurn, earlier: Sequence[ConversationTurn]) -> dict[str, Any] | None:
    """How long a prefix a prompt shares with the most similar earlier one of its kind, and where the cache broke.

    None if there is no earlier one, or if a part of either prompt is unknown.
    """
    own = member.prompt
    candidates = [
        each
        for each in earlier
        if each.row.model == member.row.model and _is_known(each.prompt) and _are_alike(own, each.prompt)
    ]
    if not candidates or not _is_known(own):
        return None

    def compare(other: ConversationTurn) -> tuple[int, bool]:
        """The number of leading segments in common, and whether the other prompt has no more."""
        common = count_common_bytes(own.segments, other.prompt.segments) // SEGMENT.size
        return common, common == len(other.prompt.segments) // SEGMENT.size

    best = max(reversed(candidates), key=compare)
    common, is_all = compare(best)
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


def _are_alike(own: TurnPrompt, other: TurnPrompt) -> bool:
    """Whether two prompts are for the same purpose. A subagent's begins with other words than its session's."""
    return own.side == other.side and (own.title == other.title or NO_TEXT in (own.title, other.title))


def _is_known(prompt: TurnPrompt) -> bool:
    return bool(prompt.segments) and not prompt.is_partial


def locate_difference(own: Sequence[str], other: Sequence[str]) -> dict[str, Any]:
    """The first byte at which two segments differ, and the text there. A segment is its section, name and text."""
    now, was = own[2].encode(), other[2].encode()
    at = count_common_bytes(now, was)
    begin, end = max(0, at - 40), at + 80
    return {
        "part": other[0],
        "label": other[1][:MAX_NAME_LENGTH],
        "at": at,
        "now": now[begin:end].decode(errors="replace"),
        "was": was[begin:end].decode(errors="replace"),
    }


def count_common_bytes(a: bytes, b: bytes) -> int:
    """The length of the common prefix."""
    same, differs = 0, min(len(a), len(b)) + 1  # this many bytes are equal, this many are not
    while same + 1 < differs:
        middle = (same + differs) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differs = middle
    return same
