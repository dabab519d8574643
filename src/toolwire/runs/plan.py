"""From a request to the plan of its run: rules, routes, policies, and what to do when a backend fails."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from toolwire.assembly import Assembly, OutputMode, ToolRules, as_ruled, output_mode, policies_for, without_hosted_tools
from toolwire.core.backend import Conversation
from toolwire.core.errors import BadRequest, Failure
from toolwire.core.events import Note
from toolwire.core.policies import Policy
from toolwire.core.request import Entry, Omission, ReasoningEntry, Request
from toolwire.runs.refusals import refused
from toolwire.runs.routes import Route, Router
from toolwire.runs.run import Plan
from toolwire.runs.settings import Settings, bytes_of
from toolwire.runs.thoughts import KeepReasoning, KeepThoughts, KeepUnsigned, Thoughts, forgotten
from toolwire.runs.validate import validate
from toolwire.transport.record import Recorder


class Asker(Protocol):
    """Who asks: whose conversation it is, and the key to pass on to a backend that has none of its own."""

    @property
    def owner(self) -> str: ...

    @property
    def upstream_key(self) -> str: ...


class Planning(msgspec.Struct, frozen=True):
    """All that the plans for one request have in common. It must not know the exchange, or both would need freeing."""

    settings: Settings
    router: Router
    thoughts: Thoughts
    request: Request
    rules: ToolRules
    seed: str
    caller: Asker
    policies: Sequence[Callable[[], Policy]]
    facts: dict[str, Any]

    @property
    def mode(self) -> OutputMode:
        return output_mode(self.rules, self.request)

    def about(self, request: Request, round: int) -> "Planning":
        """The same about another request, whose turn makes ids of its own."""
        seed = f"{self.seed}{round:02x}" if round else self.seed
        return msgspec.structs.replace(self, request=request, seed=seed)

    def plan(self, routes: Sequence[tuple[Route, str]] = ()) -> Plan:
        """The plan for the first of these routes, or of all that serve the model, and for the others in its stead."""
        routes = routes or self.router.all_for(self.request.model)
        if self.request.choices > 1:
            routes = [(route, target) for route, target in routes if route.recorded_as == self.request.dialect]
            if not routes:
                raise BadRequest(f"n must be 1 for this model; received {self.request.choices}.", "n")
        (route, target), *rest = routes
        rules, seed, settings = self.rules, self.seed, self.settings
        if route.forgets_schemas and rules.arguments == "pass":
            rules = msgspec.structs.replace(rules, arguments="check")
        thoughts, owner, name = self.thoughts, self.caller.owner, route.backend.name
        request = thoughts.fit_for(name, owner, self.request)
        if refused_parts := thoughts.refused(name, target):
            request = _without(request, refused_parts)
        request = as_ruled(request, rules, pairs_apart=route.pairs_apart)
        if request.dialect not in route.hosts_tools:
            request = without_hosted_tools(request, rules, route.hosts if route.recorded_as == request.dialect else ())
        if not request.tools and not request.hosted_tools and request.tool_choice is not None:
            request = msgspec.structs.replace(request, tool_choice=None)  # of nothing, which some servers refuse
        asked = msgspec.structs.replace(request, model=target)
        self.facts["backend"] = name

        def assemble(conversation: Conversation) -> Assembly:
            last = [make() for make in self.policies]
            last.append(KeepReasoning(thoughts, name, owner, self.request.entries, conversation.reasoning))
            if route.recorded_as == request.dialect == "messages":
                last.append(KeepUnsigned(thoughts, name, owner))
            if not request.carries_seals and request.tools:
                last.append(KeepThoughts(thoughts, owner, self.request.entries, name))
            return policies_for(request, rules, seed, conversation.stand_in, last, validate)

        return Plan(
            converse=lambda: route.converse(asked, seed, owner),
            assemble=assemble,
            upstream=route.upstream,
            key=self.router.key_for(route, self.request.model, self.caller.upstream_key),
            timeouts=settings.timeouts,
            budget=self.router.budgets[name],
            retries=route.backend.retries,
            grace=rules.stop_after_grace_ms / 1000,
            recorder=self._recorder(route, target) if settings.debug.record else None,
            max_reply=bytes_of(settings.server.max_reply),
            instead=partial(self._plan_instead, route, rest) if rest else None,
            without=partial(self._plan_without, routes, asked),
        )

    def _plan_instead(self, failed: Route, rest: Sequence[tuple[Route, str]]) -> Plan:
        self.router.cool(failed)
        return self.plan(rest)

    def _plan_without(
        self, routes: Sequence[tuple[Route, str]], asked: Request, failure: Failure
    ) -> tuple[Plan, Sequence[Note]] | None:
        """The plan without the part of the request that the backend refuses, if there is one, and notes of that."""
        found = refused(failure)
        route, target = routes[0]
        if found is None or not _holds(asked, found.part, route):
            return None
        if found.always:
            self.thoughts.refuse(route.backend.name, target, found.part)
            return self.plan(routes), [Note("field_dropped", "include")] if found.part == "include" else ()
        entries = tuple(map(forgotten, self.request.entries))
        planning = msgspec.structs.replace(self, request=msgspec.structs.replace(self.request, entries=entries))
        return planning.plan(routes), [Note("reasoning_dropped", failure.code)]

    def _recorder(self, route: Route, target: str) -> Recorder:
        own = os.environ.get(route.backend.api_key_env, "") if route.backend.api_key_env else ""
        folder = self.settings.debug.record
        return Recorder(folder, self.seed, route.recorded_as, target, (self.caller.upstream_key, own))


def _without(request: Request, parts: tuple[Omission, ...]) -> Request:
    """The request without what its server is known to refuse, and a note of the reasoning that it loses."""
    entries, notes = request.entries, request.notes
    if "reasoning" in parts and any(map(_is_reasoning, entries)):
        entries, notes = tuple(map(forgotten, entries)), (*notes, Note("reasoning_dropped"))
    return msgspec.structs.replace(request, entries=entries, notes=notes, without=parts)


def _holds(request: Request, part: Omission, route: Route) -> bool:
    """Whether a request to a backend has such a part that is not the client's own affair."""
    if part == "include":
        return route.recorded_as == "responses" != request.dialect and part not in request.without
    return any(map(_is_reasoning, request.entries))


def _is_reasoning(entry: Entry) -> bool:
    return isinstance(entry, ReasoningEntry) and bool(entry.text or entry.seal)
