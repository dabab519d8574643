"""Requests: a body of one dialect converted to another, and the way back for the reply.

A server supports less than a request may contain, so names, ids, kinds and schemas change (`adapt/lowering.py`). A
`ConvertedRequest` knows these changes, and restores the client's forms in the reply.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Unpack

import msgspec

from toolwire.adapt.lowering import replace_searches
from toolwire.assembly import adapt_request, make_dialect_error
from toolwire.core.backend import Post
from toolwire.core.collect import Turn
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import Dialect, Note
from toolwire.core.request import CallEntry, Entry, Request
from toolwire.library.bodies import Body, as_bytes, decode_body, translate_body
from toolwire.library.options import ConvertOptions, EncodeOptions, check_options, make_rules
from toolwire.library.reply import ReplyPlan, check_dialect, find_server, make_profile
from toolwire.library.streams import StreamDecoder, Translator, translate
from toolwire.protocols import dialects


class ConvertedRequest:
    """A request converted for a server of another dialect; reads the reply of that server."""

    def __init__(
        self, source: Dialect, plan: ReplyPlan, post: Post, names: Mapping[str, str], ids: Mapping[str, str]
    ) -> None:
        self.source: Dialect = source
        """The dialect of the client."""
        self.target: Dialect = plan.kind
        """The dialect of the server."""
        self.path: str = post.path
        """The path below the base URL of the server."""
        self.headers: Mapping[str, str] = post.headers
        """The headers that the server needs, without the key."""
        self.body: bytes = post.body
        """The body for the server."""
        self.model: str = plan.request.model
        """The name of the model in the original body."""
        self.stream: bool = plan.request.stream
        """Whether the client asked for a stream."""
        self.notes: tuple[Note, ...] = (*plan.request.notes, *plan.notes)
        """What was dropped or changed."""
        self.names: Mapping[str, str] = names
        """The original names of renamed tools, by their names on the server."""
        self.ids: Mapping[str, str] = ids
        """The original ids of calls in the history, by their ids on the server."""
        self.plan: ReplyPlan = plan
        """How the reply is read. Its content may change in any version."""

    def decoder(self) -> StreamDecoder:
        """A decoder of the server's stream; its events have the original names, ids and kinds."""
        return StreamDecoder(self.target, answers=self)

    def decode_body(self, body: Body) -> Turn:
        """Decode the server's plain reply; the turn has the original names, ids and kinds."""
        return decode_body(self.target, body, answers=self)

    def translator(self, **options: Unpack[EncodeOptions]) -> Translator:
        """A translator of the server's stream to the client's dialect."""
        return Translator(self.target, self.source, **options, answers=self)

    def translate(self, chunks: Iterable[bytes], **options: Unpack[EncodeOptions]) -> Iterator[bytes]:
        """Translate the server's stream to the client's dialect."""
        return translate(self.target, self.source, chunks, **options, answers=self)

    def translate_body(self, body: Body, **options: Unpack[EncodeOptions]) -> bytes:
        """Translate the server's plain reply to the client's dialect."""
        return translate_body(self.target, self.source, body, **options, answers=self)

    def failure(self, status: int, body: Body, headers: Mapping[str, str] | None = None) -> Failure:
        """The failure that a reply with an error status reports; `encode_error` encodes it for the client.

        The names of headers are case-insensitive.
        """
        named = {name.lower(): value for name, value in (headers or {}).items()}
        return self.plan.make_conversation("").read_error(status, named, as_bytes(body))


def convert_request(
    source: Dialect, target: Dialect, body: Body, **options: Unpack[ConvertOptions]
) -> ConvertedRequest:
    """Convert a request for a server of another dialect, or of the same dialect with other limits.

    Raises `BadRequest`, which names the field, if the body is invalid or cannot be converted.
    """
    check_options(options, ConvertOptions)
    source, target = check_dialect(source), check_dialect(target)
    profile, rules = make_profile(target, options.get("profile", {})), make_rules(options)
    server = find_server(target)
    request = dialects()[source].decode_whole(as_bytes(body))
    request = adapt_request(request, rules, target, server.facts(profile))
    if request.needs_own_dialect and source != target:
        raise make_dialect_error(request.needs_own_dialect)
    if request.choices > 1 and source != target:
        raise BadRequest(f"n must be 1 for a server of another dialect; received {request.choices}.", "n")
    model = options.get("model") or request.model
    if not model:
        raise BadRequest("model: This field is required.", "model", "missing_required_parameter")
    conversation = server.converse(msgspec.structs.replace(request, model=model), "", profile)
    names, ids = conversation.restore.original_names, _find_changed_ids(request, conversation.lowered)
    post = conversation.start()
    assert isinstance(post, Post)
    plan = ReplyPlan(target, request, profile, rules, options.get("text_calls"), model, conversation.notes)
    return ConvertedRequest(source, plan, post, names, ids)


def _find_changed_ids(request: Request, lowered: Request) -> dict[str, str]:
    """The original ids of calls by their new ids: lowering neither reorders nor drops calls."""

    def list_ids(entries: Sequence[Entry]) -> list[str]:
        return [entry.id for entry in entries if isinstance(entry, CallEntry)]

    before, after = list_ids(request.entries), list_ids(lowered.entries)
    if len(before) != len(after):
        before = list_ids(replace_searches(request.entries))
    return {now: then for then, now in zip(before, after, strict=True) if now != then}
