"""Writers that are overtaken while they write. Each function plays one round, and asserts that nothing was doubled.

A check of a guard that is not part of the write lets the old writer in between. The primary key of the events hides
most of that: so the new owner of a run begins late, and every frame says by which epoch it was written.
"""

from typing import Any

from tests.store.examples import ANN, appended, events, held, ids_of, items, joined, queued, record
from tests.store.place import Call, Users, call
from toolwire.memory.store import Append, Conversation, Effects, Follow, Overtaken


def overtaken_append(store: Users, name: str) -> None:
    """A process appends to a run while another one takes it over."""
    joined(store, f"old-{name}", f"new-{name}")
    old = queued(store, f"run-{name}", f"old-{name}")
    assert appended(store, old, events(0, f"by-{old.epoch}"))
    store.leave(f"old-{name}")
    late = Append(ANN, old, events(1, f"by-{old.epoch}"))
    result, claims = _both(store, name, call("append", [late]), call("claim", f"new-{name}", 1))
    (claimed,) = claims
    assert appended(store, claimed.fence, events(claimed.next_event, f"by-{claimed.fence.epoch}"))
    (answer,) = store.follow([Follow(ANN, old.id, 0)])
    writers = b"".join(chunk.frames for chunk in answer.chunks).decode().split()[1::2]
    expected = [f"by-{old.epoch}"] * claimed.next_event + [f"by-{claimed.fence.epoch}"]
    assert writers == expected, "only the new owner writes behind what it has found"
    assert claimed.next_event == (1 if result.lost else 2), "whoever is told that it is kept finds it kept"


def overtaken_end(store: Users, name: str) -> None:
    """A process ends a run while another one takes it over."""
    joined(store, f"old-{name}", f"new-{name}")
    old = queued(store, f"run-{name}", f"old-{name}")
    store.leave(f"old-{name}")
    end = call("save", ANN, record(old.id, response=b"old"), None, items("out"), guard=old, last=events(0, "end"))
    result, claims = _both(store, name, end, call("claim", f"new-{name}", 1))
    assert isinstance(result, Overtaken) == bool(claims), "one of the two has the run"
    assert store.load(ANN, old.id).status == ("queued" if claims else "completed")


def overtaken_turn(store: Users, name: str) -> None:
    """A process adds to a conversation while another one gets the lease of it, and reads what is there."""
    joined(store, f"old-{name}", f"new-{name}")
    store.put_conversation(ANN, Conversation(f"conv-{name}", 1.0, b"{}"))
    old = held(store, f"lease-{name}", f"old-{name}")

    async def take_over(user: Any) -> Any:
        await user.leave(f"old-{name}")
        assert await user.take_lease(f"lease-{name}", f"new-{name}") is not None
        return await user.load_input(ANN, f"conv-{name}")

    saved = record(f"r-{name}", conversation=f"conv-{name}")
    effects = Effects(conversation=f"conv-{name}")
    late = call("save", ANN, saved, items("a"), items("b"), effects, guard=old)
    result, seen = _both(store, name, late, take_over)
    assert isinstance(seen, list), seen
    assert ids_of(store.load_input(ANN, f"conv-{name}")) == ids_of(seen), "nothing comes in between"
    assert isinstance(result, Overtaken) or seen, "whoever is told that it is kept finds it kept"


def _both(store: Users, name: str, old: Call, new: Call) -> list[Any]:
    """What came of two calls that are made together; every other time the second one begins."""
    return store.at_once(old, new) if int(name) % 2 else store.at_once(new, old)[::-1]


RACES = (overtaken_append, overtaken_end, overtaken_turn)
