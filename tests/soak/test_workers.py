"""What a worker costs when it does nothing, and whether reloads leave anything behind."""

import sys
from pathlib import Path

import pytest

from tests.soak.conftest import Rows
from tests.support.fleet import Asking, Fleet, ask, until

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="another platform: reads /proc")]

MEMORY = 20.0
"""MB that an additional idle worker may take."""
RELOADS = 20


def memory(fleet: Fleet) -> float:
    """MB of the supervisor and all workers; what several share counts once."""
    total = 0.0
    for pid in (fleet.process.pid, *fleet.pids):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) / 1024
    return total


def files(fleet: Fleet) -> int:
    return len(list(Path(f"/proc/{fleet.process.pid}/fd").iterdir()))


def idle_memory(folder: Path, workers: int) -> float:
    folder.mkdir()
    fleet = Fleet(folder, workers=workers)
    try:
        until(lambda: fleet.all_ready(workers))
        return memory(fleet)
    finally:
        fleet.stop()


def test_an_additional_idle_worker_is_small(tmp_path, rows: Rows):
    few, many = idle_memory(tmp_path / "few", 2), idle_memory(tmp_path / "many", 8)
    rows.add("memory of an additional idle worker", (many - few) / 6, MEMORY, "MB")
    rows.hold()


def test_reloads_leave_nothing_behind_and_refuse_nobody(tmp_path, rows: Rows):
    fleet = Fleet(tmp_path)
    try:
        before = 0
        with Asking(fleet.url) as asking:
            for number in range(1, RELOADS + 1):
                asking.more(5)
                fleet.configure(f"[server]\nkeepalive = {10 + number}.0\n")
                fleet.reload()
                fleet.wait_for("reload", number, state="done")
                until(lambda: len(fleet.pids) == 2, "old workers end")
                before = before or files(fleet)
        assert ask(fleet.url) == 200
        rows.add("requests refused or cut in 20 reloads", sum(asking.failed.values()), 0, "")
        rows.add("files of the supervisor, more after 20 reloads", files(fleet) - before, 0, "")
        rows.hold()
    finally:
        fleet.stop()
