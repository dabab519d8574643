"""What the demo model makes of a request: the words to answer with, or the calls to make."""

from collections.abc import Iterator
from functools import cached_property

import msgspec

from toolwire.backends.demo.abilities import Ability
from toolwire.backends.demo.answers import from_results, introduction
from toolwire.backends.demo.arguments import calls_for, input_for
from toolwire.backends.demo.choosing import Prompt, choose
from toolwire.backends.demo.history import demands_call, directory_of, prompt_of, results_of
from toolwire.core.request import Request, Tool


class PlannedCall(msgspec.Struct, frozen=True):
    """A call to make: the arguments, or the input of a custom tool."""

    tool: Tool
    text: str


class Plan:
    """A request as the demo model understands it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.results = results_of(request)
        self.words = prompt_of(request)

    @cached_property
    def prompt(self) -> Prompt:
        """The user's words, taken apart."""
        return Prompt(self.words)

    @cached_property
    def abilities(self) -> list[Ability]:
        """The tools that it may call."""
        if not self._request.wants_calls:
            return []
        forced = self._request.forced_tool
        names = (forced,) if forced else self._request.tool_names
        return [Ability(tool) for tool in self._request.tools if tool.name in names]

    @property
    def answer(self) -> str:
        """The answer in words."""
        return from_results(self.results) if self.results else introduction(self.words, self.abilities)

    @cached_property
    def choice(self) -> tuple[Ability, str] | None:
        """The tool to call, if one fits or there must be a call, and the reason."""
        chosen = choose(self.prompt, self.abilities)
        if chosen is None and self.abilities and demands_call(self._request):
            return self.ranked[0], f"The request demands a call, so {self.ranked[0].tool.name} is called."
        return chosen

    @cached_property
    def ranked(self) -> list[Ability]:
        """The tools for a situation in which something must be called: the one that fits, then the harmless ones.

        Others are among them only if there is nothing else."""
        chosen = choose(self.prompt, self.abilities)
        first = [chosen[0]] if chosen is not None else []
        harmless = [ability for ability in self.abilities if ability.is_harmless and ability not in first]
        return [*first, *harmless] or self.abilities

    def calls(self) -> Iterator[PlannedCall]:
        """The calls that the prompt asks for."""
        if self.choice is not None:
            most = 1 if self._request.parallel_calls is False else 2
            yield from self.calls_of(self.choice[0], self.prompt, most)

    def calls_of(self, ability: Ability, prompt: Prompt, most: int) -> Iterator[PlannedCall]:
        """Calls of one tool about this prompt."""
        if ability.tool.kind == "function":
            directory = directory_of(self._request)
            for arguments in calls_for(ability, prompt, directory, most):
                yield PlannedCall(ability.tool, arguments)
        else:
            yield PlannedCall(ability.tool, input_for(ability, prompt))
