"""The rules about turns on captured data, for other programs and their tests: bytes in, findings out."""

from collections.abc import Iterable
from typing import Any

from toolwire.check.turns.loose import as_object, parse_json
from toolwire.check.turns.rule import Finding, RequestFacts, request_facts
from toolwire.check.turns.streams import StreamCheck, check_plain
from toolwire.core.events import Dialect
from toolwire.library.bodies import Body, as_bytes
from toolwire.library.reply import checked_chunk, checked_chunks, checked_dialect


def check_stream(dialect: Dialect, chunks: Iterable[bytes], request: Body | None = None) -> list[Finding]:
    """What is wrong with a stream, by the rules that a stream can break. With the request more of them apply."""
    check = StreamCheck(_facts(dialect, request))
    for chunk in checked_chunks(chunks):
        check.feed(checked_chunk(chunk))
    return [*check.end()]


def check_body(dialect: Dialect, body: Body, request: Body | None = None) -> list[Finding]:
    """What is wrong with an answer that is not streamed. With the request more rules apply."""
    found, _ = check_plain(as_bytes(body), _facts(dialect, request))
    return found


def _facts(dialect: Dialect, request: Body | None) -> RequestFacts:
    fields: Any = parse_json(as_bytes(request)) if request is not None else {}
    if not isinstance(fields, dict):
        raise ValueError("request: the body of a request is needed, which is a JSON object")  # noqa: TRY004 - as for any value
    return request_facts(checked_dialect(dialect), as_object(fields))
