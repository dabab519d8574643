"""The rules of the form of Responses, streamed and plain.

They are those of Open Responses, and the habits of the original service on which clients rely.
"""

from toolwire.check.turns.rule import must, should

_SPEC = "Open Responses"
_SDK = "the openai SDK, which builds the response from its events"
_CODEX = "Codex"
_VERCEL = "the Vercel AI SDK"

RULES = (
    should(
        "responses.event-name",
        "Every event is sent under its type as its name.",
        "Clients that listen for names hear nothing.",
    ),
    should(
        "responses.sequence",
        "Every event has a sequence number, which grows.",
        "A client that goes on after a broken connection repeats or loses events.",
        explains=("responses.sequence-gap",),
    ),
    should(
        "responses.sequence-gap",
        "Sequence numbers count from 0 without a gap.",
        "Clients that look for gaps take events for lost.",
        required_by="OpenAI Responses",
    ),
    should(
        "responses.unknown-event",
        "Every event is one of the protocol.",
        "Typed clients refuse it.",
    ),
    must(
        "responses.opening",
        "A stream begins with `response.created`, once.",
        "The SDK raises at the first event.",
        required_by=f"{_SPEC}; {_SDK}",
        explains=("responses.in-progress",),
    ),
    should(
        "responses.in-progress",
        "`response.in_progress` follows `response.created`; `response.queued` may stand before it.",
        "Clients show a response as waiting that is under way.",
    ),
    must(
        "responses.closing",
        "A stream ends with exactly one of `response.completed`, `response.failed` and `response.incomplete`.",
        "The turn is asked for again, and its calls run twice.",
        required_by=f"{_SPEC}; {_CODEX} asks again for a stream that ends without it",
        explains=("responses.done-marker", "responses.final-output", "usage.reported", "calls.finish"),
    ),
    should(
        "responses.done-marker",
        "The last thing in a stream is `[DONE]`, once.",
        "Clients that read every dialect alike wait for it.",
        required_by=f"{_SPEC}; OpenAI itself leaves it out",
    ),
    should(
        "responses.error-event",
        "An `error` event is followed by `response.failed`.",
        "The response stays in progress for ever.",
        needs="error",
        explains=("responses.failure-event",),
    ),
    must(
        "responses.response-id",
        "All events that hold the response give it one and the same id.",
        "The turn cannot be continued by `previous_response_id`.",
    ),
    must(
        "responses.response-status",
        "The status of the response is the one that its event is named after.",
        "Clients take a turn that is done for one that failed, or the other way round.",
        explains=("responses.incomplete-details", "calls.finish"),
    ),
    must(
        "responses.output-index",
        "Every item is announced with the next free output index, and all of its events have it.",
        "The SDK raises, or writes the arguments of one call into another.",
        required_by=f"{_SPEC}; {_SDK}",
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
    must(
        "responses.item-added",
        "Everything that is said of an item comes after `response.output_item.added`.",
        "The SDK raises on the first delta.",
        required_by=f"{_SPEC}; {_SDK}",
        explains=(
            "responses.item-closed",
            "responses.text-agrees",
            "responses.final-output",
            "responses.failed-output",
        ),
    ),
    must(
        "responses.item-keys",
        "Every item has an id and a type, a call its call_id and name, a message its role.",
        "Clients cannot tell what it is, or answer to it.",
        on="turn",
        explains=("responses.item-id", "responses.item-identity", "responses.part-order", "calls.id", "calls.name"),
    ),
    must(
        "responses.item-id",
        "An item has one id in all of its events, and no other item has it.",
        "Arguments are added to another call.",
        explains=("responses.item-identity",),
    ),
    should(
        "responses.call-id",
        "The call_id of a call is not the id of its item.",
        "The call cannot be sent back.",
        required_by="OpenAI Responses, which refuses an item id in a history that is not of its own form",
        on="turn",
        needs="call",
        explains=("responses.item-identity",),
    ),
    should(
        "responses.item-status",
        "An item is `in_progress` when it is added, and `completed` or `incomplete` when it is done; "
        "reasoning may have no status.",
        "Clients run a call too early, or never.",
        explains=("responses.final-output",),
    ),
    must(
        "responses.item-begins-empty",
        "An item that grows by deltas is empty when it is added.",
        "The SDK adds the deltas to what is there: the arguments are doubled.",
        required_by=_SDK,
    ),
    must(
        "responses.item-identity",
        "Type, id, call_id, name and role of an item never change.",
        "The call that is done is another than the one that began.",
        explains=("responses.arguments-string", "responses.final-output", "calls.id", "calls.name", "calls.json"),
    ),
    must(
        "responses.item-closed",
        "Every item is closed by `response.output_item.done`.",
        "The call is never run.",
        required_by=f"{_SPEC}; {_CODEX} runs a call when its item is done",
        explains=("responses.final-output", "choice.required", "choice.named", "parallel.calls", "stream.same"),
    ),
    must(
        "responses.closed-item",
        "Nothing is said of an item after it is done.",
        "The call has been run without it.",
        explains=("responses.text-agrees", "responses.final-output"),
    ),
    should(
        "responses.incomplete-item",
        "Only the last item of an incomplete response is incomplete.",
        "Clients run a call whose arguments were cut.",
    ),
    must(
        "responses.arguments-string",
        "The arguments of a call are text in every event.",
        "Typed clients raise.",
        required_by="OpenAI Responses",
        on="turn",
        needs="call",
        explains=("responses.call-order", "responses.text-agrees", "responses.final-output", "calls.json"),
    ),
    must(
        "responses.call-order",
        "The arguments of a call come in deltas, then whole, then in the item.",
        "Clients that follow the deltas have other arguments than clients that wait.",
        needs="call",
        explains=("responses.text-agrees", "calls.json"),
    ),
    must(
        "responses.part-order",
        "Text comes in parts: each is added, grows, is said whole and closed before the next.",
        "The SDK raises on text for which there is no part, and thoughts are lost.",
        required_by=f"{_SPEC}; {_SDK}",
        needs="text",
        explains=("responses.text-agrees",),
    ),
    must(
        "responses.part-begins-empty",
        "A part is empty when it is added.",
        "The text is doubled.",
        required_by=_SDK,
        needs="text",
    ),
    must(
        "responses.text-agrees",
        "Deltas, whole text and closed item say the same.",
        "Clients that stream see another call than clients that do not.",
        explains=("responses.final-output", "calls.json"),
    ),
    must(
        "responses.final-output",
        "The closing event of a response that did not fail holds all items, as they were when they were done.",
        "They see no calls, or others.",
        required_by=f"{_SPEC}; clients that read only the closing event",
    ),
    should(
        "responses.failed-output",
        "A failed response holds the items that were sent, the open one as incomplete.",
        "What the user has seen is gone from the history.",
        needs="error",
    ),
    must(
        "responses.object",
        "A plain answer is an object `response` with an id, a time, a model, a status, and a list of items as output.",
        "The SDK raises.",
        required_by=f"OpenAI Responses; {_VERCEL}",
        on="plain",
        explains=("usage.reported", "calls.finish"),
    ),
    must(
        "responses.part-keys",
        "Text has its `annotations`, a list.",
        "The whole answer is refused.",
        required_by=f"OpenAI Responses; {_VERCEL}",
        on="turn",
        needs="text",
    ),
    should(
        "responses.fields",
        "The response has all fields that OpenAI requires, wherever it appears: `created_at`, `model`, `tools`, "
        "`tool_choice`, `parallel_tool_calls`, `temperature`, `top_p`, `instructions`, `metadata`, `error` and "
        "`incomplete_details`.",
        "Typed clients refuse the whole turn.",
        required_by="OpenAI Responses; typed clients",
        on="turn",
    ),
    should(
        "responses.open-fields",
        "The response has the further fields that Open Responses requires, and those are not null that cannot be.",
        "Clients that are made from the specification refuse the whole turn.",
        on="turn",
    ),
    should(
        "responses.event-fields",
        "Every event has all of its fields: text its `logprobs`, the arguments of a call its `name`, an error its "
        "`code`, `message` and `param`.",
        "Typed clients drop the event: an error among them, so that the turn seems to have ended well.",
        required_by=f"OpenAI Responses; {_VERCEL}",
    ),
    should(
        "responses.echo-tools",
        "The response tells the tools, the tool choice and `parallel_tool_calls` as the request has them.",
        "Whoever reads the response back, or a log of it, sees that other tools could be called.",
        required_by=f"OpenAI Responses, {_SPEC}",
        on="turn",
    ),
    should(
        "responses.echo-sampling",
        "The response tells temperature, `top_p` and the penalties as the request has them.",
        "Nobody can tell whether they were used: a gateway that drops them looks like one that does not.",
        required_by=f"OpenAI Responses, {_SPEC}",
        on="turn",
    ),
    should(
        "responses.echo",
        "The response tells instructions, limits, metadata, `store`, `text`, the reasoning effort and the response "
        "that it continues as the request has them.",
        "Nobody can tell whether they were used; metadata by which clients find their responses is lost.",
        required_by=f"OpenAI Responses, {_SPEC}",
        on="turn",
    ),
    should(
        "responses.usage-details",
        "Tokens are reported with `input_tokens_details.cached_tokens` and `output_tokens_details.reasoning_tokens`.",
        "Typed clients raise at the end of the turn, and nobody sees what the cache saves.",
        required_by=f"OpenAI Responses, {_SPEC}; the OpenAI Agents SDK",
        on="turn",
    ),
    should(
        "responses.incomplete-details",
        "An incomplete response says why, in `incomplete_details`.",
        "Clients cannot tell a turn that met its limit from one that was filtered.",
        required_by="OpenAI Responses",
        on="turn",
    ),
    should(
        "responses.failure-event",
        "`response.failed` follows an `error` event.",
        "A turn that failed is taken for one that ended.",
        required_by=f"{_SPEC}; {_VERCEL}, which knows no other failure",
        needs="error",
    ),
    should(
        "responses.failed-error",
        "A failed response has an `error` with a code and a message.",
        "Nobody learns what went wrong, and whether to ask again.",
        required_by=f"OpenAI Responses, {_SPEC}; {_CODEX} shows it",
        on="turn",
        needs="error",
    ),
    should(
        "responses.error-object",
        "An `error` event also has an object `error` with type, code, message and param.",
        "Clients that are made from the specification see an error without words.",
        needs="error",
    ),
    should(
        "responses.sse-id",
        "Events have no SSE `id`: their sequence number is where a reader goes on.",
        "Browsers reconnect by themselves with a number that the endpoint does not know.",
    ),
)
