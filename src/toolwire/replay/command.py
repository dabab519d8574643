"""`toolwire replay`: prints recorded turns as text, as JSON, or as a dialect writes them.

turn 8f3a…: chat client, responses backend, model gpt-5, status 200, 2026-11-17T05:41:22.118+00:00

client asks: model gpt-5, streamed, 812 bytes, tool: find
    user       Where is x?

sent to the backend: POST /responses, model gpt-5, streamed, 790 bytes, tool: find
    the same conversation

received:
    0.213 s    reasoning  The question fits the tool.
    0.250 s    call       find c1 {"q":"x"}
    0.251 s    end        calls

Invisible characters of recordings are escaped, so that their text cannot control the terminal.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TextIO, get_args

import msgspec

from toolwire.assembly import ToolRules, assemble_policies
from toolwire.core.collect import Collector
from toolwire.core.display import escape_invisible
from toolwire.core.recording import Recording, read_recording
from toolwire.memory.private_files import read_file
from toolwire.protocols import dialects
from toolwire.replay.steps import Direction, Step, StepType, find_request, make_conversation, read_events, read_steps

MAX_BYTES = 256 * 1024 * 1024
"""Maximum bytes of a file that is read: several times the size limit of a recording."""
MAX_CHARS = 600
"""Maximum characters of a text that is shown without --full."""
EVENTS, ALL_FORMS = "events", "all"
TITLES: dict[Direction, str] = {"client": "client asks", "sent": "sent to the backend", "received": "received"}


class ReplayOptions(msgspec.Struct, frozen=True):
    """The options of the command line. An empty filter matches everything."""

    paths: tuple[Path, ...]
    """Recordings, or directories of recordings."""
    request: str = ""
    """The beginning of the turn's id, which is the name of its file."""
    dialect: str = ""
    """The client's dialect."""
    direction: str = ""
    events: tuple[str, ...] = ()
    """Types of steps."""
    call: str = ""
    """The name of a tool, which may contain `*`: only its calls and results."""
    json: bool = False
    full: bool = False
    """Whether long texts are shown whole."""
    written_as: str = ""
    """The form in which the reply is written: a dialect, `events`, or `all` of them."""


def find_files(options: ReplayOptions) -> Iterator[Path]:
    """The files that the options select, in a directory the oldest first."""
    for path in options.paths:
        for file in sorted(path.glob("*.jsonl"), key=lambda each: each.stat().st_mtime) if path.is_dir() else [path]:
            if file.stem.startswith(options.request):
                yield file


def read_whole(path: Path) -> Recording:
    """A recording. Raises `ValueError` with a message for the user if it is none, or `OSError`."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return read_recording(read_file(path))


def run_replay(options: ReplayOptions, out: TextIO) -> None:
    """Print the recordings that the options select. Raises `ValueError` with a message for the user, or `OSError`."""
    forms = (EVENTS, *dialects())
    for option, value, known in (
        ("--dialect", options.dialect, dialects()),
        ("--as", options.written_as, (*forms, ALL_FORMS)),
        ("--direction", options.direction, get_args(Direction)),
        *(("--event", event, get_args(StepType)) for event in options.events),
    ):
        if value and value not in known:
            raise ValueError(f"{option}: {value!r} is not one of {', '.join(known)}")
    chosen = forms if options.written_as == ALL_FORMS else (options.written_as,)
    found = shown = 0
    for path in find_files(options):
        try:
            recording = read_whole(path)
            if options.dialect not in ("", recording.head.dialect):
                continue
            found += 1
            if options.written_as:
                _show_forms(recording, chosen, out)
            else:
                shown += _show_steps(path.stem, recording, options, out, is_first=not shown)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    if not found:
        raise ValueError("there is no such recording")


def _show_steps(name: str, recording: Recording, options: ReplayOptions, out: TextIO, *, is_first: bool) -> bool:
    """Print the steps of a recording as text or as JSON; returns whether there was anything to print."""
    head = recording.head
    steps = [
        step
        for step in read_steps(recording)
        if options.direction in ("", step.direction)
        and (not options.events or step.type in options.events)
        and (not options.call or (step.type in ("call", "result") and fnmatchcase(step.name, options.call)))
    ]
    if options.json:
        for step in steps:
            line = msgspec.json.encode({"turn": name, **msgspec.to_builtins(step)}).decode()
            print(escape_invisible(line), file=out)
        return bool(steps)
    is_filtered = bool(options.direction or options.events or options.call)
    if is_filtered and not steps:
        return False
    if not is_first:
        print(file=out)
    client = f"{head.dialect} client, " if head.dialect else ""
    when = f", {head.at}" if head.at else ""
    about = f"turn {name}: {client}{head.kind} backend, model {head.model}, status {head.status or 'none'}{when}"
    print(escape_invisible(about), file=out)
    asked = [step.content for step in steps if step.direction == "client" and step.type != "request"]
    for direction, title in TITLES.items():
        found = [step for step in steps if step.direction == direction]
        if not found:
            continue
        about = "; ".join(step.text for step in found if step.type == "request")
        others = [step for step in found if step.type != "request"]
        print(escape_invisible(f"\n{title}: {about}".rstrip()), file=out)
        if direction == "sent" and asked and not is_filtered and [step.content for step in others] == asked:
            print("    the same conversation", file=out)
            continue
        for step in others:
            print(_format_step(step, is_full=options.full), file=out)
    return True


def _format_step(step: Step, *, is_full: bool) -> str:
    label = "" if step.t is None else f"{step.t:.3f} s"
    kind = step.type if step.t is not None or step.type not in ("text", "other") else ""
    first = f"{label or step.who:<10} {kind:<10}" if kind else f"{label or step.who:<10}"
    match step.type:
        case "call":
            words = f"{step.name} {step.id} {step.text}"
        case "result":
            words = f"{step.name} {step.id}: {step.text}".lstrip()
        case "note" | "failure":
            words = f"{step.name}: {step.text}".removeprefix(": ").removesuffix(": ")
        case _:
            words = step.text
    if len(words) > MAX_CHARS and not is_full:
        words = f"{words[:MAX_CHARS]}… ({len(words) - MAX_CHARS:,} more characters: --full)"
    text = escape_invisible(words).replace("\n", "\n" + " " * (len(first) + 5))
    return f"    {escape_invisible(first)} {text}".rstrip()


def _show_forms(recording: Recording, forms: Sequence[str], out: TextIO) -> None:
    """Print the reply as these dialects write it, streamed and plain, or as events before any policy.

    Raises `ValueError` if there is no reply.
    """
    status = recording.head.status
    if not 200 <= status < 300:
        raise ValueError(f"the backend refused this turn with status {status}" if status else "there was no answer")
    request = find_request(recording)
    for form in forms:
        conversation = make_conversation(recording, request)
        if form == EVENTS:
            print(f"# {EVENTS}", file=out)
            for _, event in read_events(recording, conversation):
                print(escape_invisible(str(event)), file=out)
            print(file=out)
            continue
        dialect = dialects()[form].module
        assembly = assemble_policies(request, ToolRules(), "replay", conversation.stand_in)
        encoder = dialect.StreamEncoder(request, dialect.new_id("replay"), 0, assembly.stats)
        collector = Collector()
        print(f"# {form}, streamed", file=out)
        for _, each in read_events(recording, conversation):
            for event in assembly.policies.feed(each):
                collector.feed(event)
                written = b"".join(encoder.feed(event)).decode()
                out.write(escape_invisible(written.replace("\r\n", "\n")))
        [turn] = collector.end()
        if turn.failure is not None:
            plain = dialect.encode_error(turn.failure)
        else:
            plain = dialect.encode_turn(turn, request, dialect.new_id("replay"), 0)
        print(f"\n# {form}, plain\n{escape_invisible(plain.decode())}\n", file=out)
