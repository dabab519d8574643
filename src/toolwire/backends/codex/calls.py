"""The calls of a turn: each is told once, in the model's order, when it is known to wait for the client.

A call comes twice, in any order: as the model's own item, and as a request that wants an answer. App-server sends no
request for a call that it answers by itself. Where there are no raw items a request alone is enough.
"""

from collections.abc import Collection, Sequence

import msgspec

from toolwire.backends.codex.wire import Item, Params
from toolwire.core.events import CallStarted, Event, Note
from toolwire.core.identity import CallTable, Fragment
from toolwire.core.jsonrpc import Id
from toolwire.core.request import CallEntry
from toolwire.core.text import arguments_text, is_json


class _Call:
    """One call of the model."""

    def __init__(self, fragment: Fragment, *, waits: bool = True) -> None:
        self.fragment = fragment
        self.waits = waits  # for the client; the others are app-server's own affair
        self.requests: list[Id] = []
        self.id = ""  # once it is told


class Calls:
    """The calls of one turn."""

    def __init__(self, table: CallTable, names: Collection[str]) -> None:
        self._table = table
        self._names = frozenset(names)
        self._rows: list[_Call] = []
        self._early: list[_Call] = []  # asked for, and no item yet
        self._complete = False
        self.is_raw = False

    @property
    def calls(self) -> tuple[CallEntry, ...]:
        """Those that were told."""
        return tuple(
            CallEntry(row.id, row.fragment.name, row.fragment.text, namespace=row.fragment.namespace)
            for row in self._rows
            if row.id
        )

    @property
    def asked(self) -> dict[str, tuple[Id, ...]]:
        """The requests that wait for results, by call."""
        return {row.id: tuple(row.requests) for row in self._rows if row.id}

    @property
    def are_mixed_up(self) -> bool:
        """Two calls have one id: app-server gives the result of the one to the other."""
        ids = [row.fragment.id for row in self._rows if row.id]
        return len(set(ids)) < len(ids)

    @property
    def are_all_here(self) -> bool:
        """The response is over, and calls wait, of which each was told."""
        waiting = [row for row in self._rows if row.waits]
        return self._complete and bool(waiting) and all(row.id for row in waiting)

    def tell(self, item: Item) -> Sequence[Event]:
        """The model's item for a call."""
        self._complete = False
        text = arguments_text(item.arguments)
        name, id = item.name or "", item.call_id or ""
        fragment = Fragment(
            text, item.id or "", id, name=name, namespace=item.namespace or "", total=True, named=True, ended=True
        )
        same = [row.fragment.item for row in self._rows if row.fragment.id == id]
        if fragment.item and (fragment.item in same or "" in same):
            return ()  # it was told already, perhaps because it was asked for
        early = next((row for row in self._early if row.fragment.id == id), None)
        if early is None and (name not in self._names or not is_json(text)):
            self._rows.append(_Call(fragment, waits=False))
            return ()
        row = _Call(msgspec.structs.replace(fragment, reused=True) if same else fragment)
        if early is not None:
            self._early.remove(early)
            row.requests = early.requests
        self._rows.append(row)
        return self._told()

    def ask(self, id: Id, params: Params) -> Sequence[Event]:
        """App-server's request for a call's result."""
        call = params.call_id or ""
        same = [row for row in (*self._rows, *self._early) if row.fragment.id == call]
        row = next((row for row in same if not row.requests), same[-1] if same else None)
        if row is not None:
            row.waits = True
            row.requests.append(id)
            return self._told()
        text = arguments_text(params.arguments)
        fragment = Fragment(
            text, id=call, name=params.tool or "", namespace=params.namespace or "", total=True, named=True, ended=True
        )
        row = _Call(fragment)
        row.requests.append(id)
        (self._early if self.is_raw and not self._complete else self._rows).append(row)
        return self._told()

    def answer(self, call: str) -> Sequence[Event] | None:
        """App-server has a result. If it is for a call that was not asked for, the others need not wait for that."""
        row = next((row for row in self._rows if row.fragment.id == call and not row.id), None)
        if row is None:
            return None
        row.waits = False
        return [Note("call_refused", call), *self._told()]

    def complete(self) -> Sequence[Event]:
        """The response is over: no more items of it come."""
        self._complete = True
        return self._without_items()

    def give_up(self, *, long: bool) -> Sequence[Event]:
        """Nothing has come for a while: what was asked for is all there is, unless the response is known to go on.

        After a long while it is not: app-server tells of a stream that broke only when its calls are answered.
        """
        if self.is_raw and not self._complete and not long:
            return ()
        self._complete = self._complete or any(row.requests for row in (*self._rows, *self._early))
        for row in self._rows:
            row.waits = row.waits and bool(row.requests)
        return [*self._told(), *self._without_items()]

    def _without_items(self) -> Sequence[Event]:
        early, self._early = self._early, []
        self._rows += early
        return self._told()

    def _told(self) -> list[Event]:
        """Tell every call whose turn it is."""
        out: list[Event] = []
        for row in self._rows:
            if row.id or not row.waits:
                continue
            if not row.requests:
                break
            events = self._table.feed(row.fragment)
            row.id = next((event.id for event in events if isinstance(event, CallStarted)), row.fragment.id)
            out += events
        return out
