"""The demo model's plan for a request: an answer in words, or calls."""

from collections.abc import Iterator
from functools import cached_property
from itertools import groupby

import msgspec

from toolwire.adapt.arguments import Validate
from toolwire.backends.demo.arguments import calls_for, input_for
from toolwire.backends.demo.choosing import Ability, choose
from toolwire.backends.demo.history import demands_call, find_directory, find_prompt, find_results
from toolwire.backends.demo.prompt import UserPrompt
from toolwire.core.request import Request, Tool


class PlannedCall(msgspec.Struct, frozen=True):
    """A call to make: the arguments, or the input of a custom tool."""

    tool: Tool
    text: str
    remark: str = ""
    """Which arguments do not fit the schema; empty if all do."""


class TurnPlan:
    """A request as the demo model understands it."""

    def __init__(self, request: Request, validate: Validate) -> None:
        self._request = request
        self._validate = validate
        self.results = find_results(request)
        self.words = find_prompt(request)

    @cached_property
    def prompt(self) -> UserPrompt:
        """The user's words, taken apart."""
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
        """The tools for a situation that needs a call: the one that fits, then the harmless ones, or else all."""
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

    def calls(self) -> list[PlannedCall]:
        """The calls that the prompt asks for."""
        if self.choice is None:
            return []
        return list(self.calls_of(self.choice[0], self.prompt, 1 if self._request.parallel_calls is False else 2))

    def calls_of(self, ability: Ability, prompt: UserPrompt, max_calls: int) -> Iterator[PlannedCall]:
        """Calls of one tool about this prompt."""
        tool = ability.tool
        if tool.kind != "function":
            yield PlannedCall(tool, input_for(ability, prompt))
            return
        for made in calls_for(ability, prompt, find_directory(self._request), max_calls, self._validate):
            wrong = ", ".join(made.problems)
            yield PlannedCall(tool, made.text, wrong and f"The demo model cannot fill {tool.name} as it asks: {wrong}.")

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
        if not self.abilities:
            advice = "This request has no tools that it may call. For real answers, add a backend to toolwire.toml."
        else:
            advice = f"No tool fits this prompt.{self._suggest_prompts()}"
        return f"{heading}\n\n{about} {advice}"

    def _suggest_prompts(self) -> str:
        """A sentence with prompts that lead to a declared tool that changes nothing, or to a shell."""
        is_shell = any(ability.is_shell for ability in self.abilities)
        reads = any(ability.does("read", "file") for ability in self.abilities)
        lists = any(ability.does("find", "file") or ability.does("list", "directory") for ability in self.abilities)
        examples = ["Read README.md"] if is_shell or reads else []
        examples += ["List the files"] if is_shell or lists else []
        examples += ["Run `ls -la`"] if is_shell else []
        harmless = next((ability.tool.name for ability in self.abilities if ability.is_harmless), "")
        examples = examples or ([f"Call {harmless}"] if harmless else [])
        return f" Try {' or '.join(f'“{example}”' for example in examples)}." if examples else ""
