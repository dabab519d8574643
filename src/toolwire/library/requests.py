"""Requests: a body of one dialect as that of another, and the way back for the reply.

A server supports less than a request may hold, so names, ids, kinds and schemas change on the way; `adapt/lowering.py`
does that. A `ConvertedRequest` knows what has changed, and reads the reply in the words of whoever asked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Unpack

import msgspec

from toolwire.adapt.lowering import replace_searches
from toolwire.assembly import request_for_backend
from toolwire.core.backend import Post
from toolwire.core.collect import Turn
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import Dialect, Note
from toolwire.core.request import CallEntry, Entry, Request
from toolwire.library.bodies import Body, as_bytes, decode_body, translate_body
from toolwire.library.options import ConvertOptions, EncodeOptions, check_options, rules_of
from toolwire.library.reply import ReplyPlan, checked_dialect, profile_of, server_of
from toolwire.library.streams import StreamDecoder, Translator, translate
from toolwire.protocols import dialects


class ConvertedRequest:
    """A request as a server of another dialect takes it, and how its reply is read."""

    def __init__(
        self, source: Dialect, plan: ReplyPlan, post: Post, names: Mapping[str, str], ids: Mapping[str, str]
    ) -> None:
        self.source: Dialect = source
        """The dialect of whoever asked."""
        self.target: Dialect = plan.kind
        """The dialect of the server."""
        self.path: str = post.path
        """What follows the base URL of the server."""
        self.headers: Mapping[str, str] = post.headers
        """What the server needs beside the key, which is not known here."""
        self.body: bytes = post.body
        """The body for the server."""
        self.model: str = plan.request.model
        """The model's name in the original body."""
        self.stream: bool = plan.request.stream
        """Whether a stream was asked for."""
        self.notes: tuple[Note, ...] = (*plan.request.notes, *plan.notes)
        """What could not be carried over, or had to change."""
        self.names: Mapping[str, str] = names
        """Names of tools that the server knows by another name: from the name there to the original one."""
        self.ids: Mapping[str, str] = ids
        """Ids of calls in the history that the server knows by another id: from the id there to the original one."""
        self.plan: ReplyPlan = plan
        """How the reply is read. What it holds may change with any version."""

    def decoder(self) -> StreamDecoder:
        """What reads the server's stream: turn events with the original names, ids and kinds."""
        return StreamDecoder(self.target, answers=self)

    def decode_body(self, body: Body) -> Turn:
        """The turn in the server's plain answer, with the original names, ids and kinds."""
        return decode_body(self.target, body, answers=self)

    def translator(self, **options: Unpack[EncodeOptions]) -> Translator:
        """What turns the server's stream into the one that was asked for."""
        return Translator(self.target, self.source, **options, answers=self)

    def translate(self, chunks: Iterable[bytes], **options: Unpack[EncodeOptions]) -> Iterator[bytes]:
        """The server's stream as the one that was asked for."""
        return translate(self.target, self.source, chunks, **options, answers=self)

    def translate_body(self, body: Body, **options: Unpack[EncodeOptions]) -> bytes:
        """The server's plain answer as the one that was asked for."""
        return translate_body(self.target, self.source, body, **options, answers=self)

    def failure(self, status: int, body: Body, headers: Mapping[str, str] | None = None) -> Failure:
        """What an answer with an error status means; `encode_error` writes it for whoever asked.

        The names of headers may be in any case.
        """
        named = {name.lower(): value for name, value in (headers or {}).items()}
        return self.plan.conversation("").read_error(status, named, as_bytes(body))


def convert_request(
    source: Dialect, target: Dialect, body: Body, **options: Unpack[ConvertOptions]
) -> ConvertedRequest:
    """A request of one dialect for a server of another, or of the same with other limits.

    Raises `BadRequest`, which names the field, if the body is not valid or cannot be carried over.
    """
    check_options(options, ConvertOptions)
    source, target = checked_dialect(source), checked_dialect(target)
    profile, rules = profile_of(target, options.get("profile", {})), rules_of(options)
    server = server_of(target)
    request = dialects()[source].decode_whole(as_bytes(body))
    request = request_for_backend(request, rules, target, server.facts(profile))
    if request.choices > 1 and source != target:
        raise BadRequest(f"n must be 1 for a server of another dialect; received {request.choices}.", "n")
    model = options.get("model") or request.model
    conversation = server.converse(msgspec.structs.replace(request, model=model), "", profile)
    names, ids = conversation.restore.original_names, _changed_ids(request, conversation.lowered)
    post = conversation.start()
    assert isinstance(post, Post)
    plan = ReplyPlan(target, request, profile, rules, options.get("text_calls"), model, conversation.notes)
    return ConvertedRequest(source, plan, post, names, ids)


def _calls(entries: Sequence[Entry]) -> list[CallEntry]:
    return [entry for entry in entries if isinstance(entry, CallEntry)]


def _changed_ids(request: Request, lowered: Request) -> dict[str, str]:
    """The ids of calls that have changed: lowering changes no order, and drops no call."""
    before, after = _calls(request.entries), _calls(lowered.entries)
    if len(before) != len(after):
        before = _calls(replace_searches(request.entries))
    return {now.id: then.id for then, now in zip(before, after, strict=True) if now.id != then.id}
