"""The calls of a turn: each is delivered once, in the model's order, when it is known to wait for the client.

A call comes twice, in any order: as the model's own item, and as a request that needs an answer. App-server sends no
request for a call that it answers by itself. Without raw items a request alone is enough.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence

import msgspec

from toolwire.backends.codex.protocol import Params, ThreadItem
from toolwire.core.call_index import Fragment
from toolwire.core.calls import CallTable
from toolwire.core.events import CallStarted, Event, Note
from toolwire.core.jsonrpc import Id
from toolwire.core.raw import arguments_text
from toolwire.core.request import CallEntry
from toolwire.core.text import is_json, is_same_json


class _Call(msgspec.Struct, eq=False):
    """One call of the model."""

    fragment: Fragment
    waits: bool = True
    """It waits for the client; app-server answers the others itself."""
    requests: list[Id] = []
    is_passed: bool = False
    """Later calls need not wait for it."""
    id: str = ""
    """Set once it is delivered."""


class _SameId(msgspec.Struct, eq=False):
    """The calls with one id, which servers may reuse."""

    items: set[str] = set()
    """The ids of their items; "" for one that came as a request only."""
    unrequested: deque[_Call] = msgspec.field(default_factory=deque[_Call])
    undelivered: deque[_Call] = msgspec.field(default_factory=deque[_Call])
    latest: _Call | None = None
    is_delivered: bool = False


class TurnCalls:
    """The calls of one turn."""

    def __init__(self, table: CallTable, names: Collection[str]) -> None:
        self._table = table
        self._names = frozenset(names)
        self._rows: list[_Call] = []
        self._passed = 0  # number of leading rows that are delivered or do not wait
        self._by_id: defaultdict[str, _SameId] = defaultdict(_SameId)
        self._early: dict[str, deque[_Call]] = {}  # requested calls without an item yet, by id
        self._is_requested = False
        self._complete = False
        self.is_raw = False
        self.has_delivered = False
        """A call was delivered."""
        self.share_an_id = False
        """Two calls have the same id: app-server mixes up their results."""

    @property
    def calls(self) -> tuple[CallEntry, ...]:
        """The delivered calls."""
        return tuple(
            CallEntry(row.id, row.fragment.name, row.fragment.text, namespace=row.fragment.namespace)
            for row in self._rows
            if row.id
        )

    @property
    def requests(self) -> dict[str, tuple[Id, ...]]:
        """The requests that wait for results, by call."""
        return {row.id: tuple(row.requests) for row in self._rows if row.id}

    @property
    def has_all_calls(self) -> bool:
        """The response is over, calls wait, and all of them were delivered."""
        return self._complete and self.has_delivered and self._passed == len(self._rows)

    def add_item(self, item: ThreadItem) -> Sequence[Event]:
        """The model's item for a call."""
        self._complete = False
        fragment = _make_fragment(item.call_id, item.name, item.namespace, item.arguments, item.id or "")
        same = self._by_id[fragment.id]
        if fragment.item and (fragment.item in same.items or "" in same.items):
            return ()  # it is known already, perhaps from its request
        requested = self._early.get(fragment.id)  # before the item came
        early = requested.popleft() if requested else None
        waits = early is not None or (fragment.name in self._names and is_json(fragment.text))
        self._add(_Call(fragment, waits, early.requests if early is not None else []))
        return self._deliver_next()

    def add_request(self, id: Id, params: Params) -> Sequence[Event]:
        """App-server's request for a call's result."""
        self._is_requested = True
        call = params.call_id or ""
        fragment = _make_fragment(call, params.tool, params.namespace, params.arguments)
        row = self._find_requested(fragment)
        if row is not None:
            row.waits = True
            row.requests.append(id)
            late = self._deliver(row) if row.is_passed and not row.id else ()
            return [*late, *self._deliver_next()]
        row = _Call(fragment, requests=[id])
        if self.is_raw and not self._complete:
            self._early.setdefault(call, deque()).append(row)
        else:
            self._add(row)
        return self._deliver_next()

    def _find_requested(self, fragment: Fragment) -> _Call | None:
        """The call that a request belongs to, if it is known.

        Items tell how many calls there are. Without them every request is a call, even if its id was used before.
        """
        same = self._by_id[fragment.id]
        if same.unrequested:
            return same.unrequested.popleft()
        if not self.is_raw:
            return None
        early = self._early.get(fragment.id)
        latest = early[-1] if early else same.latest
        if latest is None:
            return None
        known = latest.fragment
        is_same = (known.name, known.namespace) == (fragment.name, fragment.namespace)
        return latest if is_same and is_same_json(known.text or "{}", fragment.text or "{}") else None

    def add_result(self, call: str) -> Sequence[Event] | None:
        """App-server has a result for a call. If the call is undelivered, later calls need not wait for its request."""
        undelivered = self._by_id[call].undelivered
        while undelivered and undelivered[0].id:
            undelivered.popleft()
        if not undelivered:
            return None
        undelivered[0].waits = False
        return [Note("call_refused", call), *self._deliver_next()]

    def complete(self) -> Sequence[Event]:
        """The response is over: no more items follow."""
        self._complete = True
        return self._add_early()

    def give_up(self, *, long: bool) -> Sequence[Event]:
        """After a silence, the requested calls count as all of them, unless the response is known to continue.

        After a `long` silence it counts as over: app-server reports a broken stream only when its calls are answered.
        """
        if self.is_raw and not self._complete and not long:
            return ()
        self._complete = self._complete or self._is_requested
        for row in self._rows[self._passed :]:
            row.waits = row.waits and bool(row.requests)
        return [*self._deliver_next(), *self._add_early()]

    def _add_early(self) -> Sequence[Event]:
        """Add requested calls whose items will no longer come."""
        early, self._early = self._early, {}
        for row in (row for rows in early.values() for row in rows):
            self._add(row)
        return self._deliver_next()

    def _add(self, row: _Call) -> None:
        self._rows.append(row)
        same = self._by_id[row.fragment.id]
        same.items.add(row.fragment.item)
        same.latest = row
        same.undelivered.append(row)
        if not row.requests:
            same.unrequested.append(row)

    def _deliver_next(self) -> list[Event]:
        """Deliver the calls up to the first that still waits for its request."""
        out: list[Event] = []
        while self._passed < len(self._rows):
            row = self._rows[self._passed]
            if row.waits and not row.requests:
                break
            if row.waits:
                out += self._deliver(row)
            row.is_passed = True
            self._passed += 1
        return out

    def _deliver(self, row: _Call) -> Sequence[Event]:
        events = self._table.feed(msgspec.structs.replace(row.fragment, list_position=2 if self.has_delivered else 1))
        row.id = next((event.id for event in events if isinstance(event, CallStarted)), row.fragment.id)
        same = self._by_id[row.fragment.id]
        self.has_delivered = True
        self.share_an_id = self.share_an_id or same.is_delivered
        same.is_delivered = True
        return events


def _make_fragment(
    id: str | None, name: str | None, namespace: str | None, arguments: msgspec.Raw | msgspec.UnsetType, item: str = ""
) -> Fragment:
    """A call that came whole."""
    text, name, namespace = arguments_text(arguments), name or "", namespace or ""
    return Fragment(text, item, id or "", name=name, namespace=namespace, total=True, named=True, ended=True)
