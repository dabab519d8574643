"""The rules of behaviour, which only a conversation with the endpoint can test."""

from functools import partial

from toolwire.check.turns.rule import ALL_APIS, must, should

_must = partial(must, on="conversation")
_should = partial(should, on="conversation")

_AGENTS = "every agent"
_ECHO = ("responses.echo-tools",)
"""A server that ignores the choice does not repeat it in the response either."""

RULES = (
    _must(
        "stream.same",
        "Streamed or not, the same request gives the same kind of turn.",
        "Calls are there in one way of asking and not in the other.",
        required_by=_AGENTS,
        explains=_ECHO,
    ),
    _must(
        "stream.disconnect",
        "A client that leaves in the middle of a stream does not disturb the next request.",
        "The server hangs, or answers one user with the turn of another.",
        required_by="servers with many users",
    ),
    _must(
        "stream.failure",
        "A turn that fails in its middle is reported as failed: by an error in the stream, or by the status.",
        "Half an answer is taken for a whole one, or for a broken connection.",
        explains=(
            "chat.finish",
            "chat.done-marker",
            "responses.closing",
            "responses.item-closed",
            "messages.closing",
            "messages.block-order",
            "stream.whole",
        ),
    ),
    _must(
        "choice.none",
        "`tool_choice` none gives no call.",
        "A tool runs that the client has forbidden.",
        explains=_ECHO,
    ),
    _must(
        "choice.required",
        "`tool_choice` required (any) gives a call.",
        "Structured output by tools, as many libraries do it, fails.",
        explains=_ECHO,
    ),
    _must(
        "choice.named",
        "A tool that is named in `tool_choice` is called, and no other.",
        "Structured output by tools, as many libraries do it, fails.",
        explains=_ECHO,
    ),
    _must(
        "choice.parallel",
        "With parallel calls switched off there is one call at most.",
        "Tools run side by side that must not.",
        explains=_ECHO,
    ),
    _should(
        "choice.allowed",
        "`allowed_tools` allows no others.",
        "A tool runs that the client has forbidden.",
        required_by="OpenAI Chat Completions, Open Responses",
        explains=_ECHO,
    ),
    _must(
        "parallel.calls",
        "Two calls of one turn arrive as two calls, each whole.",
        "One call is lost, or both become one.",
        explains=_ECHO,
    ),
    _must(
        "arguments.empty",
        "A call without arguments has the arguments `{}`.",
        "The client raises on an empty text.",
        required_by="every client: arguments are parsed before they are used",
        explains=("calls.json", "messages.input"),
    ),
    _must(
        "arguments.unicode",
        "Characters of every script and every quote and backslash arrive in arguments as they were asked for.",
        "Files get other names, and patches do not apply.",
        required_by=_AGENTS,
    ),
    _must(
        "arguments.huge",
        "Arguments of many kilobytes arrive whole.",
        "Files are cut in the middle.",
        required_by="agents that write files",
        explains=("calls.json",),
    ),
    _must(
        "arguments.cut",
        "A call that was cut by the token limit is reported as cut.",
        "Half a call is run.",
        required_by=_AGENTS,
        explains=("calls.json", "calls.finish", "responses.incomplete-item"),
    ),
    _should(
        "limits.output",
        "A text that was cut by the token limit is reported as cut.",
        "Half an answer is taken for a whole one.",
        explains=("responses.incomplete-details",),
    ),
    _must(
        "limits.input",
        "A long request is read whole, or refused with 4xx.",
        "The tools and the first instructions are forgotten, and nobody says so.",
        required_by=f"{ALL_APIS}; users of model servers with a short context",
    ),
    _must(
        "history.result",
        "A result is taken with the id of its call, and the turn goes on.",
        "The loop of an agent ends after its first call.",
    ),
    _must(
        "history.results",
        "The results of several calls are taken together, in any order.",
        "Agents with parallel calls fail in their second request.",
    ),
    _must(
        "history.error-result",
        "A result that says that the tool has failed is taken like any other.",
        "The first error of a tool ends the agent.",
    ),
    _must(
        "history.orphan-call",
        "A call without a result in the history is answered, or refused with 4xx.",
        "The conversation can never be continued.",
        required_by="agents whose user has interrupted them",
    ),
    _must(
        "history.orphan-result",
        "A result without a call in the history is answered, or refused with 4xx.",
        "The conversation can never be continued.",
        required_by="agents that shorten their history",
    ),
    _must(
        "errors.status",
        "A request that cannot be understood is refused with 4xx.",
        "Clients take the mistake for a turn, or ask again and again.",
    ),
    _must(
        "errors.form",
        "An error is JSON in the form of the API, with a message.",
        "The SDK cannot say what is wrong.",
        required_by="the OpenAI and Anthropic SDKs",
    ),
    _should(
        "errors.fields",
        "An error also has `type`, `param` and `code`, which may be null.",
        "Clients that distinguish errors by them cannot.",
        required_by="OpenAI Chat Completions, OpenAI Responses; typed clients",
    ),
    _should(
        "errors.model",
        "A model that is not there is refused with 4xx.",
        "A typing error is answered by another model.",
    ),
    _should(
        "errors.choice",
        "A `tool_choice` that names a tool that is not declared is refused with 4xx.",
        "The client waits for a call that never comes.",
    ),
    _should(
        "legacy.functions",
        "`functions` is answered with `function_call`, and with that finish reason.",
        "They see no call.",
        required_by="OpenAI Chat Completions; clients from before November 2023",
    ),
    _should(
        "state.previous",
        "`previous_response_id` continues a response that was stored, with nothing but the results.",
        "Agents that rely on it forget everything.",
        required_by="OpenAI Responses",
        explains=("responses.echo",),
    ),
    _must(
        "state.unknown",
        "An unknown `previous_response_id` is refused with 4xx.",
        "The conversation starts anew, and nobody says so.",
        required_by="Open Responses",
        explains=("responses.echo",),
    ),
    _should(
        "state.submit",
        "Where a response has a `required_action`, `submit_tool_outputs` answers it.",
        "The action can never be answered.",
        required_by="clients of the Assistants API's contract",
    ),
    _should(
        "state.resume",
        "A background response can be read again from behind any sequence number, and gives the same events.",
        "A client whose connection broke repeats or loses events.",
        required_by="OpenAI Responses",
    ),
    _must(
        "socket.turn",
        "Over a WebSocket, `response.create` is answered by a turn, each event a message with one JSON object.",
        "Agents that prefer the WebSocket see no call, or fail at their first request.",
    ),
    _must(
        "socket.continued",
        "The latest response of a connection can be continued by its id, though nothing is stored.",
        "Agents that send only what is new forget everything, or fail in their second request.",
        explains=("responses.echo",),
    ),
    _must(
        "socket.unknown",
        "An unknown `previous_response_id` is refused with the code `previous_response_not_found`.",
        "The conversation starts anew, and nobody says so.",
        explains=("responses.echo",),
    ),
    _should(
        "socket.error",
        "A refused message is answered by an `error` with status, code and message, and the next one is served.",
        "The client cannot tell whether to ask again, or waits for ever.",
    ),
    _should(
        "socket.fields",
        "`background` is refused over a WebSocket.",
        "The client waits for events of a turn that runs elsewhere.",
        required_by="Open Responses",
        explains=("responses.echo",),
    ),
    _must(
        "socket.queue",
        "Messages that wait are answered one after the other.",
        "The events of two turns are taken for one: arguments are written into another call.",
        required_by="Open Responses",
    ),
    _must(
        "compact.form",
        "`POST /responses/compact` gives a list of items with a `compaction` that has `encrypted_content`.",
        "The agent loses its history when it becomes too long.",
    ),
    _should(
        "compact.fields",
        "A compaction is a `response.compaction` with an id, a time and its usage.",
        "Typed clients refuse it, and budgets do not count it.",
    ),
    _must(
        "compact.used",
        "What came of a compaction is taken as the input of the next request.",
        "The conversation can never be continued.",
    ),
    _should(
        "compact.errors",
        "A compaction without a model is refused with 4xx.",
        "Clients take the mistake for a history.",
        required_by="Open Responses",
    ),
    _should(
        "models.listed",
        "`GET /models` lists the models.",
        "The client offers nothing.",
        required_by="OpenAI API; clients that offer a choice",
    ),
)
