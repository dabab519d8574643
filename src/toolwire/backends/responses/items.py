"""Items of the history as their client wrote them, with the names and ids that fit."""

import msgspec

from toolwire.core.request import CallEntry, Entry, Request, ResultEntry

_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def with_items(request: Request, lower: Request) -> Request:
    """The lowered request, each changed entry with its own item changed alike."""
    if lower.entries is request.entries:
        return lower
    pairs = zip(request.entries, lower.entries, strict=True)
    return msgspec.structs.replace(lower, entries=tuple(_with_item(entry, new) for entry, new in pairs))


def _with_item(entry: Entry, new: Entry) -> Entry:
    if new is entry or entry.raw is None or not isinstance(new, CallEntry | ResultEntry):
        return new
    changed = {"call_id": new.id, "name": new.name} if isinstance(new, CallEntry) else {"call_id": new.call_id}
    raw = msgspec.Raw(msgspec.json.encode({**_raw_fields(entry.raw), **changed}))
    return msgspec.structs.replace(new, raw=raw)
