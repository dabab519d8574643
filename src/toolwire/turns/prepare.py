"""From a request to the attempts that may be made to answer it: rules, backends, policies, what follows a failure."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from toolwire.assembly import Reader, ToolRules, policies_for, request_for_backend
from toolwire.backends.failures import find_refused_part
from toolwire.backoff import retry_delay
from toolwire.config.settings import Settings, bytes_of
from toolwire.core.errors import THREAD_GONE, BadRequest, Failure
from toolwire.core.events import Note
from toolwire.core.policies import Policy
from toolwire.core.request import Entry, Omission, ReasoningEntry, Request
from toolwire.memory.reasoning import KeepReasoning, KeepSignedReasoning, KeepUnsigned, ReasoningCache, strip_reasoning
from toolwire.turns.attempt import Question, TurnGuard
from toolwire.turns.observers import AttemptInfo, AttemptObserver
from toolwire.turns.routes import Route, Router
from toolwire.turns.validate import validate

LONGEST_PAUSE = 5.0
"""Seconds: a backend that asks for a longer pause is not asked again, the client gets the failure."""


class Caller(Protocol):
    """Who asks: whose conversation it is, and the key to pass on to a backend that has none of its own."""

    @property
    def owner(self) -> str: ...

    @property
    def upstream_key(self) -> str: ...


class Engine(msgspec.Struct, frozen=True):
    """What all requests of a process are prepared with."""

    settings: Settings
    router: Router
    reasoning: ReasoningCache
    observers: Sequence[AttemptObserver] = ()
    """Observers of all turns."""


class Options(msgspec.Struct, frozen=True):
    """What is decided about one request beside the request itself."""

    rules: ToolRules
    seed: str
    """What ids of the turn are made from."""
    policies: Sequence[Callable[[], Policy]] = ()
    """They come after all others, new ones for each attempt."""
    retries: int | None = None
    """How often a failure is answered by asking again; None: as the backend's settings say."""
    guard: TurnGuard | None = None
    """Asked before each request to a backend, where another process could take over the turn."""
    observers: Sequence[AttemptObserver] = ()
    """Observers of this turn."""
    round: int = 0
    """Which turn of the model this is, where the gateway runs tools between them."""


Target = tuple[Route, str]
"""A backend, and the model's name there."""


def prepare(engine: Engine, request: Request, caller: Caller, options: Options) -> "Job":
    """The job of answering this request, or an error if nobody can."""
    targets: Sequence[Target] = engine.router.all_for(request.model)
    if request.choices > 1:
        targets = [(route, model) for route, model in targets if route.recorded_as == request.dialect]
        if not targets:
            raise BadRequest(f"n must be 1 for this model; received {request.choices}.", "n")
    return Job(engine, request, caller, options, targets, _question(engine, request, caller, options, targets[0]))


class Job(msgspec.Struct, frozen=True):
    """A request with all that is needed to answer it, once."""

    engine: Engine
    request: Request
    caller: Caller
    options: Options
    targets: Sequence[Target]
    """The backends that serve the model, in the order in which they are asked."""
    first: Question
    """The first attempt."""

    def question(self, target: Target, request: Request) -> Question:
        """A further attempt, whose request may lack what a backend has refused."""
        return _question(self.engine, request, self.caller, self.options, target)


class Attempts:
    """The attempts at a job, one after the other: the same again, without what was refused, or at the next backend."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._request = job.request
        self._targets = list(job.targets)
        self._tried = 0  # attempts at the backend that is being asked
        self.notes: list[Note] = []
        """Why there was more than one."""
        self.pause = 0.0
        """Seconds before the next attempt."""
        self._question = job.first
        self._begin()

    def after(self, failure: Failure, now: float) -> Question | None:
        """The next attempt after one that failed in this way; None if there is none to be made."""
        self.pause = 0.0
        if self._leaves_out(failure):
            self._tried = 0
            return self._next()
        if failure.code == THREAD_GONE:
            self.notes.append(Note("retried", failure.code))
            self._tried -= 1  # it was not asked anything yet
            return self._next()
        if not failure.retryable:
            return None
        pause = retry_delay(failure, self._tried, LONGEST_PAUSE)
        route, _ = self._targets[0]
        retries = self._job.options.retries
        if pause is None or self._tried > (route.backend.retries if retries is None else retries):
            return self._elsewhere(failure)
        if not self._job.engine.router.budgets[route.backend.name].spend(now):
            withheld = Note("retry_withheld", failure.code)
            self.notes.append(withheld)
            self._question.assembly.stats.note(withheld)
            return self._elsewhere(failure)
        self.notes.append(Note("retried", failure.code))
        self.pause = pause
        return self._next()

    def _begin(self) -> None:
        if not self._tried:
            self._job.engine.router.budgets[self._question.backend.name].earn()
        self._tried += 1

    def _next(self) -> Question:
        self._question = self._job.question(self._targets[0], self._request)
        self._begin()
        for note in self.notes:
            self._question.assembly.stats.note(note)
        return self._question

    def _elsewhere(self, failure: Failure) -> Question | None:
        """The first attempt at the next backend that serves the model."""
        if len(self._targets) == 1:
            return None
        self._job.engine.router.cool(self._targets.pop(0)[0])
        self.notes.append(Note("failed_over", failure.code))
        self._tried = 0
        return self._next()

    def _leaves_out(self, failure: Failure) -> bool:
        """Whether the backend refuses a part of the request that can be left out, and is, from now on."""
        found = find_refused_part(failure)
        route, model = self._targets[0]
        if found is None or not _holds(self._question.request, found.part, route):
            return False
        if found.always:
            self._job.engine.reasoning.refuse(route.backend.name, model, found.part)
            self.notes += [Note("field_dropped", found.part)] if found.part != "reasoning" else ()
        else:
            entries = tuple(map(strip_reasoning, self._request.entries))
            self._request = msgspec.structs.replace(self._request, entries=entries)
            self.notes.append(Note("reasoning_dropped", failure.code))
        return True


def _question(engine: Engine, request: Request, caller: Caller, options: Options, target: Target) -> Question:
    """What one attempt asks of one backend."""
    route, model = target
    settings, reasoning, owner = engine.settings, engine.reasoning, caller.owner
    rules, seed, name = options.rules, options.seed, route.backend.name
    if route.facts.hides_schemas and rules.arguments == "pass":
        rules = msgspec.structs.replace(rules, arguments="check")
    whole, entries, asked = request, request.entries, request.model
    request = reasoning.fit_for(name, owner, request)
    if refused_parts := reasoning.refused(name, model):
        request = _without(request, refused_parts)
    request = request_for_backend(request, rules, route.recorded_as, route.facts)
    is_same_dialect = route.recorded_as == request.dialect
    conversation = route.converse(msgspec.structs.replace(request, model=model), seed, owner)
    last = [make() for make in options.policies]
    carried = request.carries_signatures
    last.append(KeepReasoning(reasoning, name, owner, entries, conversation.reasoning, is_carried=carried))
    if is_same_dialect and route.facts.unsigned_reasoning:
        last.append(KeepUnsigned(reasoning, name, owner))
    if not carried and request.tools:
        last.append(KeepSignedReasoning(reasoning, owner, entries, name))
    key = engine.router.key_for(route, asked, caller.upstream_key)
    observers = (*options.observers, *engine.observers)
    info = AttemptInfo(
        name, route.recorded_as, model, options.round, seed, whole, caller.upstream_key, route.backend.api_key_env
    )
    guard = options.guard
    return Question(
        route.asked(key),
        request,
        conversation,
        policies_for(request, rules, seed, conversation.stand_in, last, validate, Reader(is_same_dialect)),
        route.upstream,
        key,
        settings.timeouts,
        bytes_of(settings.server.max_reply),
        settings.server.batching,
        None if guard is None else guard.begin_action if route.facts.acts else guard.confirm,
        [observer.attempt(info) for observer in observers],
    )


def _without(request: Request, parts: tuple[Omission, ...]) -> Request:
    """The request without what its server is known to refuse, and a note of the reasoning that it loses."""
    entries, notes = request.entries, request.notes
    if "reasoning" in parts and any(map(_is_reasoning, entries)):
        entries, notes = tuple(map(strip_reasoning, entries)), (*notes, Note("reasoning_dropped"))
    return msgspec.structs.replace(request, entries=entries, notes=notes, without=parts)


def _holds(request: Request, part: Omission, route: Route) -> bool:
    """Whether a request to a backend has such a part that is not the client's own affair."""
    if part == "tool_search":
        return route.facts.search == request.dialect and part not in request.without and _searches(request)
    if part == "include":
        return route.facts.adds_include and route.recorded_as != request.dialect and part not in request.without
    return any(map(_is_reasoning, request.entries))


def _searches(request: Request) -> bool:
    """Whether a request declares a search for tools, or tools that are found by one."""
    declared = any(tool.deferred or tool.kind == "search" for tool in request.tools)
    return declared or any(tool.searches for tool in request.hosted_tools)


def _is_reasoning(entry: Entry) -> bool:
    return isinstance(entry, ReasoningEntry) and bool(entry.text or entry.signature)
