"""The rules of behaviour, which only a conversation with the endpoint can test."""

from toolwire.check.turns.rule import Rule


def _must(id: str, requirement: str, source: str, harm: str, explains: tuple[str, ...] = ()) -> Rule:
    return Rule(id, "MUST", requirement, source, harm, on="conversation", explains=explains)


def _should(id: str, requirement: str, source: str, harm: str, explains: tuple[str, ...] = ()) -> Rule:
    return Rule(id, "SHOULD", requirement, source, harm, on="conversation", explains=explains)


_ALL = "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages"
_AGENTS = "every agent"
_SOCKETS = "Open Responses; Codex"
_COMPACTION = "OpenAI Responses, Open Responses; Codex"
_ECHO = ("responses.echo-tools",)
"""A server that ignores the choice does not repeat it in the response either."""

RULES = (
    _must(
        "stream.same",
        "Streamed or not, the same request gives the same kind of turn.",
        _AGENTS,
        "Calls are there in one way of asking and not in the other.",
        explains=_ECHO,
    ),
    _must(
        "stream.disconnect",
        "A client that leaves in the middle of a stream does not disturb the next request.",
        "servers with many users",
        "The server hangs, or answers one user with the turn of another.",
    ),
    _must(
        "stream.failure",
        "A turn that fails in its middle is reported as failed: by an error in the stream, or by the status.",
        _ALL,
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
        _ALL,
        "A tool runs that the client has forbidden.",
        explains=_ECHO,
    ),
    _must(
        "choice.required",
        "`tool_choice` required (any) gives a call.",
        _ALL,
        "Structured output by tools, as many libraries do it, fails.",
        explains=_ECHO,
    ),
    _must(
        "choice.named",
        "A tool that is named in `tool_choice` is called, and no other.",
        _ALL,
        "Structured output by tools, as many libraries do it, fails.",
        explains=_ECHO,
    ),
    _must(
        "choice.parallel",
        "With parallel calls switched off there is one call at most.",
        _ALL,
        "Tools run side by side that must not.",
        explains=_ECHO,
    ),
    _should(
        "choice.allowed",
        "`allowed_tools` allows no others.",
        "OpenAI Chat Completions, Open Responses",
        "A tool runs that the client has forbidden.",
        explains=_ECHO,
    ),
    _must(
        "parallel.calls",
        "Two calls of one turn arrive as two calls, each whole.",
        _ALL,
        "One call is lost, or both become one.",
        explains=_ECHO,
    ),
    _must(
        "arguments.empty",
        "A call without arguments has the arguments `{}`.",
        "every client: arguments are parsed before they are used",
        "The client raises on an empty text.",
        explains=("calls.json", "messages.input"),
    ),
    _must(
        "arguments.unicode",
        "Characters of every script and every quote and backslash arrive in arguments as they were asked for.",
        _AGENTS,
        "Files get other names, and patches do not apply.",
    ),
    _must(
        "arguments.huge",
        "Arguments of many kilobytes arrive whole.",
        "agents that write files",
        "Files are cut in the middle.",
        explains=("calls.json",),
    ),
    _must(
        "arguments.cut",
        "A call that was cut by the token limit is reported as cut.",
        _AGENTS,
        "Half a call is run.",
        explains=("calls.json", "calls.finish", "responses.incomplete-item"),
    ),
    _should(
        "limits.output",
        "A text that was cut by the token limit is reported as cut.",
        _ALL,
        "Half an answer is taken for a whole one.",
        explains=("responses.incomplete-details",),
    ),
    _must(
        "limits.input",
        "A long request is read whole, or refused with 4xx.",
        f"{_ALL}; users of model servers with a short context",
        "The tools and the first instructions are forgotten, and nobody says so.",
    ),
    _must(
        "history.result",
        "A result is taken with the id of its call, and the turn goes on.",
        _ALL,
        "The loop of an agent ends after its first call.",
    ),
    _must(
        "history.results",
        "The results of several calls are taken together, in any order.",
        _ALL,
        "Agents with parallel calls fail in their second request.",
    ),
    _must(
        "history.error-result",
        "A result that says that the tool has failed is taken like any other.",
        _ALL,
        "The first error of a tool ends the agent.",
    ),
    _must(
        "history.orphan-call",
        "A call without a result in the history is answered, or refused with 4xx.",
        "agents whose user has interrupted them",
        "The conversation can never be continued.",
    ),
    _must(
        "history.orphan-result",
        "A result without a call in the history is answered, or refused with 4xx.",
        "agents that shorten their history",
        "The conversation can never be continued.",
    ),
    _must(
        "errors.status",
        "A request that cannot be understood is refused with 4xx.",
        _ALL,
        "Clients take the mistake for a turn, or ask again and again.",
    ),
    _must(
        "errors.form",
        "An error is JSON in the form of the API, with a message.",
        "the OpenAI and Anthropic SDKs",
        "The SDK cannot say what is wrong.",
    ),
    _should(
        "errors.fields",
        "An error also has `type`, `param` and `code`, which may be null.",
        "OpenAI Chat Completions, OpenAI Responses; typed clients",
        "Clients that distinguish errors by them cannot.",
    ),
    _should(
        "errors.model",
        "A model that is not there is refused with 4xx.",
        _ALL,
        "A typing error is answered by another model.",
    ),
    _should(
        "errors.choice",
        "A `tool_choice` that names a tool that is not declared is refused with 4xx.",
        _ALL,
        "The client waits for a call that never comes.",
    ),
    _should(
        "legacy.functions",
        "`functions` is answered with `function_call`, and with that finish reason.",
        "OpenAI Chat Completions; clients from before November 2023",
        "They see no call.",
    ),
    _should(
        "state.previous",
        "`previous_response_id` continues a response that was stored, with nothing but the results.",
        "OpenAI Responses",
        "Agents that rely on it forget everything.",
        explains=("responses.echo",),
    ),
    _must(
        "state.unknown",
        "An unknown `previous_response_id` is refused with 4xx.",
        "Open Responses",
        "The conversation starts anew, and nobody says so.",
        explains=("responses.echo",),
    ),
    _should(
        "state.submit",
        "Where a response has a `required_action`, `submit_tool_outputs` answers it.",
        "clients of the Assistants API's contract",
        "The action can never be answered.",
    ),
    _should(
        "state.resume",
        "A background response can be read again from behind any sequence number, and gives the same events.",
        "OpenAI Responses",
        "A client whose connection broke repeats or loses events.",
    ),
    _must(
        "socket.turn",
        "Over a WebSocket, `response.create` is answered by a turn, each event a message with one JSON object.",
        _SOCKETS,
        "Agents that prefer the WebSocket see no call, or fail at their first request.",
    ),
    _must(
        "socket.continued",
        "The latest response of a connection can be continued by its id, though nothing is stored.",
        _SOCKETS,
        "Agents that send only what is new forget everything, or fail in their second request.",
        explains=("responses.echo",),
    ),
    _must(
        "socket.unknown",
        "An unknown `previous_response_id` is refused with the code `previous_response_not_found`.",
        _SOCKETS,
        "The conversation starts anew, and nobody says so.",
        explains=("responses.echo",),
    ),
    _should(
        "socket.error",
        "A refused message is answered by an `error` with status, code and message, and the next one is served.",
        _SOCKETS,
        "The client cannot tell whether to ask again, or waits for ever.",
    ),
    _should(
        "socket.fields",
        "`background` is refused over a WebSocket.",
        "Open Responses",
        "The client waits for events of a turn that runs elsewhere.",
        explains=("responses.echo",),
    ),
    _must(
        "socket.queue",
        "Messages that wait are answered one after the other.",
        "Open Responses",
        "The events of two turns are taken for one: arguments are written into another call.",
    ),
    _must(
        "compact.form",
        "`POST /responses/compact` gives a list of items with a `compaction` that has `encrypted_content`.",
        _COMPACTION,
        "The agent loses its history when it becomes too long.",
    ),
    _should(
        "compact.fields",
        "A compaction is a `response.compaction` with an id, a time and its usage.",
        _COMPACTION,
        "Typed clients refuse it, and budgets do not count it.",
    ),
    _must(
        "compact.used",
        "What came of a compaction is taken as the input of the next request.",
        _COMPACTION,
        "The conversation can never be continued.",
    ),
    _should(
        "compact.errors",
        "A compaction without a model is refused with 4xx.",
        "Open Responses",
        "Clients take the mistake for a history.",
    ),
    _should(
        "models.listed",
        "`GET /models` lists the models.",
        "OpenAI API; clients that offer a choice",
        "The client offers nothing.",
    ),
)
