"""The rules of behaviour, which only a conversation with the endpoint can test."""

from functools import partial

from toolwire.check.turns.rule import ALL_APIS, CALL_ARGUMENTS, CALL_NAME, FINISH, must, should

_must = partial(must, on="conversation")
_should = partial(should, on="conversation")

_AGENTS = "every agent"
_ECHO = ("responses.echo-tools",)
"""A server that ignores the choice does not repeat it in the response either."""
_IGNORED = ("choice.allowed", "errors.choice", "responses.echo-tools")
"""The rules that a server breaks as well if it ignores `tool_choice` altogether."""

RULES = (
    _must(
        "stream.same",
        "Streamed or not, the same request gives the same kind of turn.",
        "Agents get calls in one way of asking and none in the other.",
        required_by=_AGENTS,
        explains=_ECHO,
    ),
    _must(
        "stream.disconnect",
        "A client that leaves in the middle of a stream does not disturb the next request.",
        "The next user waits for ever, or gets the turn of another.",
        required_by="servers with many users",
    ),
    _must(
        "stream.failure",
        "A turn that fails in its middle is reported as failed: by an error in the stream, or by the status.",
        "Users take half an answer for a whole one, or clients take it for a broken connection.",
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
        "Users have a tool run that their client has forbidden.",
        fields=("tool_choice", *CALL_NAME),
        explains=_ECHO,
        implies=_IGNORED,
    ),
    _must(
        "choice.required",
        "`tool_choice` required (any) gives a call.",
        "Applications that get structured output by a forced call get text instead, and fail.",
        fields=("tool_choice",),
        explains=_ECHO,
    ),
    _must(
        "choice.named",
        "A tool that is named in `tool_choice` is called, and no other.",
        "Applications that get structured output by a forced call get another call or text instead, and fail.",
        fields=("tool_choice", *CALL_NAME),
        explains=_ECHO,
        implies=_IGNORED,
    ),
    _must(
        "choice.parallel",
        "With parallel calls switched off there is one call at most.",
        "Agents run tools side by side that must not be, and one spoils the work of the other.",
        fields=("parallel_tool_calls", "disable_parallel_tool_use", *CALL_NAME),
        explains=_ECHO,
    ),
    _should(
        "choice.allowed",
        "`allowed_tools` allows no others.",
        "Users have a tool run that their client has forbidden.",
        required_by="OpenAI Chat Completions, Open Responses",
        fields=("tool_choice", *CALL_NAME),
        explains=_ECHO,
    ),
    _must(
        "parallel.calls",
        "Two calls of one turn arrive as two calls, each whole.",
        "Agents lose one of the calls, or run both as one.",
        fields=CALL_ARGUMENTS,
        explains=_ECHO,
    ),
    _must(
        "arguments.empty",
        "A call without arguments has the arguments `{}`.",
        "Clients raise on an empty text.",
        required_by="every client: arguments are parsed before they are used",
        fields=CALL_ARGUMENTS,
        explains=("calls.json", "messages.input"),
    ),
    _must(
        "arguments.unicode",
        "Characters of every script and every quote and backslash arrive in arguments as they were asked for.",
        "Users of coding agents get files with other names, and patches that do not apply.",
        required_by=_AGENTS,
        fields=CALL_ARGUMENTS,
    ),
    _must(
        "arguments.huge",
        "Arguments of many kilobytes arrive whole.",
        "Users of coding agents get files that are cut in the middle.",
        required_by="agents that write files",
        fields=CALL_ARGUMENTS,
        explains=("calls.json",),
    ),
    _must(
        "arguments.cut",
        "A call that was cut by the token limit is reported as cut.",
        "Agents run half a call.",
        required_by=_AGENTS,
        fields=FINISH,
        explains=("calls.json", "calls.finish", "responses.incomplete-item"),
    ),
    _should(
        "limits.output",
        "A text that was cut by the token limit is reported as cut.",
        "Users take half an answer for a whole one.",
        fields=FINISH,
        explains=("responses.incomplete-details",),
    ),
    _must(
        "limits.input",
        "A long request is read whole, or refused with 4xx.",
        "The model forgets the tools and the first instructions, and nobody tells the user.",
        required_by=f"{ALL_APIS}; users of model servers with a short context",
        fields=("usage",),
    ),
    _must(
        "history.result",
        "A result is taken with the id of its call, and the turn goes on.",
        "Agents end after their first call.",
    ),
    _must(
        "history.results",
        "The results of several calls are taken together, in any order.",
        "Agents with parallel calls fail in their second request.",
    ),
    _must(
        "history.error-result",
        "A result that says that the tool has failed is taken like any other.",
        "Agents end at the first error of a tool.",
    ),
    _must(
        "history.orphan-call",
        "A call without a result in the history is answered, or refused with 4xx.",
        "Users who interrupted an agent can never continue the conversation.",
        required_by="agents whose user has interrupted them",
    ),
    _must(
        "history.orphan-result",
        "A result without a call in the history is answered, or refused with 4xx.",
        "Users of agents that shorten their history can never continue the conversation.",
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
        "The vendors' SDKs cannot tell the user what is wrong.",
        required_by="the OpenAI and Anthropic SDKs",
        fields=("error", "detail"),
    ),
    _should(
        "errors.fields",
        "An error also has `type`, `param` and `code`, which may be null.",
        "Typed clients raise on the error itself, and others cannot tell one error from another.",
        required_by="OpenAI Chat Completions, OpenAI Responses; typed clients",
        fields=("error",),
    ),
    _should(
        "errors.model",
        "A model that is not there is refused with 4xx.",
        "A user who mistypes a name gets, and pays for, another model without knowing it.",
        fields=("model",),
    ),
    _should(
        "errors.choice",
        "A `tool_choice` that names a tool that is not declared is refused with 4xx.",
        "Clients wait for a call that never comes.",
        fields=("tool_choice",),
    ),
    _should(
        "legacy.functions",
        "`functions` is answered with `function_call`, and with that finish reason.",
        "Clients from before November 2023 see no call.",
        required_by="OpenAI Chat Completions; clients from before November 2023",
        fields=("functions", "tool_calls", "finish_reason"),
    ),
    _should(
        "state.previous",
        "`previous_response_id` continues a response that was stored, with nothing but the results.",
        "Agents that send only what is new forget everything.",
        required_by="OpenAI Responses",
        fields=("previous_response_id",),
        explains=("responses.echo",),
    ),
    _must(
        "state.unknown",
        "An unknown `previous_response_id` is refused with 4xx.",
        "Users see an agent forget the conversation, and nobody says so.",
        required_by="Open Responses",
        fields=("previous_response_id",),
        explains=("responses.echo",),
    ),
    _should(
        "state.submit",
        "Where a response has a `required_action`, `submit_tool_outputs` answers it.",
        "Clients of the Assistants API's contract can never answer the action.",
        required_by="clients of the Assistants API's contract",
    ),
    _should(
        "state.resume",
        "A background response can be read again from behind any sequence number, and gives the same events.",
        "Clients whose connection broke repeat or lose events.",
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
        fields=("previous_response_id",),
        explains=("responses.echo",),
    ),
    _must(
        "socket.separate",
        "A response that is not stored can be continued on its own connection only.",
        "Agents read, or continue, the conversation of another one.",
        required_by="Open Responses",
        fields=("previous_response_id",),
        explains=("responses.echo",),
    ),
    _must(
        "socket.evicted",
        "After a continuation that was refused, the response that it referred to can no longer be continued.",
        "Agents go on from a state that the server and the client see differently.",
        required_by="Open Responses",
        fields=("previous_response_id",),
        explains=("responses.echo",),
    ),
    _must(
        "socket.unknown",
        "An unknown `previous_response_id` is refused with the code `previous_response_not_found`.",
        "Users see an agent forget the conversation, and nobody says so.",
        fields=("previous_response_id", "code"),
        explains=("responses.echo",),
    ),
    _should(
        "socket.error",
        "A refused message is answered by an `error` with status, code and message, and the next one is served.",
        "Clients cannot tell whether to ask again, or wait for ever.",
    ),
    _should(
        "socket.fields",
        "`background` is refused over a WebSocket.",
        "Clients wait for events of a turn that runs elsewhere.",
        required_by="Open Responses",
        fields=("background",),
        explains=("responses.echo",),
    ),
    _must(
        "socket.queue",
        "Messages that wait are answered one after the other.",
        "Clients take the events of two turns for one, and write arguments into another call.",
        required_by="Open Responses",
    ),
    _must(
        "compact.form",
        "`POST /responses/compact` gives a list of items with a `compaction` that has `encrypted_content`.",
        "Agents lose their history when it becomes too long.",
        fields=("output",),
    ),
    _should(
        "compact.fields",
        "A compaction is a `response.compaction` with an id, a time and its usage.",
        "Typed clients refuse the compaction, and operators' budgets do not count it.",
    ),
    _must(
        "compact.used",
        "What came of a compaction is taken as the input of the next request.",
        "Users of agents with a long history can never continue the conversation.",
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
        "Users of clients that offer a choice of models are offered nothing.",
        required_by="OpenAI API; clients that offer a choice",
    ),
)
