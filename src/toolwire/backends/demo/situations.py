"""The turns of the demo models: `demo` behaves, and `demo-SITUATION` plays a case that clients should handle."""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import groupby
from typing import TypeAlias

import msgspec

from toolwire.adapt.arguments import Validate
from toolwire.backends.demo.arguments import PlannedCall, plan_calls
from toolwire.backends.demo.choosing import Ability, choose
from toolwire.backends.demo.history import demands_call, find_directory, find_prompt, find_results
from toolwire.backends.demo.prompt import UserPrompt
from toolwire.backends.demo.writer import DemoWriter
from toolwire.core.backend import Break, Refuse, Step, Wait
from toolwire.core.request import Request, Tool
from toolwire.notations import use_tool

_DEMO_TOOL = Tool("demo_tool")
"""The tool that is called if none is declared."""


class TurnPlan:
    """A request as the demo model understands it."""

    def __init__(self, request: Request, validate: Validate) -> None:
        self._request = request
        self._validate = validate
        self.results = find_results(request)
        self.words = find_prompt(request)

    @cached_property
    def prompt(self) -> UserPrompt:
        """The user's words, split into tokens."""
        return UserPrompt(self.words)

    @cached_property
    def abilities(self) -> list[Ability]:
        """The tools that it may call."""
        if not self._request.wants_calls:
            return []
        forced = self._request.forced_tool
        names = (forced,) if forced else self._request.tool_names
        return [Ability(tool) for tool in self._request.tools if tool.name in names]

    @cached_property
    def ranked(self) -> list[Ability]:
        """The tools for a turn that needs a call: the one that fits, then the harmless ones, or else all."""
        chosen = choose(self.prompt, self.abilities)
        first = [chosen[0]] if chosen is not None else []
        harmless = [ability for ability in self.abilities if ability.is_harmless and ability not in first]
        return [*first, *harmless] or self.abilities

    @cached_property
    def choice(self) -> tuple[Ability, str] | None:
        """The tool to call, if one fits or there must be a call, and the reason."""
        chosen = choose(self.prompt, self.abilities)
        if chosen is None and self.abilities and demands_call(self._request):
            return self.ranked[0], f"The request demands a call, so {self.ranked[0].tool.name} is called."
        return chosen

    def make_calls(self, ability: Ability, prompt: UserPrompt | None = None) -> list[PlannedCall]:
        """The calls of one tool that the user's prompt, or this one, asks for."""
        max_calls = 1 if self._request.parallel_calls is False else 2
        return plan_calls(ability, prompt or self.prompt, find_directory(self._request), max_calls, self._validate)

    def make_any_call(self, **arguments: object) -> PlannedCall:
        """One call of any tool; if none can be called, of an undeclared one with these arguments."""
        if self.ranked:
            return self.make_calls(self.ranked[0])[0]
        return PlannedCall(_DEMO_TOOL, msgspec.json.encode(arguments or {"query": self.words}).decode())

    def answer(self) -> str:
        """The answer in words: the results, each with the name of its tool, or an introduction."""
        if self.results:
            lines: list[str] = []
            for (name, failed), group in groupby(self.results, lambda result: (result.name, result.failed)):
                text = " ".join(result.text for result in group)
                lines.append(f"{name} failed: {text}" if failed else f"According to {name}: {text}")
            return "\n".join([*(text.rstrip("\n") for text in lines[:-1]), *lines[-1:]])
        heading = f"This is the demo model. You said: {self.words}" if self.words else "This is the demo model."
        about = (
            "It is a small script, not a language model: it calls the tool that a prompt names or clearly asks for, "
            "and answers from the result."
        )
        advice = "This request has no tools that it may call. For real answers, add a backend to toolwire.toml."
        if self.abilities:
            advice = "No tool fits this prompt."
            examples = _find_examples(self.abilities)
            if examples:
                advice += f" Try {' or '.join(f'“{example}”' for example in examples)}."
        return f"{heading}\n\n{about} {advice}"


def _find_examples(abilities: list[Ability]) -> list[str]:
    """Prompts that lead to a declared tool that changes nothing, or to a shell."""
    is_shell = any(ability.is_shell for ability in abilities)
    reads = any(ability.does_only("read", "file") for ability in abilities)
    lists = any(ability.does_only("find", "file") or ability.does_only("list", "directory") for ability in abilities)
    examples = ["Read README.md"] if is_shell or reads else []
    examples += ["List the files"] if is_shell or lists else []
    examples += ["Run `ls -la`"] if is_shell else []
    return examples or [f"Call {ability.tool.name}" for ability in abilities if ability.is_harmless][:1]


# The turns

Situation: TypeAlias = Callable[[TurnPlan, DemoWriter], Iterator[Step]]


def write_usual(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    if plan.results or plan.choice is None:
        yield from writer.say(plan.answer())
        return
    ability, reason = plan.choice
    yield from writer.reason(reason)
    calls = plan.make_calls(ability)
    remarks = dict.fromkeys(call.remark for call in calls if call.remark)
    if remarks:
        yield from writer.say("\n".join(remarks))
    for call in calls:
        yield from writer.call(call.tool, call.text)


def write_call(plan: TurnPlan, writer: DemoWriter, step: int = 12) -> Iterator[Step]:
    call = plan.make_any_call()
    return writer.call(call.tool, call.text, step)


def write_huge(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    text = msgspec.json.encode({"content": "0123456789abcdef" * 65536}).decode()
    return writer.call(plan.make_any_call().tool, text, step=4096)


def write_parallel(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    for number in range(3):
        call = plan.make_any_call(number=number + 1)
        if plan.ranked and number:  # each call has different arguments if the tool takes a text
            other = UserPrompt('"{} {}"'.format(plan.prompt.whole.replace('"', "'"), number + 1))
            call = plan.make_calls(plan.ranked[number % len(plan.ranked)], other)[0]
        yield from writer.call(call.tool, call.text)


def write_use_tool(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    call = plan.make_any_call()
    return writer.say(f"Let me look.\n\n{use_tool.write_use_tool(call.tool.name, call.text).text}\n")


def _whole(write: Situation) -> Situation:
    """A turn with this content, from its first to its last event."""

    def play(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
        yield writer.begin()
        yield from write(plan, writer)
        yield writer.complete()

    return play


def _cut(write: Situation, end: Callable[[DemoWriter], Step], count: int = 0) -> Situation:
    """A turn that ends after half of this content, or after `count` steps of it."""

    def play(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
        yield writer.begin()
        steps = [*write(plan, writer)]
        yield from steps[: count or max(2, len(steps) // 2)]
        yield end(writer)

    return play


_play_usual = _whole(write_usual)


def _unless_answered(write: Situation) -> Situation:
    """The turn, or an answer if the history ends with results, so that an agent's loop ends."""
    play = _whole(write)
    return lambda plan, writer: (_play_usual if plan.results else play)(plan, writer)


def play_slow(plan: TurnPlan, writer: DemoWriter) -> Iterator[Step]:
    for step in _play_usual(plan, writer):
        yield step
        yield Wait(0.1)


_OVERLOADED = b'{"error":{"message":"The demo model is overloaded.","code":"server_is_overloaded"}}'
_BUSY = b'{"error":{"message":"The demo model is busy.","type":"rate_limit_error","code":"rate_limit_exceeded"}}'
_BROKEN = {"code": "server_error", "message": "The demo model broke down."}

SITUATIONS: dict[str, Situation] = {
    "": _play_usual,
    "slow": play_slow,
    "error": lambda _, __: iter([Refuse(503, _OVERLOADED)]),
    "rate-limit": lambda _, __: iter([Refuse(429, _BUSY, {"retry-after": "60"})]),
    "error-middle": _cut(
        lambda _, writer: writer.say("This answer will not be finished,"),
        lambda writer: writer.write_event("response.failed", response={"status": "failed", "error": _BROKEN}),
        count=100,
    ),
    "cut": _cut(write_call, lambda _: Break()),
    "huge": _unless_answered(write_huge),
    "parallel": _unless_answered(write_parallel),
    "use-tool": _unless_answered(write_use_tool),
    "refusal": _whole(lambda _, writer: writer.refuse("I cannot help with that.")),
    "length": _cut(partial(write_call, step=4), DemoWriter.run_out, count=3),
    "short": _cut(lambda plan, writer: writer.say(plan.answer()), DemoWriter.run_out),
    "silent": _whole(lambda _, __: iter([Wait(3600)])),
}
"""The situations by the name in `demo-NAME`."""

MODELS = tuple("demo" if not name else f"demo-{name}" for name in SITUATIONS)
