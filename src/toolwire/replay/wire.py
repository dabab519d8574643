"""A recorded reply as turn events, and as each dialect writes it."""

from collections.abc import Sequence
from typing import TextIO

from toolwire.assembly import ToolRules, policies_for
from toolwire.core.collect import Collector
from toolwire.core.recording import Recording
from toolwire.core.request import Request
from toolwire.core.terminal import escaped
from toolwire.protocols import dialects
from toolwire.replay.steps import conversation_of, events_of, request_of

EVENTS = "events"
FORMS = (EVENTS, *dialects())


def show_as(recording: Recording, forms: Sequence[str], out: TextIO) -> None:
    """Print the reply as these dialects write it, streamed and plain, or as events before any policy has seen them.

    Raises `ValueError` if there is no reply.
    """
    status = recording.head.status
    if not 200 <= status < 300:
        raise ValueError(f"the backend refused this turn with status {status}" if status else "there was no answer")
    request = request_of(recording)
    for form in forms:
        if form == EVENTS:
            _show_events(recording, request, out)
        else:
            _show_dialect(recording, request, form, out)


def _show_events(recording: Recording, request: Request, out: TextIO) -> None:
    print(f"# {EVENTS}", file=out)
    for _, event in events_of(recording, conversation_of(recording, request)):
        print(escaped(str(event)), file=out)
    print(file=out)


def _show_dialect(recording: Recording, request: Request, name: str, out: TextIO) -> None:
    dialect = dialects()[name].module
    conversation = conversation_of(recording, request)
    assembly = policies_for(request, ToolRules(), "replay", conversation.stand_in)
    encoder = dialect.StreamEncoder(request, dialect.new_id("replay"), 0, assembly.stats)
    collector = Collector()
    print(f"# {name}, streamed", file=out)
    for _, each in events_of(recording, conversation):
        for event in assembly.policies.feed(each):
            collector.feed(event)
            out.write(escaped(b"".join(encoder.feed(event)).decode()))
    [turn] = collector.end()
    plain = dialect.encode_turn(turn, request, dialect.new_id("replay"), 0)
    print(f"\n# {name}, plain\n{escaped(plain.decode())}\n", file=out)
