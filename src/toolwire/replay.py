"""What each dialect makes of a recorded turn, for people to look at."""

from typing import TextIO

from toolwire.assembly import ToolRules, policies_for
from toolwire.backends import replay
from toolwire.backends.lowered import LoweredConversation
from toolwire.core.backend import Refuse
from toolwire.core.collect import Collector
from toolwire.core.events import Event
from toolwire.core.jsonrpc import JSON_LINES, LineReader
from toolwire.core.order import TurnOrder
from toolwire.core.recording import Recording, read_recording
from toolwire.core.request import Request
from toolwire.core.sse import FrameReader
from toolwire.core.stage import Pipeline
from toolwire.core.terminal import escaped
from toolwire.dialects import chat, messages, responses

DIALECTS = {"chat": chat, "responses": responses, "messages": messages}


def show(text: bytes, out: TextIO) -> None:
    """Print the recording as events and as every dialect writes it. Raises `ValueError` for anything else."""
    recording = read_recording(text)
    if recording.head.kind not in replay.KINDS:
        raise ValueError(f"a recording of a {recording.head.kind} backend cannot be replayed")
    request = Request(recording.head.model, (), stream=True, include_usage=True)
    conversation = replay.conversation(request, "replay", recording, replay.Profile())
    events = _events(recording, conversation)
    print("# events", file=out)
    for event in events:
        print(escaped(str(event)), file=out)
    for name, dialect in DIALECTS.items():
        assembly = policies_for(request, ToolRules(), "replay", conversation.stand_in)
        encoder = dialect.StreamEncoder(request, dialect.new_id("replay"), 0, assembly.stats)
        collector = Collector()
        print(f"\n# {name}, streamed", file=out)
        for event in (passed for each in events for passed in assembly.policies.feed(each)):
            collector.feed(event)
            out.write(escaped(b"".join(encoder.feed(event)).decode()))
        [turn] = collector.end()
        plain = dialect.encode_turn(turn, request, dialect.new_id("replay"), 0)
        print(f"\n# {name}, plain\n{escaped(plain.decode())}", file=out)


def _events(recording: Recording, conversation: LoweredConversation) -> list[Event]:
    steps = [step for step in recording.script(timed=False).steps if isinstance(step, bytes | Refuse)]
    if steps and isinstance(steps[0], Refuse):
        raise ValueError(f"the backend refused this turn with status {steps[0].status}")
    data = b"".join(step for step in steps if isinstance(step, bytes))
    lines = recording.head.content_type == JSON_LINES
    if data.lstrip().startswith(b"{") and not lines:
        return list(conversation.feed_plain(data))
    reader = LineReader() if lines else FrameReader()
    line = Pipeline(reader, conversation, TurnOrder())
    return [*line.feed(data), *line.end()]
