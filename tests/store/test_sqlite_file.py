"""One SQLite file for many processes: it is made once, brought to this version once, and its log stays small."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.store.examples import (
    ANN,
    BEN,
    appended,
    events,
    find_member,
    ids_of,
    item,
    items,
    joined,
    put,
    queued,
    record,
)
from tests.store.place import DAY, LONG, PLENTY, Loop, Users, call, wait_until
from tests.store.processes import Process
from tests.support import processes
from toolwire.memory.sqlite import SqliteStore, engine
from toolwire.memory.sqlite.schema import VERSION
from toolwire.memory.sqlite.store_file import StoreFile, file_system_of
from toolwire.memory.store import Effects, EventChunk, Follow, Followed, Member, StoreFailed

FIRST_VERSION = """
CREATE TABLE kept (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
    size INTEGER NOT NULL, used REAL NOT NULL, UNIQUE (owner, kind, key)
);
CREATE INDEX kept_by_use ON kept (used);
CREATE INDEX kept_by_owner ON kept (owner, used, size);
CREATE TABLE holders (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    size INTEGER NOT NULL, status TEXT NOT NULL, previous TEXT NOT NULL, conversation TEXT NOT NULL,
    continuation TEXT NOT NULL, fields BLOB NOT NULL, body BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX holders_by_use ON holders (used);
CREATE INDEX holders_by_owner ON holders (owner, used, size);
CREATE TABLE items (
    holder TEXT NOT NULL, place INTEGER NOT NULL, made INTEGER NOT NULL, id TEXT NOT NULL, owner TEXT NOT NULL,
    item BLOB NOT NULL, PRIMARY KEY (holder, made, place)
) WITHOUT ROWID;
CREATE INDEX items_by_id ON items (owner, id);
CREATE TABLE events (
    holder TEXT NOT NULL, first INTEGER NOT NULL, owner TEXT NOT NULL, frames BLOB NOT NULL, PRIMARY KEY (holder, first)
) WITHOUT ROWID;
"""
"""The tables as version 0.1.0 made them."""


def holder(id: str, kind: str, status: str, previous: str = "", conversation: str = "") -> tuple[Any, ...]:
    fields, body = b'{"model":"m"}', b'{"id":"r"}'
    return id, ANN, kind, 1.5, 1_000.0, 100, status, previous, conversation, "", fields, body


def write_first_version(path: Path) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(FIRST_VERSION)
    called = item("call", call_id="call_1", type="function_call")
    rows = {
        "holders": [
            holder("r1", "response", "completed", conversation="conv"),
            holder("r2", "response", "completed", "r1"),
            holder("waits", "response", "queued"),
            holder("runs", "response", "in_progress"),
            (*holder("conv", "conversation", "")[:10], b"", b'{"a":"b"}'),
        ],
        "items": [
            ("conv", 0, 0, "before", ANN, bytes(item("before").raw)),
            ("conv", 1, 0, "r1-in", ANN, bytes(item("r1-in").raw)),
            ("r1", 0, 0, "r1-in", ANN, bytes(item("r1-in").raw)),
            ("r1", 0, 1, "call", ANN, bytes(called.raw)),
            ("r2", 0, 0, "r2-in", ANN, bytes(item("r2-in").raw)),
            ("waits", 0, 0, "waits-in", ANN, bytes(item("waits-in").raw)),
        ],
        "events": [
            ("r2", 0, ANN, events(0, "a", "b").frames),
            ("r2", 2, ANN, events(2, "c").frames),
        ],
        "kept": [(7, BEN, "call", b"key", b"value", 136, 1_000.0)],
    }
    for table, values in rows.items():
        marks = ", ".join("?" * len(values[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    database.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept.db"


def of_processes(loop: Loop, processes: list[Process], file: Path) -> Users:
    made = (process.make("sqlite", f"sqlite:{file}", 0, PLENTY, lease=LONG) for process in processes)
    return Users(loop, [loop.run(each) for each in made])


def alone(loop: Loop, file: Path, max_age: float = 0) -> Users:
    return Users(loop, [SqliteStore(f"sqlite:{file}", max_age, PLENTY, lease=LONG)])


def version_in(file: Path) -> tuple[int, int]:
    with sqlite3.connect(file) as database:
        return database.execute("SELECT version, compatible FROM schema").fetchone()


# Versions


def test_a_file_of_the_first_version_is_brought_to_this_one_with_all_that_was_in_it(loop, processes, file):
    write_first_version(file)
    store = of_processes(loop, processes, file)
    assert store.at_once(*(call("load", ANN, "r2") for _ in range(3))) == [record("r2", "r1")] * 3
    assert version_in(file)[0] == VERSION
    assert ids_of(store.load_chain(ANN, "r2")) == ["before", "r1-in", "call", "r2-in"]
    assert store.load_conversation(ANN, "conv").metadata == b'{"a":"b"}'
    assert ids_of(store.load_input(ANN, "conv")) == ["before", "r1-in"]
    assert store.get_values(BEN, [("call", b"key")]) == [b"value"]
    (answer,) = store.follow([Follow(ANN, "r2", 1)])
    assert answer == Followed((events(0, "a", "b"), events(2, "c")), is_over=True)
    assert store.load_events(ANN, "r2", 2) == EventChunk(2, 1, events(2, "c").frames)
    store.close()


def test_calls_of_the_first_version_are_linked_to_what_answers_them(loop, file):
    write_first_version(file)
    store = alone(loop, file)
    effects = Effects(None, "conv", ("call_1",))
    store.save(ANN, record("r3", conversation="conv"), items("d"), (), effects)
    assert store.load(ANN, "r1").continuation == "r3"
    store.close()


def test_what_the_first_version_left_unfinished_is_claimed_and_not_begun_again(loop, file):
    write_first_version(file)
    store = alone(loop, file)
    joined(store, "one")
    claimed = store.claim("one", 10)
    assert sorted(run.record.id for run in claimed) == ["runs", "waits"]
    assert all(run.is_started for run in claimed)
    for run in claimed:
        store.save(ANN, record(run.record.id, status="failed"), None, (), guard=run.fence)
    assert store.claim("one", 10) == []
    assert ids_of(store.load_input(ANN, "waits")) == ["waits-in"]
    store.close()


def test_a_file_of_the_second_version_is_brought_to_this_one_and_can_be_used_by_both(loop, processes, file):
    store = alone(loop, file)
    put(store, "r1")
    put(store, "r2", "r1")
    store.close()
    with sqlite3.connect(file) as database:
        database.execute("DROP INDEX holders_by_previous")
        database.execute("UPDATE schema SET version = 2")
    store = of_processes(loop, processes, file)
    assert store.at_once(*(call("load", ANN, "r2") for _ in range(3))) == [record("r2", "r1")] * 3
    assert version_in(file) == (VERSION, 2)
    with sqlite3.connect(file) as database:
        [plan] = database.execute("EXPLAIN QUERY PLAN SELECT 1 FROM holders WHERE previous = 'r1' AND previous != ''")
    assert "holders_by_previous" in plan[3]
    store.close()


def test_a_new_file_is_made_once_by_many_processes_at_once(loop, processes, tmp_path):
    """Two that switch a new file to a log at the same moment wait for each other."""
    for place in range(10):
        store = of_processes(loop, processes, tmp_path / f"kept{place}.db")
        results = store.at_once(*(call("join", Member(f"m{n}")) for n in range(3)))
        assert results == [None] * 3
        assert store.stats().members == 3
        store.close()


def test_a_newer_file_that_says_that_it_can_be_used_is_used(loop, file):
    store = alone(loop, file)
    put(store, "r1")
    store.close()
    with sqlite3.connect(file) as database:
        database.execute("UPDATE schema SET version = ?", (VERSION + 1,))
        database.execute("ALTER TABLE holders ADD COLUMN colour TEXT NOT NULL DEFAULT ''")
        database.execute("ALTER TABLE members ADD COLUMN colour TEXT NOT NULL DEFAULT ''")
        database.execute("ALTER TABLE leases ADD COLUMN colour TEXT NOT NULL DEFAULT ''")
        database.execute("ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT ''")
        database.execute("ALTER TABLE events ADD COLUMN colour TEXT NOT NULL DEFAULT ''")
        database.execute("ALTER TABLE items ADD COLUMN colour TEXT NOT NULL DEFAULT ''")
    store = alone(loop, file)
    put(store, "r2", "r1")
    joined(store, "one")
    assert store.take_lease("name", "one") is not None
    run = queued(store, "r3", "one")
    store.save(ANN, record("r3"), None, items("out"), guard=run, last=events(0, "a"))
    assert len(store.load_chain(ANN, "r2")) == 4
    assert version_in(file)[0] == VERSION + 1
    store.close()


def test_a_newer_file_that_cannot_be_used_is_refused_in_one_clear_line(loop, file):
    store = alone(loop, file)
    put(store, "r1")
    store.close()
    with sqlite3.connect(file) as database:
        database.execute("UPDATE schema SET version = 9, compatible = 8")
    again = SqliteStore(f"sqlite:{file}", 0, PLENTY)
    with pytest.raises(StoreFailed, match=f"has version 9 .* version 8; this one knows version {VERSION}") as raised:
        again.check()
    assert raised.value.reason == "newer"
    users = Users(loop, [again])
    for ask in (lambda: users.load(ANN, "r1"), lambda: put(users, "r2")):
        with pytest.raises(StoreFailed, match="newer toolwire"):
            ask()
    users.close()


# Who else uses the file

OLD_GATEWAY = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("alone", flush=True)
    sys.stdin.read()
"""
"""What version 0.1.0 does before it uses a file."""


def old_gateway(file: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", OLD_GATEWAY, f"{file}-lock"]
    return processes.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_gateway_of_the_first_version_and_this_one_keep_each_other_out(loop, file):
    old = old_gateway(file)
    assert said(old) == "alone"
    store = alone(loop, file)
    with pytest.raises(StoreFailed, match="older version") as raised:
        put(store, "r1")
    assert raised.value.reason == "in_use"
    old.communicate()
    put(store, "r1")
    late = old_gateway(file)
    assert said(late) == "refused"
    late.communicate()
    store.close()


def test_who_only_reads_leaves_a_file_alone_that_a_gateway_of_the_first_version_uses(loop, file):
    write_first_version(file)
    old = old_gateway(file)
    assert said(old) == "alone"
    store = alone(loop, file)
    for ask in (lambda: store.load(ANN, "r2"), store.dump):
        with pytest.raises(StoreFailed, match="older version") as raised:
            ask()
        assert raised.value.reason == "in_use"
    assert loop.run(store.stores[0].inspect()) == 1
    old.communicate()
    assert store.load(ANN, "r2") is not None
    late = old_gateway(file)
    assert said(late) == "refused", "it is in use by who reads it"
    late.communicate()
    store.close()


FORKS = """
import asyncio, os, sys
from toolwire.memory.sqlite import SqliteStore

store = SqliteStore("sqlite:" + sys.argv[1], 0, 1_000_000)
store.check()
opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
assert not [path for path in opened if path.startswith(sys.argv[1])], opened
child = os.fork()
if child == 0:
    os._exit(0 if asyncio.run(store.load("ann", "r1")) is not None else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_check_leaves_nothing_open_so_that_the_process_can_be_forked(loop, file):
    store = alone(loop, file)
    put(store, "r1")
    store.close()
    processes.run([sys.executable, "-c", FORKS, str(file)], check=True, timeout=120)


class Clock:
    """The time since the machine was started, for one process."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def with_clock(loop: Loop, file: Path, clock: Clock, boot: str | None = None) -> Users:
    """A process of its own system, if `boot` is given: it sees another start of the machine."""
    store = SqliteStore(f"sqlite:{file}", 0, PLENTY, steady=clock, lease=10.0)
    if boot is not None:
        vars(store)["_boot"] = boot
    return Users(loop, [store])


def test_members_of_an_earlier_start_of_the_machine_are_dead_after_a_lease(loop, file):
    clock = Clock(5000.0)
    earlier = with_clock(loop, file, Clock(90_000.0), "earlier")
    joined(earlier, "one")
    run = queued(earlier, "r1", "one")
    assert earlier.take_lease("name", "one") is not None
    store = with_clock(loop, file, clock)
    joined(store, "two")
    assert find_member(store, "one") is None
    for _ in range(3):
        assert store.take_lease("name", "two") is None
        assert store.claim("two", 10) == []
        clock.now += 4
        assert store.beat("two")
    assert store.take_lease("name", "two") is not None
    (claimed,) = store.claim("two", 10)
    assert claimed.fence.epoch > run.epoch
    assert earlier.beat("one") is False
    earlier.close()
    store.close()


@pytest.mark.parametrize("boot", ["", "elsewhere"])
@pytest.mark.parametrize("ahead", [-4000.0, 0.0, 4000.0])
def test_a_process_that_sees_another_start_of_the_machine_keeps_its_runs_while_it_beats(loop, file, boot, ahead):
    clock, other = Clock(5000.0), Clock(5000.0 + ahead)
    first, second = with_clock(loop, file, other, boot), with_clock(loop, file, clock, "here")
    joined(first, "one")
    run = queued(first, "r1", "one")
    assert first.take_lease("name", "one") is not None
    joined(second, "two")
    for _ in range(12):
        assert second.claim("two", 10) == []
        assert second.take_lease("name", "two") is None
        second.maintain("two")
        clock.now += 2.5
        other.now += 2.5
        assert first.beat("one")
        assert second.beat("two")
    assert appended(first, run, events(0, "a"))
    first.close()
    second.close()


def test_a_member_that_beats_in_the_future_is_not_alive(loop, file):
    """Where the system does not tell one start from another, a time beyond now may be of an earlier one."""
    store = alone(loop, file)
    joined(store, "one")
    with sqlite3.connect(file) as database:
        database.execute("UPDATE members SET beat = beat + 1000")
    assert find_member(store, "one") is None
    store.close()


# Where it is

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:50 / /mnt/team rw,relatime - nfs4 server:/team rw,vers=4.2
31 22 0:51 / /mnt/with\\040space rw - cifs //server/share rw
32 30 0:52 / /mnt/team/local rw - xfs /dev/sdb1 rw
33 22 0:53 / /mnt/ssh rw - fuse.sshfs me@host: rw
34 22 0:54 / /mnt/hidden rw - ext4 /dev/sdc1 rw
35 34 0:55 / /mnt/hidden rw - nfs server:/over rw
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/home/me/kept.db", "ext4"),
        ("/mnt/team/kept.db", "nfs4"),
        ("/mnt/teams/kept.db", "ext4"),
        ("/mnt/team/local/a/kept.db", "xfs"),
        ("/mnt/with space/kept.db", "cifs"),
        ("/mnt/ssh/kept.db", "fuse.sshfs"),
        ("/mnt/hidden/kept.db", "nfs"),
    ],
)
def test_the_file_system_of_a_place_is_that_of_its_nearest_mount(tmp_path, place, kind):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert file_system_of(Path(place), tmp_path / "mounts") == kind


def test_a_file_on_another_machine_is_refused_in_one_clear_line(tmp_path):
    (tmp_path / "mounts").write_text(f"22 1 0:1 / / rw - ext4 a rw\n23 22 0:2 / {tmp_path} rw - nfs4 server:/x rw\n")
    with pytest.raises(OSError, match=r"on a network file system \(nfs4\); use a local disk"):
        StoreFile(str(tmp_path / "kept.db"), tmp_path / "mounts").check()
    StoreFile("/kept.db", tmp_path / "mounts").check_disk()
    StoreFile(str(tmp_path / "kept.db"), tmp_path / "nothing").check()


# The log


def log_of(file: Path) -> int:
    return file.with_name(f"{file.name}-wal").stat().st_size


def test_the_holder_of_the_sweep_empties_the_log(loop, file):
    store = alone(loop, file)
    joined(store, "one")
    for place in range(6):
        put(store, f"r{place}", size=1_000_000)
    wait_until(lambda: store.maintain("one") or log_of(file) < 1_000_000)
    store.close()


def test_a_writer_waits_while_the_log_is_too_large_and_then_empties_it(loop, file):
    store = alone(loop, file)
    put(store, "first")
    reader = sqlite3.connect(file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM holders").fetchone()
    for place in range(70):
        put(store, f"r{place}", size=1_000_000)
    assert log_of(file) > engine.LOG_LIMIT
    put(store, "held back")
    assert log_of(file) > engine.LOG_LIMIT
    reader.execute("COMMIT")
    reader.close()
    put(store, "last")
    assert log_of(file) < engine.LOG_LIMIT
    assert store.load(ANN, "last") is not None
    store.close()


def test_what_one_process_lets_go_is_gone_for_all(loop, processes, file):
    made = (process.make("sqlite", f"sqlite:{file}", DAY, 5_000, lease=LONG) for process in processes)
    store = Users(loop, [loop.run(each) for each in made])
    joined(store, "one", "two", "three")
    for place in range(10):
        put(store, f"r{place}", size=1000)
    for member in ("one", "two", "three"):
        store.maintain(member)
    assert store.find_lease("sweep") is not None
    assert store.stats().bytes <= 5_000
    left = [n for n in range(10) if store.load(ANN, f"r{n}") is not None]
    assert left == list(range(10 - len(left), 10))
    store.close()


class Overtaking(SqliteStore):
    """Another member gets the lease of the sweep whenever this step of one is about to begin."""

    step = ""

    async def run(self, need: Any, operation: Any, *args: Any, **named: Any) -> Any:
        if operation.__name__ == self.step:
            with sqlite3.connect(self._file.path) as database:
                database.execute("UPDATE leases SET member = 'two', epoch = epoch + 1")
        return await super().run(need, operation, *args, **named)


@pytest.mark.parametrize("step", ["", "_forget_members", "_sweep_expired", "_sweep_share"])
def test_who_lost_the_lease_of_the_sweep_lets_nothing_go(loop, file, step):
    age, size = (0, 1) if step == "_sweep_share" else (1e-9, 0)
    store = Users(loop, [Overtaking(f"sqlite:{file}", age, size, lease=LONG)])
    joined(store, "one", "two", "dead")
    put(store, "r1")
    put(store, "r2")
    assert store.take_lease("sweep", "one") is not None
    with sqlite3.connect(file) as database:
        database.execute("UPDATE members SET beat = beat - 2 * lease, since = 0 WHERE id = 'dead'")
        database.execute("UPDATE members SET since = since - 2 * lease WHERE id = 'one'")
    store.stores[0].step = step
    store.maintain("one")
    with sqlite3.connect(file) as database:
        members = database.execute("SELECT COUNT(*) FROM members").fetchone()[0]
        holders = database.execute("SELECT COUNT(*) FROM holders").fetchone()[0]
    assert members == (3 if step == "_forget_members" else 2)
    assert holders == (2 if step else 0)
    assert store.stores[0].fault is None
    store.close()


def test_a_chain_that_was_used_within_the_hour_is_not_written_to(loop, file):
    store = alone(loop, file, DAY)
    put(store, "r1")
    (used,) = _used(file)
    for _ in range(3):
        store.load_chain(ANN, "r1")
    joined(store, "one")  # behind whatever was still to be written
    assert _used(file) == [used]
    store.close()


def _used(file: Path) -> list[float]:
    with sqlite3.connect(file) as database:
        return [row[0] for row in database.execute("SELECT used FROM holders")]


def test_rows_of_a_dump_are_lines_of_json(loop, file):
    store = alone(loop, file)
    put(store, "r1")
    row = next(each for each in store.dump() if each.__class__.__name__ == "ItemRow")
    line = msgspec.json.encode(row)
    assert line.startswith(b'{"table":"item","holder":"r1"')
    assert msgspec.json.decode(line, type=type(row)) == row
    store.close()


def test_a_dump_of_a_file_is_one_state_whoever_writes_meanwhile(loop, file):
    store, other = alone(loop, file), alone(loop, file)
    put(store, "r1")
    before = store.dump()

    async def dump_and_write(user: SqliteStore) -> list[Any]:
        rows = user.dump()
        first = await anext(rows)
        await other.stores[0].delete(ANN, "r1")
        await user.save(ANN, record("r2"), items("in"), items("out"))
        return [first, *[each async for each in rows]]

    assert store.at_once(dump_and_write) == [before]
    store.close()
    other.close()


def test_a_dump_that_is_broken_off_holds_on_to_nothing(loop, file):
    store = alone(loop, file)
    put(store, "r1")

    async def begin(user: SqliteStore) -> None:
        rows = user.dump()
        await anext(rows)
        await rows.aclose()

    assert store.at_once(begin) == [None]
    put(store, "r2")
    wait_until(lambda: loop.run(store.stores[0].in_writer(store.stores[0]._copy_log)))
    store.close()


def test_there_is_nothing_in_a_dump_of_a_file_that_is_not_there(loop, file):
    store = alone(loop, file)
    assert store.dump() == []
    assert not file.exists()
    store.close()


# A file that goes away, and a disk that is full


def test_a_file_that_goes_away_is_told_once_and_begun_anew(loop, file):
    store = alone(loop, file)
    put(store, "r1")
    assert store.load(ANN, "r1") is not None
    for path in file.parent.glob(f"{file.name}*"):
        path.unlink()
    with pytest.raises(StoreFailed, match="removed or replaced"):
        put(store, "r2")
    put(store, "r3")
    assert store.load(ANN, "r3") is not None
    assert store.load(ANN, "r1") is None
    assert store.stores[0].fault is None
    store.close()


def test_what_writes_nothing_does_not_mend_a_store_that_cannot_be_written(loop, file):
    store = alone(loop, file)
    joined(store, "one", "two")
    assert store.take_lease("name", "one") is not None
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("CREATE TRIGGER never BEFORE INSERT ON holders BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(StoreFailed):
        put(store, "r1")
    assert store.take_lease("name", "two") is None
    assert store.beat("nobody") is False
    assert store.stores[0].fault == "io"
    other.execute("DROP TRIGGER never")
    other.close()
    put(store, "r1")
    assert store.stores[0].fault is None
    store.close()
