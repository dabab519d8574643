"""Whether a writer still has what it was granted, and which members are alive.

Asked inside the transaction that writes, so that nobody can take it away in between.
"""

import sqlite3

from toolwire.memory.store import Fence, Guard, Overtaken

ALIVE = "boot = :boot AND beat <= :now AND beat + lease >= :now"
"""A member that beats in time. Times are those of one start of the machine: a file outlives it, its members do not."""

JUDGE = f"SELECT since FROM members WHERE id = :id AND {ALIVE} AND beat + lease / 2 >= :now"
"""Since when a member has beaten without missing a beat: until now everybody could use the file. No row if it has not.

A beat begins this time anew if the one before it is more than half a lease old: members beat four times in a lease.
"""

DEAD = "boot = :boot AND beat <= :now AND beat + lease < :now AND :since + lease <= :now"
"""A member that did not beat for a lease although it could have."""

STRANGERS = "SELECT id, boot, beat, lease FROM members WHERE boot != :boot OR beat > :now"
"""Members whose times cannot be compared: of an earlier start of the machine, or of a system that shares the file.

They are dead when their beat has stayed the same for a lease, by the clock of the one who looks.
"""


def check_guard(database: sqlite3.Connection, guard: Guard) -> None:
    """Raise if somebody else has it by now."""
    if isinstance(guard, Fence):
        held = run_epoch(database, guard.id) == guard.epoch
    else:
        query = "SELECT 1 FROM leases WHERE name = ? AND member = ? AND epoch = ?"
        held = database.execute(query, (guard.name, guard.member, guard.epoch)).fetchone() is not None
    if not held:
        raise Overtaken(guard)


def run_epoch(database: sqlite3.Connection, id: str) -> int | None:
    """The epoch of a run, which its writer's fence must have; None if there is no such run."""
    row = database.execute("SELECT epoch FROM runs WHERE id = ?", (id,)).fetchone()
    return row[0] if row is not None else None
