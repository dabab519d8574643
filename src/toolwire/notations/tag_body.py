"""Reads calls written as tags incrementally: `<name>search</name><q>x</q>` and similar forms.

A value that can only be a string is streamed; any other waits for its end, which decides its type.
"""

from collections.abc import Sequence

from toolwire.notations.draft import Draft
from toolwire.notations.source import MAX_UNIT_CHARS, Malformed, ReadSteps, Source
from toolwire.notations.table import JS_SPACE, Tags
from toolwire.notations.values import LITERAL, STRING, Types, escape, is_text

_STATED: dict[str | None, Types | None] = {None: None, "true": STRING, "false": LITERAL}


def read_tags(source: Source, draft: Draft, kinds: Sequence[Tags], close: str) -> ReadSteps:
    """Read up to the closing tag, which stays unread. The first tag decides between the kinds."""
    while True:
        if (yield from source.peek_char()) != "<":
            raise Malformed("text between tags")
        tag = "".join((yield from source.read_until(">")))
        if tag == close:
            source.step_back(tag)
            break
        kinds = [each for each in kinds if each.matches(tag)]
        if not kinds:
            raise Malformed("unknown tag")
        tags = kinds[0]
        named = tags.name.fullmatch(tag) if tags.name is not None and not draft.name else None
        opened = tags.parameter.fullmatch(tag)
        if named:
            name = (yield from source.read_until(tags.name_close))[0] if tags.name_close else named[1]
            draft.settle_name(name)
        elif opened:
            key = opened[1]
            if tags.key_close:
                key = (yield from source.read_until(tags.key_close))[0].strip(JS_SPACE)
                yield from source.peek_char()
                yield from source.read_one_of((tags.value_open,))
            stated = opened[2] if tags.parameter.groups > 1 else None
            yield from _read_parameter(source, draft, key, _STATED[stated], _Ends(tags, key, close))
        kinds = kinds[:1]
    draft.close_parameters()


class _Ends:
    """The markers that end a value, and the white space to trim."""

    def __init__(self, tags: Tags, parameter: str, close: str) -> None:
        self._all_space = tags.trim == "space"
        self.parameter = tags.parameter_close.format(parameter)
        self.block = close

    def trim_start(self, value: str) -> str:
        if self._all_space:
            return value.lstrip(JS_SPACE)
        return value.removeprefix("\r\n") if value.startswith("\r\n") else value.removeprefix("\n")

    def trim_end(self, value: str) -> str:
        if self._all_space:
            return value.rstrip(JS_SPACE)
        return value.removesuffix("\r\n") if value.endswith("\r\n") else value.removesuffix("\n")

    def check(self, ending: str) -> None:
        """Raise `Malformed` if the block ended inside the value."""
        if ending != self.parameter:
            raise Malformed("a value without end")


def _read_parameter(source: Source, draft: Draft, parameter: str, stated: Types | None, ends: _Ends) -> ReadSteps:
    types = draft.types_of(parameter) if stated is None and draft.name else stated
    if draft.name and types is not None and is_text(types):
        draft.open_parameter(parameter)
        draft.pieces.append('"')
        yield from _stream_string(source, draft, ends)
        draft.pieces.append('"')
        return
    pieces: list[str] = []
    size, ending = 0, ""
    while not ending:
        piece, ending = source.read_piece(ends.parameter, ends.block)
        pieces.append(piece)
        size += len(piece)
        if not ending:
            if size > MAX_UNIT_CHARS:
                raise Malformed("too long")
            yield
    ends.check(ending)
    draft.put(parameter, ends.trim_end(ends.trim_start("".join(pieces))), types)


def _stream_string(source: Source, draft: Draft, ends: _Ends) -> ReadSteps:
    """Stream a string value; only a possible end marker and the white space before it are held back."""
    waiting: list[str] = []
    size = 0
    begun = False
    while True:
        piece, ending = source.read_piece(ends.parameter, ends.block)
        if not ending and not piece.strip(JS_SPACE):
            waiting.append(piece)
            size += len(piece)
            if size > MAX_UNIT_CHARS:
                raise Malformed("a value of nothing but space")
            yield
            continue
        piece = "".join((*waiting, piece))
        if not begun:
            piece = ends.trim_start(piece)
            begun = True
        if ending:
            draft.pieces.append(escape(ends.trim_end(piece)))
            ends.check(ending)
            return
        kept = piece.rstrip(JS_SPACE)
        waiting = [piece[len(kept) :]]
        size = len(waiting[0])
        draft.pieces.append(escape(kept))
        yield
