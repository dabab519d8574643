"""Which stages a turn passes through, in order. Reading the list in `policies_for` is reading the design."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from toolwire.adapt.arguments import ArgumentJudge, ArgumentsRule, CheckArguments, RepairArguments, Validate
from toolwire.adapt.history import HistoryRule, repair_pairs
from toolwire.core.call_index import minted_prefix
from toolwire.core.errors import BadRequest
from toolwire.core.events import Note
from toolwire.core.notes import PassingStats, StopMode, TurnStats
from toolwire.core.policies import (
    CapCalls,
    DropDuplicates,
    DropStrayOutputs,
    FailOnBrokenBlock,
    FinishAfterCalls,
    FinishReason,
    HoldCall,
    InferMissingName,
    NoteMissingCall,
    OnlyAllowed,
    Policies,
    Policy,
    ReportTwins,
    StopAfterBurst,
    StopAfterFirstCall,
    SuppressTail,
)
from toolwire.core.request import SEARCH, Request, ToolChoice
from toolwire.notations.read import ReadTextCalls
from toolwire.notations.tool_call import TOOL_CALL
from toolwire.notations.use_tool import USE_TOOL, WriteUseTool
from toolwire.notations.values import Schemas

OutputMode: TypeAlias = Literal["openai-json", "obsidian-xml"]
OutputModeSetting: TypeAlias = Literal["auto", "openai-json", "obsidian-xml"]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class ToolRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How calls are carried: the `[tools]` table of the configuration and the PROXY_* flags."""

    output_mode: OutputModeSetting = "auto"
    stop_after: bool = False
    stop_after_mode: StopMode = "burst"
    stop_after_grace_ms: Count = 300
    suppress_tail: bool | None = None
    max_calls: Count = 0
    dedup: bool = False
    delimiter: str = "\n\n"
    parallel: bool | None = None
    name_fallback: Literal["", "position"] = ""
    history: HistoryRule = "repair"
    unsupported: Literal["note", "reject"] = "note"
    finish_after_calls: bool = False
    strict_parsing: bool = False
    responses_events: Literal["openai", "extended"] = "openai"
    arguments: ArgumentsRule = "pass"


def output_mode(rules: ToolRules, request: Request) -> OutputMode:
    """`auto`: tools declared → structured; none and the prompt mentions `<use_tool>` → text; else structured."""
    if rules.output_mode != "auto":
        return rules.output_mode
    if not request.tools and request.prompt_mentions(USE_TOOL.open):
        return "obsidian-xml"
    return "openai-json"


def without_search(request: Request) -> Request:
    """The request for a backend that does not search for tools: the model sees all of them from the start."""
    if not any(tool.searches for tool in request.hosted_tools):
        return request
    dropped = [tool.type for tool in request.hosted_tools if tool.searches]
    choice = request.tool_choice
    if choice is not None and choice.hosted is not None and b'"' + SEARCH.encode() in bytes(choice.hosted):
        raise _unmet_choice()
    return msgspec.structs.replace(
        request,
        tools=tuple(tool.shown for tool in request.tools),
        hosted_tools=tuple(tool for tool in request.hosted_tools if not tool.searches),
        tools_changed=True,
        notes=(*request.notes, *(Note("tool_dropped", type) for type in dropped)),
    )


def without_hosted_tools(request: Request, rules: ToolRules, hosts: Sequence[str] = ()) -> Request:
    """The request for a backend that runs only these types of tools itself: others are left out, or refused."""
    if not request.hosted_tools:
        return request
    kept = tuple(tool for tool in request.hosted_tools if tool.type in hosts)
    dropped = [tool.type for tool in request.hosted_tools if tool.type not in hosts]
    if not dropped:
        return request
    if rules.unsupported == "reject":
        raise BadRequest(f"tools: This model has no tool of the type {dropped[0]!r}.", "tools", "unsupported_tool")
    notes = [Note("tool_dropped", type) for type in dropped]
    choice = request.tool_choice
    if choice is not None and _asks_for_dropped(choice, [*request.tools, *kept], hosts):
        raise _unmet_choice()
    return msgspec.structs.replace(request, hosted_tools=kept, notes=(*request.notes, *notes))


def _unmet_choice() -> BadRequest:
    return BadRequest("tool_choice asks for a tool that this model does not have.", "tool_choice", "unsupported_tool")


def _asks_for_dropped(choice: ToolChoice, left: Sequence[object], hosts: Sequence[str]) -> bool:
    """Whether a choice cannot be met by the tools that are left."""
    if choice.hosted is not None:
        return msgspec.json.decode(choice.hosted, type=dict[str, Any]).get("type") not in hosts
    return choice.mode == "required" and not left


class Reader(msgspec.Struct, frozen=True):
    """Who reads the events of a turn, as far as policies depend on it."""

    shows_results: bool = True
    """The backend's output may hold results of calls, which only a client of its dialect would see."""
    text_calls: bool | None = None
    """Whether calls that are written in the text are read; None: as the request and the output mode ask."""
    keeps_notes: bool = False
    """Notes stay among the events; otherwise they are only counted."""


CLIENT = Reader()


class Assembly(msgspec.Struct, frozen=True):
    """The policies of one turn, and the two of them that the reader of the turn needs."""

    policies: Policies
    stats: TurnStats
    burst: StopAfterBurst | None


def policies_for(
    request: Request,
    rules: ToolRules,
    seed: str,
    report_twin: Callable[[str, str], object],
    last: Sequence[Policy] = (),
    validate: Validate | None = None,
    reader: Reader = CLIENT,
) -> Assembly:
    """The policies for this request, followed by `last`.

    `report_twin` is called with a backend's call that is not delivered, and the call that stands for it. `validate`
    checks arguments; without it they pass as they are.
    """
    mode = output_mode(rules, request)
    limit = 1 if request.parallel_calls is False or rules.parallel is False else rules.max_calls
    stats = (PassingStats if reader.keeps_notes else TurnStats)(rules.stop_after_mode)
    for note in request.notes:
        stats.note(note)
    names = request.tool_names
    policies: list[Policy] = [DropStrayOutputs()] if reader.shows_results else []
    policies.append(InferMissingName(names, request.forced_tool, rules.name_fallback))
    holding: list[ReadTextCalls | HoldCall] = []
    reads_text = request.wants_calls or (mode == "obsidian-xml" and not request.tools)
    if reads_text if reader.text_calls is None else reader.text_calls:
        declared = names if request.tools else None
        holding.append(ReadTextCalls((USE_TOOL, TOOL_CALL), seed, Schemas(request.tools), declared))
    if rules.dedup or mode == "obsidian-xml":
        holding.append(DropDuplicates(minted_prefix(seed)) if rules.dedup else HoldCall())
    policies += holding
    if rules.strict_parsing:
        policies.append(FailOnBrokenBlock())
    policies += _choosing(request)
    if limit:
        policies.append(CapCalls(limit))
    policies += _judging(request, rules, validate)
    policies += _after_calls(rules, mode)
    burst = StopAfterBurst(holding) if rules.stop_after else None
    if burst is not None:
        policies.append(burst)
    if mode == "obsidian-xml":
        policies.append(WriteUseTool(rules.delimiter))
    if rules.finish_after_calls:
        policies.append(FinishAfterCalls())
    policies += (*last, ReportTwins(report_twin), FinishReason(stats), stats)
    return Assembly(Policies(*policies), stats, burst)


def _after_calls(rules: ToolRules, mode: OutputMode) -> Sequence[Policy]:
    """What may follow the first call. A client that reads `<use_tool>` would show all of it."""
    if rules.stop_after and rules.stop_after_mode == "first":
        return (StopAfterFirstCall(),)
    suppressed = mode == "obsidian-xml" if rules.suppress_tail is None else rules.suppress_tail
    return (SuppressTail(),) if rules.stop_after or suppressed else ()


def _choosing(request: Request) -> Sequence[Policy]:
    """The policies that enforce the tool choice, which a backend may not support or obey."""
    choice = request.tool_choice
    if choice is None or choice.hosted is not None:
        return ()
    policies: list[Policy] = []
    if choice.name or choice.limited or choice.mode == "none":
        policies.append(OnlyAllowed((choice.name,) if choice.name else request.tool_names if choice.limited else ()))
    if choice.name or (choice.mode == "required" and not request.hosted_tools):
        policies.append(NoteMissingCall(choice.name))
    return policies


def _judging(request: Request, rules: ToolRules, validate: Validate | None) -> Sequence[Policy]:
    if rules.arguments == "pass" or validate is None:
        return ()
    kind = CheckArguments if rules.arguments == "check" else RepairArguments
    return (kind(ArgumentJudge(request.tools, validate)),)


def request_for_backend(
    request: Request,
    rules: ToolRules,
    kind: str,
    *,
    hosts_tools: Sequence[str] = (),
    hosts: Sequence[str] = (),
    search: str = "",
    results_anywhere: bool = False,
) -> Request:
    """The request for a backend of this kind, with the operator's rules applied and without tools it does not have.

    `hosts_tools`: the dialects whose names for hosted tools it knows. `hosts`: the types of such tools that it takes
    from clients of its own dialect. `search`: the dialect whose search for tools it knows.
    """
    request = apply_rules(request, rules, results_anywhere=results_anywhere)
    if not search or search != request.dialect or "tool_search" in request.without:
        request = without_search(request)
    if request.dialect not in hosts_tools:
        request = without_hosted_tools(request, rules, hosts if request.dialect == kind else ())
    if not request.tools and not request.hosted_tools and request.tool_choice is not None:
        request = msgspec.structs.replace(request, tool_choice=None)  # of nothing, which some servers refuse
    return request


def apply_rules(request: Request, rules: ToolRules, *, results_anywhere: bool = True) -> Request:
    """The request with the operator's rules applied: calls and results paired, parallel calls as configured.

    `results_anywhere`: the backend lets results stand anywhere behind their calls.
    """
    field = request.history_field
    try:
        moves = not (request.results_anywhere and results_anywhere)
        entries, notes = repair_pairs(request.entries, rules.history, moves=moves)
    except BadRequest as error:
        raise BadRequest(f"{field}: {error.message}", field) from None
    for note in notes:
        if request.continues and note.code in ("result_dropped", "result_as_message"):
            message = f"{field}: There is no call {note.subject!r} in this chain of responses."
            raise BadRequest(message, field, "call_not_found")
    parallel = request.parallel_calls if rules.parallel is None or not request.tools else rules.parallel
    if not notes and parallel == request.parallel_calls:
        return request
    return msgspec.structs.replace(request, entries=entries, notes=(*request.notes, *notes), parallel_calls=parallel)
