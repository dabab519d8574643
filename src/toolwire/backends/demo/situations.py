"""The turns of the demo models: `demo` behaves, and `demo-SITUATION` plays a case that clients should handle."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from toolwire.backends.demo.plan import PlannedCall, TurnPlan
from toolwire.backends.demo.prompt import UserPrompt
from toolwire.backends.demo.writer import DemoWriter
from toolwire.core.backend import Break, Refuse, Step, Wait
from toolwire.core.request import Tool
from toolwire.notations.use_tool import write_use_tool

Situation: TypeAlias = Callable[[TurnPlan, DemoWriter], Iterator[Step]]

_json = msgspec.json.encode
_DEMO_TOOL = Tool("demo_tool")
"""The tool that is called if none is declared."""


def play_usual(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    if plan.results or plan.choice is None:
        yield from writer.text(plan.answer())
    else:
        yield from writer.reason(plan.choice[1])
        calls = plan.calls()
        remarks = dict.fromkeys(call.remark for call in calls if call.remark)
        if remarks:
            yield from writer.text("\n".join(remarks))
        for call in calls:
            yield from writer.call(call.tool, call.text)
    yield writer.complete()


def _unless_answered(situation: Situation) -> Situation:
    """The situation, or an answer if the history ends with results, so that an agent's loop ends."""
    return lambda plan, writer: play_usual(plan, writer) if plan.results else situation(plan, writer)


def play_slow(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    for step in play_usual(plan, writer):
        yield step
        yield Wait(0.1)


def play_error(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield Refuse(503, b'{"error":{"message":"The demo model is overloaded.","code":"server_is_overloaded"}}')


def play_rate_limit(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    body = b'{"error":{"message":"The demo model is busy.","type":"rate_limit_error","code":"rate_limit_exceeded"}}'
    yield Refuse(429, body, {"retry-after": "60"})


def play_error_middle(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    yield from writer.text("This answer will not be finished,")
    error = {"code": "server_error", "message": "The demo model broke down."}
    yield writer.event("response.failed", response={"status": "failed", "error": error})


def play_cut(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    call = _any_call(plan)
    steps = list(writer.call(call.tool, call.text))
    yield from steps[: max(2, len(steps) // 2)]
    yield Break()


def play_huge(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    yield from writer.call(_any_call(plan).tool, _json({"content": "0123456789abcdef" * 65536}).decode(), step=4096)
    yield writer.complete()


def play_parallel(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    for number in range(3):
        call = PlannedCall(_DEMO_TOOL, _json({"number": number + 1}).decode())
        if plan.ranked:  # each call has other arguments where the tool takes a text
            other = UserPrompt('"{} {}"'.format(plan.prompt.whole.replace('"', "'"), number + 1))
            ability = plan.ranked[number % len(plan.ranked)]
            call = next(plan.calls_of(ability, other if number else plan.prompt, 1))
        yield from writer.call(call.tool, call.text)
    yield writer.complete()


def play_use_tool(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    call = _any_call(plan)
    yield from writer.text(f"Let me look.\n\n{write_use_tool(call.tool.name, call.text).text}\n")
    yield writer.complete()


def play_refusal(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    yield from writer.refuse("I cannot help with that.")
    yield writer.complete()


def play_length(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    call = _any_call(plan)
    return _reach_limit(writer, [*writer.call(call.tool, call.text, step=4)][:3])


def play_short(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    steps = [*writer.text(plan.answer())]
    return _reach_limit(writer, steps[: max(2, len(steps) // 2)])


def _reach_limit(writer: DemoWriter, steps: Sequence[Step]) -> Iterator[Step]:
    yield writer.created()
    yield from steps
    yield writer.complete("incomplete", incomplete_details={"reason": "max_output_tokens"}, output=[])


def play_silent(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    yield writer.created()
    yield Wait(3600)


def _any_call(plan: TurnPlan) -> PlannedCall:
    if not plan.ranked:
        return PlannedCall(_DEMO_TOOL, _json({"query": plan.words}).decode())
    return next(plan.calls_of(plan.ranked[0], plan.prompt, 1))


SITUATIONS: dict[str, Situation] = {
    "": play_usual,
    "slow": play_slow,
    "error": play_error,
    "rate-limit": play_rate_limit,
    "error-middle": play_error_middle,
    "cut": play_cut,
    "huge": _unless_answered(play_huge),
    "parallel": _unless_answered(play_parallel),
    "use-tool": _unless_answered(play_use_tool),
    "refusal": play_refusal,
    "length": play_length,
    "short": play_short,
    "silent": play_silent,
}
"""The situations by the name in `demo-NAME`."""

MODELS = tuple("demo" if not name else f"demo-{name}" for name in SITUATIONS)
