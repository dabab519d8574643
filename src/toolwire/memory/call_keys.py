"""Keys of calls, for everything that is stored by call.

A key is the same in every process and after a restart. It does not depend on the whole conversation, because clients
trim and rewrite it. An id alone is not enough: some servers only number the calls of a response.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

from toolwire.core.cache import Cache
from toolwire.core.request import CallEntry, Entry, Message, TextPart

CallKey: TypeAlias = tuple[str, str, str, str, int]
"""Owner, id, name, digest of the last user message before the call, and the number of calls with this id and name since
that message, including this one."""


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_digests = Cache(_digest)  # a request is walked several times, and the next one repeats its messages


def digest(text: str) -> str:
    """A digest of a text, the same in every process."""
    return _digests[text]


class CallKeys:
    """Computes keys while walking through a conversation. A message is digested only if a call follows it."""

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
        """Visit an entry; returns its key if it is a call."""
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
