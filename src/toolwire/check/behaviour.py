"""The rules of behaviour: what only a conversation can show."""

from toolwire.check.turns.rule import Rule


def _must(id: str, says: str, source: str, harm: str) -> Rule:
    return Rule(id, "MUST", says, source, harm, on="talk")


def _should(id: str, says: str, source: str, harm: str) -> Rule:
    return Rule(id, "SHOULD", says, source, harm, on="talk")


_ALL = "OpenAI Chat Completions, OpenAI Responses, Anthropic Messages"
_AGENTS = "every agent"

RULES = (
    _must(
        "stream.same",
        "Streamed or not, the same request gives the same kind of turn.",
        _AGENTS,
        "Calls are there in one way of asking and not in the other.",
    ),
    _must(
        "stream.disconnect",
        "A client that leaves in the middle of a stream does not disturb the next request.",
        "servers with many users",
        "The server hangs, or answers one user with the turn of another.",
    ),
    _must(
        "stream.failure",
        "A turn that fails in its middle is told as failed.",
        _ALL,
        "Half an answer is taken for a whole one.",
    ),
    _must(
        "choice.none",
        "`tool_choice` none gives no call.",
        _ALL,
        "A tool runs that the client has forbidden.",
    ),
    _must(
        "choice.required",
        "`tool_choice` required (any) gives a call.",
        _ALL,
        "Structured output by tools, as many libraries do it, fails.",
    ),
    _must(
        "choice.named",
        "A tool that is named in `tool_choice` is called, and no other.",
        _ALL,
        "Structured output by tools, as many libraries do it, fails.",
    ),
    _must(
        "choice.parallel",
        "With parallel calls switched off there is one call at most.",
        _ALL,
        "Tools run side by side that must not.",
    ),
    _should(
        "choice.allowed",
        "`allowed_tools` allows no others.",
        "OpenAI Chat Completions, Open Responses",
        "A tool runs that the client has forbidden.",
    ),
    _must(
        "parallel.calls",
        "Two calls of one turn arrive as two calls, each whole.",
        _ALL,
        "One call is lost, or both become one.",
    ),
    _must(
        "arguments.empty",
        "A call without arguments has the arguments `{}`.",
        "every client: arguments are parsed before they are used",
        "The client raises on an empty text.",
    ),
    _must(
        "arguments.unicode",
        "Letters of every script and every quote and backslash arrive in arguments as they were asked for.",
        _AGENTS,
        "Files get other names, and patches do not apply.",
    ),
    _must(
        "arguments.huge",
        "Arguments of many kilobytes arrive whole.",
        "agents that write files",
        "Files are cut in the middle.",
    ),
    _must(
        "arguments.cut",
        "A call that was cut by the token limit is told as cut.",
        _AGENTS,
        "Half a call is run.",
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
        "Clients that tell errors apart by them cannot.",
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
    ),
    _must(
        "state.unknown",
        "An unknown `previous_response_id` is refused with 4xx.",
        "Open Responses",
        "The conversation starts anew, and nobody says so.",
    ),
    _should(
        "state.submit",
        "Where a response has a `required_action`, `submit_tool_outputs` answers it.",
        "clients of the Assistants API's contract",
        "The action can never be answered.",
    ),
    _should(
        "models.listed",
        "`GET /models` lists the models.",
        "OpenAI API; clients that offer a choice",
        "The client offers nothing.",
    ),
)
