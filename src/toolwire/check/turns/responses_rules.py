"""The rules of the form of Responses, streamed and plain.

They are those of Open Responses, and the habits of the original service on which clients rely.
"""

from typing import Any

from toolwire.check.turns.rule import Rule

_SPEC = "Open Responses"
_SDK = "the openai SDK, which builds the response from its events"
_CODEX = "Codex"
_VERCEL = "the Vercel AI SDK"


def _must(name: str, detail: str, source: str, harm: str, **about: Any) -> Rule:
    return Rule(f"responses.{name}", "MUST", detail, source, harm, **about)


def _should(name: str, detail: str, source: str, harm: str, **about: Any) -> Rule:
    return Rule(f"responses.{name}", "SHOULD", detail, source, harm, **about)


RULES = (
    _should(
        "event-name",
        "Every event is sent under its type as its name.",
        _SPEC,
        "Clients that listen for names hear nothing.",
    ),
    _should(
        "sequence",
        "Every event has a sequence number, which grows.",
        _SPEC,
        "A client that goes on after a broken connection repeats or loses events.",
        explains=("responses.sequence-gap",),
    ),
    _should(
        "sequence-gap",
        "Sequence numbers count from 0 without a gap.",
        "OpenAI Responses",
        "Clients that look for gaps take events for lost.",
    ),
    _should(
        "unknown-event",
        "Every event is one of the protocol.",
        _SPEC,
        "Typed clients refuse it.",
    ),
    _must(
        "opening",
        "A stream begins with `response.created`, once.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises at the first event.",
        explains=("responses.in-progress",),
    ),
    _should(
        "in-progress",
        "`response.in_progress` follows `response.created`; `response.queued` may stand before it.",
        _SPEC,
        "Clients show a response as waiting that is under way.",
    ),
    _must(
        "closing",
        "A stream ends with exactly one of `response.completed`, `response.failed` and `response.incomplete`.",
        f"{_SPEC}; {_CODEX} asks again for a stream that ends without it",
        "The turn is asked for again, and its calls run twice.",
        explains=("responses.done-marker", "responses.final-output", "usage.reported", "calls.finish"),
    ),
    _should(
        "done-marker",
        "The last thing in a stream is `[DONE]`, once.",
        f"{_SPEC}; OpenAI itself leaves it out",
        "Clients that read every dialect alike wait for it.",
    ),
    _should(
        "error-event",
        "An `error` event is followed by `response.failed`.",
        _SPEC,
        "The response stays in progress for ever.",
        needs="error",
        explains=("responses.failure-event",),
    ),
    _must(
        "response-id",
        "All events that hold the response give it one and the same id.",
        _SPEC,
        "The turn cannot be continued by `previous_response_id`.",
    ),
    _must(
        "response-status",
        "The status of the response is the one that its event is named after.",
        _SPEC,
        "Clients take a turn that is done for one that failed, or the other way round.",
        explains=("responses.incomplete-details", "calls.finish"),
    ),
    _must(
        "output-index",
        "Every item is announced with the next free output index, and all of its events have it.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises, or writes the arguments of one call into another.",
        explains=(
            "responses.item-added",
            "responses.item-id",
            "responses.item-closed",
            "responses.closed-item",
            "responses.call-order",
            "responses.part-order",
            "responses.text-agrees",
            "responses.final-output",
            "responses.failed-output",
            "responses.incomplete-item",
        ),
    ),
    _must(
        "item-added",
        "Everything that is said of an item comes after `response.output_item.added`.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises on the first delta.",
        explains=(
            "responses.item-closed",
            "responses.text-agrees",
            "responses.final-output",
            "responses.failed-output",
        ),
    ),
    _must(
        "item-keys",
        "Every item has an id and a type, a call its call_id and name, a message its role.",
        _SPEC,
        "Clients cannot tell what it is, or answer to it.",
        on="turn",
        explains=("responses.item-id", "responses.item-identity", "responses.part-order", "calls.id", "calls.name"),
    ),
    _must(
        "item-id",
        "An item has one id in all of its events, and no other item has it.",
        _SPEC,
        "Arguments are added to another call.",
        explains=("responses.item-identity",),
    ),
    _should(
        "call-id",
        "The call_id of a call is not the id of its item.",
        "OpenAI Responses, which refuses an item id in a history that is not of its own form",
        "The call cannot be sent back.",
        on="turn",
        needs="call",
        explains=("responses.item-identity",),
    ),
    _should(
        "item-status",
        "An item is `in_progress` when it is added, and `completed` or `incomplete` when it is done; "
        "reasoning may have no status.",
        _SPEC,
        "Clients run a call too early, or never.",
        explains=("responses.final-output",),
    ),
    _must(
        "item-begins-empty",
        "An item that grows by deltas is empty when it is added.",
        _SDK,
        "The SDK adds the deltas to what is there: the arguments are doubled.",
    ),
    _must(
        "item-identity",
        "Type, id, call_id, name and role of an item never change.",
        _SPEC,
        "The call that is done is another than the one that began.",
        explains=("responses.arguments-string", "responses.final-output", "calls.id", "calls.name", "calls.json"),
    ),
    _must(
        "item-closed",
        "Every item is closed by `response.output_item.done`.",
        f"{_SPEC}; {_CODEX} runs a call when its item is done",
        "The call is never run.",
        explains=("responses.final-output", "choice.required", "choice.named", "parallel.calls", "stream.same"),
    ),
    _must(
        "closed-item",
        "Nothing is said of an item after it is done.",
        _SPEC,
        "The call has been run without it.",
        explains=("responses.text-agrees", "responses.final-output"),
    ),
    _should(
        "incomplete-item",
        "Only the last item of an incomplete response is incomplete.",
        _SPEC,
        "Clients run a call whose arguments were cut.",
    ),
    _must(
        "arguments-string",
        "The arguments of a call are text in every event.",
        "OpenAI Responses",
        "Typed clients raise.",
        on="turn",
        needs="call",
        explains=("responses.call-order", "responses.text-agrees", "responses.final-output", "calls.json"),
    ),
    _must(
        "call-order",
        "The arguments of a call come in deltas, then whole, then in the item.",
        _SPEC,
        "Clients that follow the deltas have other arguments than clients that wait.",
        needs="call",
        explains=("responses.text-agrees", "calls.json"),
    ),
    _must(
        "part-order",
        "Text comes in parts: each is added, grows, is said whole and closed before the next.",
        f"{_SPEC}; {_SDK}",
        "The SDK raises on text for which there is no part, and thoughts are lost.",
        needs="text",
        explains=("responses.text-agrees",),
    ),
    _must(
        "part-begins-empty",
        "A part is empty when it is added.",
        _SDK,
        "The text is doubled.",
        needs="text",
    ),
    _must(
        "text-agrees",
        "Deltas, whole text and closed item say the same.",
        _SPEC,
        "Clients that stream see another call than clients that do not.",
        explains=("responses.final-output", "calls.json"),
    ),
    _must(
        "final-output",
        "The closing event of a response that did not fail holds all items, as they were when they were done.",
        f"{_SPEC}; clients that read only the closing event",
        "They see no calls, or others.",
    ),
    _should(
        "failed-output",
        "A failed response holds the items that were sent, the open one as incomplete.",
        _SPEC,
        "What the user has seen is gone from the history.",
        needs="error",
    ),
    _must(
        "object",
        "A plain answer is an object `response` with an id, a time, a model, a status, and a list of items as output.",
        f"OpenAI Responses; {_VERCEL}",
        "The SDK raises.",
        on="plain",
        explains=("usage.reported", "calls.finish"),
    ),
    _must(
        "part-keys",
        "Text has its `annotations`, a list.",
        f"OpenAI Responses; {_VERCEL}",
        "The whole answer is refused.",
        on="turn",
        needs="text",
    ),
    _should(
        "fields",
        "The response has all fields that OpenAI requires, wherever it appears: `created_at`, `model`, `tools`, "
        "`tool_choice`, `parallel_tool_calls`, `temperature`, `top_p`, `instructions`, `metadata`, `error` and "
        "`incomplete_details`.",
        "OpenAI Responses; typed clients",
        "Typed clients refuse the whole turn.",
        on="turn",
    ),
    _should(
        "open-fields",
        "The response has the further fields that Open Responses requires, and those are not null that cannot be.",
        _SPEC,
        "Clients that are made from the specification refuse the whole turn.",
        on="turn",
    ),
    _should(
        "event-fields",
        "Every event has all of its fields: text its `logprobs`, the arguments of a call its `name`, an error its "
        "`code`, `message` and `param`.",
        f"OpenAI Responses; {_VERCEL}",
        "Typed clients drop the event: an error among them, so that the turn seems to have ended well.",
    ),
    _should(
        "echo-tools",
        "The response tells the tools, the tool choice and `parallel_tool_calls` as the request has them.",
        f"OpenAI Responses, {_SPEC}",
        "Whoever reads the response back, or a log of it, sees that other tools could be called.",
        on="turn",
    ),
    _should(
        "echo-sampling",
        "The response tells temperature, `top_p` and the penalties as the request has them.",
        f"OpenAI Responses, {_SPEC}",
        "Nobody can tell whether they were used: a gateway that drops them looks like one that does not.",
        on="turn",
    ),
    _should(
        "echo",
        "The response tells instructions, limits, metadata, `store`, `text`, the reasoning effort and the response "
        "that it continues as the request has them.",
        f"OpenAI Responses, {_SPEC}",
        "Nobody can tell whether they were used; metadata by which clients find their responses is lost.",
        on="turn",
    ),
    _should(
        "usage-details",
        "Tokens are reported with `input_tokens_details.cached_tokens` and `output_tokens_details.reasoning_tokens`.",
        f"OpenAI Responses, {_SPEC}; the OpenAI Agents SDK",
        "Typed clients raise at the end of the turn, and nobody sees what the cache saves.",
        on="turn",
    ),
    _should(
        "incomplete-details",
        "An incomplete response says why, in `incomplete_details`.",
        "OpenAI Responses",
        "Clients cannot tell a turn that met its limit from one that was filtered.",
        on="turn",
    ),
    _should(
        "failure-event",
        "`response.failed` follows an `error` event.",
        f"{_SPEC}; {_VERCEL}, which knows no other failure",
        "A turn that failed is taken for one that ended.",
        needs="error",
    ),
    _should(
        "failed-error",
        "A failed response has an `error` with a code and a message.",
        f"OpenAI Responses, {_SPEC}; {_CODEX} shows it",
        "Nobody learns what went wrong, and whether to ask again.",
        on="turn",
        needs="error",
    ),
    _should(
        "error-object",
        "An `error` event also has an object `error` with type, code, message and param.",
        _SPEC,
        "Clients that are made from the specification see an error without words.",
        needs="error",
    ),
    _should(
        "sse-id",
        "Events have no SSE `id`: their sequence number is where a reader goes on.",
        _SPEC,
        "Browsers reconnect by themselves with a number that the endpoint does not know.",
    ),
)
