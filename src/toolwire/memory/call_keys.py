"""Which earlier call is this? One answer for everything that is kept by call.

A key is equal in every process and after a restart, and says nothing of the whole conversation, which clients trim and
rewrite. Some servers only number the calls of a response, so an id alone is not enough.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

from toolwire.core.cache import Cache
from toolwire.core.request import CallEntry, Entry, Message, TextPart

CallKey: TypeAlias = tuple[str, str, str, str, int]
"""Owner, id, name, the digest of the user message behind which the call stands, and how many calls with the same id and
name stand between them, itself included."""


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_digests = Cache(_digest)  # a request is walked through several times, and the next one says the same again


def digest(text: str) -> str:
    """A short name for a text, the same in every process."""
    return _digests[text]


class CallKeys:
    """Finds the keys of calls on a walk through a conversation. A message is digested when a call behind it is."""

    def __init__(self, owner: str, entries: Sequence[Entry] = ()) -> None:
        self._owner = owner
        self._message: Message | None = None
        self._digest = ""
        self._seen: Counter[tuple[str, str]] = Counter()
        for entry in entries:
            if isinstance(entry, CallEntry):
                self._seen[entry.id, entry.name] += 1
            else:
                self.see(entry)

    def see(self, entry: Entry) -> CallKey | None:
        """The key of an entry, if it is a call."""
        if isinstance(entry, CallEntry):
            return self.key(entry.id, entry.name)
        if isinstance(entry, Message) and entry.role == "user":
            self._message = entry
            self._seen.clear()
        return None

    def key(self, id: str, name: str) -> CallKey:
        """The key of the next call."""
        if self._message is not None:
            parts, self._message = self._message.parts, None
            self._digest = digest("\n".join(part.text for part in parts if isinstance(part, TextPart)))
        self._seen[id, name] += 1
        return self._owner, id, name, self._digest, self._seen[id, name]
