"""The turns that every client is shown: `up/client-NAME` is what a client asks for to see the turn NAME."""

import json

from tests.support.frames import call, call_item, completed, created, rs, stream, text
from tests.support.gateway import tool
from tests.support.upstream import Pause, Reply

WEATHER = tool("get_weather", city={"type": "string"})
TIME = tool("get_time")
QUESTION = "What is the weather in Paris?"
RESULT = "Sunny, 21 °C."
ANSWER = "According to get_weather: Sunny, 21 °C."
"""What the demo model makes of the result."""

UNICODE = '{"city":"Zürich \\u2603 東京 \U0001f326\ufe0f \\"quoted\\" \\\\ \\n"}'
USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
}


def reasoning(words: str) -> bytes:
    return rs("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta=words)


def refusal(words: str) -> bytes:
    return rs("refusal.delta", item_id="msg_1", output_index=0, content_index=0, delta=words)


def incomplete(reason: str) -> bytes:
    return rs("incomplete", response={"status": "incomplete", "incomplete_details": {"reason": reason}})


def custom_call(id: str, name: str, *pieces: str) -> bytes:
    item = {"type": "custom_tool_call", "id": f"ctc_{id}", "call_id": id, "name": name, "input": "".join(pieces)}
    return stream(
        rs("output_item.added", output_index=0, item={**item, "input": ""}),
        *(rs("custom_tool_call_input.delta", item_id=item["id"], output_index=0, delta=piece) for piece in pieces),
        rs("output_item.done", output_index=0, item=item),
    )


def interleaved(*calls: tuple[str, str, list[str]]) -> bytes:
    """Calls whose pieces come by turns, and whose ends come in reverse."""
    items = [call_item(id, name, "".join(pieces), f"fc_{id}") for id, name, pieces in calls]
    places = range(len(items))
    return stream(
        *(rs("output_item.added", output_index=place, item=items[place] | {"arguments": ""}) for place in places),
        *(
            rs("function_call_arguments.delta", item_id=items[place]["id"], output_index=place, delta=piece)
            for pieces in zip(*(pieces for _, _, pieces in calls), strict=True)
            for place, piece in enumerate(pieces)
        ),
        *(rs("output_item.done", output_index=place, item=items[place]) for place in reversed(places)),
    )


def turn(*events: bytes) -> Reply:
    """A turn that ends well."""
    return Reply([stream(created(), *events, completed(usage=USAGE))])


def broken(*events: bytes) -> Reply:
    """A turn that fails when what came before is long on its way to the client."""
    error = {"code": "server_error", "message": "It broke."}
    return Reply([stream(created(), *events), Pause(0.25), rs("failed", response={"status": "failed", "error": error})])


def refused(status: int, message: str) -> Reply:
    """An answer that is no turn at all."""
    return Reply([json.dumps({"error": {"message": message}}).encode()], status, "application/json")


PARIS = call("c1", "get_weather", '{"city":', '"Paris"}')
ROME = call("c2", "get_weather", '{"ci', 'ty":"Ro', 'me"}', index=1)

TURNS: dict[str, Reply] = {
    "text": turn(text("Hello"), text(", world.")),
    "reasoning": turn(reasoning("Let me "), reasoning("think."), text("Done.", index=1)),
    "one-call": turn(PARIS),
    "parallel": turn(PARIS, ROME),
    "interleaved": turn(
        interleaved(
            ("c1", "get_weather", ['{"city":', '"Paris"}']),
            ("c2", "get_weather", ['{"city', '":"Rome"}']),
        )
    ),
    "no-arguments": turn(call("c1", "get_time")),
    "text-and-call": turn(text("One moment."), call("c1", "get_weather", '{"city":"Paris"}', index=1)),
    "call-and-text": turn(PARIS, text("Let us see.", index=1)),
    "unicode": turn(call("c1", "get_weather", *UNICODE)),
    "custom": turn(custom_call("c1", "run", "print(", "1)")),
    "refusal": turn(refusal("I will "), refusal("not.")),
    "length": Reply([stream(created(), text("And then"), incomplete("max_output_tokens"))]),
    "filter": Reply([stream(created(), text("Well"), incomplete("content_filter"))]),
    "error-middle": broken(text("Half an")),
    "error-after-call": broken(PARIS),
    "unauthorized": refused(401, "This key is not mine."),
    "overloaded": refused(503, "Too much to do."),
}
