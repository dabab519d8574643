"""`toolwire replay`: prints recorded turns as text, as JSON, or as a dialect writes them."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TextIO, get_args

import msgspec

from toolwire.core.recording import Recording, read_recording
from toolwire.core.terminal import escaped
from toolwire.memory.private_files import read_file
from toolwire.protocols import dialects
from toolwire.replay.steps import Direction, Step, StepType, steps_of
from toolwire.replay.text import show_turn
from toolwire.replay.wire import FORMS, show_as

MAX_BYTES = 256 * 1024 * 1024
"""The largest file that is read: several times what a recording may have."""
EVERY = "all"


class ReplayOptions(msgspec.Struct, frozen=True):
    """The options of the command line. A filter that is empty lets everything through."""

    paths: tuple[Path, ...]
    """Recordings, or directories of recordings."""
    request: str = ""
    """The beginning of the turn's id, which is the name of its file."""
    dialect: str = ""
    """The client's."""
    direction: str = ""
    events: tuple[str, ...] = ()
    """Types of steps."""
    call: str = ""
    """The name of a tool, which may hold `*`: only its calls and results."""
    json: bool = False
    full: bool = False
    """Whether long texts are shown whole."""
    written_as: str = ""
    """A dialect, `events` or `all`: what each of them makes of the reply."""


def run_replay(options: ReplayOptions, out: TextIO) -> None:
    """Print what was asked for. Raises `ValueError` with one line for the user, or `OSError`."""
    _check(options)
    found = shown = 0
    for path, recording in _recordings(options):
        found += 1
        try:
            shown += _show(path, recording, options, out, is_first=not shown)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    if not found:
        raise ValueError("there is no such recording")


def _check(options: ReplayOptions) -> None:
    for option, value, known in (
        ("--dialect", options.dialect, dialects()),
        ("--as", options.written_as, (*FORMS, EVERY)),
        ("--direction", options.direction, get_args(Direction)),
        *(("--event", event, get_args(StepType)) for event in options.events),
    ):
        if value and value not in known:
            raise ValueError(f"{option}: {value!r} is none of {', '.join(known)}")


def _recordings(options: ReplayOptions) -> Iterator[tuple[Path, Recording]]:
    for path in options.paths:
        files = sorted(path.glob("*.jsonl"), key=lambda file: file.stat().st_mtime) if path.is_dir() else [path]
        for file in files:
            if not file.stem.startswith(options.request):
                continue
            recording = _read(file)
            if options.dialect in ("", recording.head.dialect):
                yield file, recording


def _read(file: Path) -> Recording:
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file}: it has more than {MAX_BYTES:,} bytes")
    try:
        return read_recording(read_file(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _show(path: Path, recording: Recording, options: ReplayOptions, out: TextIO, *, is_first: bool) -> bool:
    """Print one recording; whether there was anything to print."""
    if options.written_as:
        names = FORMS if options.written_as == EVERY else (options.written_as,)
        show_as(recording, names, out)
        return True
    steps = _chosen(steps_of(recording), options)
    if options.json:
        for step in steps:
            line = msgspec.json.encode({"turn": path.stem, **msgspec.to_builtins(step)}).decode()
            print(escaped(line), file=out)
        return bool(steps)
    has_filters = bool(options.direction or options.events or options.call)
    if has_filters and not steps:
        return False
    if not is_first:
        print(file=out)
    show_turn(path.stem, recording.head, steps, out, is_full=options.full, is_filtered=has_filters)
    return True


def _chosen(steps: Sequence[Step], options: ReplayOptions) -> list[Step]:
    return [
        step
        for step in steps
        if options.direction in ("", step.direction)
        and (not options.events or step.type in options.events)
        and (not options.call or (step.type in ("call", "result") and fnmatchcase(step.name, options.call)))
    ]
