"""From a request to the attempts at answering it: rules, backends, policies, and what follows a failure."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from toolwire.assembly import ReaderFacts, ToolRules, adapt_request, assemble_policies, make_dialect_error
from toolwire.backends.failures import find_refused_part
from toolwire.backoff import RetryBudget, choose_retry_delay
from toolwire.config.settings import Settings, bytes_of
from toolwire.core.errors import THREAD_GONE, BadRequest, Failure
from toolwire.core.events import Note
from toolwire.core.policies import Policy
from toolwire.core.request import CallEntry, Entry, Omission, ReasoningEntry, Request
from toolwire.memory.reasoning import KeepReasoning, KeepSignedReasoning, KeepUnsigned, ReasoningCache, strip_reasoning
from toolwire.turns.attempt import Question, TurnGuard
from toolwire.turns.grants import Grant
from toolwire.turns.observers import AttemptInfo, AttemptObserver
from toolwire.turns.route import Route
from toolwire.turns.routes import Router
from toolwire.turns.validate import validate

MAX_RETRY_DELAY = 5.0
"""Maximum seconds before a retry. If a backend requests a longer delay, the client gets the failure."""


class Caller(Protocol):
    """The client of a request."""

    @property
    def owner(self) -> str:
        """The tenant."""
        ...

    @property
    def upstream_key(self) -> str:
        """The key for backends that have none of their own."""
        ...

    @property
    def grant(self) -> Grant | None:
        """What it may use, if that is not everything."""
        ...


class LocalCaller(msgspec.Struct, frozen=True):
    """The caller of a turn in this process, with the keys of its environment or with a given one."""

    owner: str = ""
    upstream_key: str = ""
    grant: Grant | None = None


class Engine(msgspec.Struct, frozen=True):
    """The objects that all requests of a process share."""

    settings: Settings
    router: Router
    reasoning: ReasoningCache
    observers: Sequence[AttemptObserver] = ()
    """Observers of all turns."""


class Options(msgspec.Struct, frozen=True):
    """Decisions about one request that are not part of it."""

    rules: ToolRules
    seed: str
    """The ids of the turn are derived from it."""
    policies: Sequence[Callable[[], Policy]] = ()
    """Factories of the policies that come last; called for each attempt."""
    retries: int | None = None
    """The maximum number of retries; None for the backend's setting."""
    guard: TurnGuard | None = None
    """Asked before each request to a backend, if another process could take over the turn."""
    observers: Sequence[AttemptObserver] = ()
    """Observers of this turn."""
    round: int = 0
    """The number of the model's turn: greater than 0 after gateway tools have run."""


Target = tuple[Route, str]
"""A route, and the model's name at its backend."""


def prepare(engine: Engine, request: Request, caller: Caller, options: Options) -> "Job":
    """The job of answering a request. Raises `BadRequest` if no backend can."""
    targets: Sequence[Target] = engine.router.all_for(request.model, caller.grant)
    if request.choices > 1 or request.needs_own_dialect:
        targets = [(route, model) for route, model in targets if route.recorded_as == request.dialect]
        if not targets and request.needs_own_dialect:
            raise make_dialect_error(request.needs_own_dialect)
        if not targets:
            raise BadRequest(f"n must be 1 for this model; received {request.choices}.", "n")
    return Job(engine, request, caller, options, targets, _make_question(engine, request, caller, options, targets[0]))


class Job(msgspec.Struct, frozen=True):
    """A request with everything needed to answer it once."""

    engine: Engine
    request: Request
    caller: Caller
    options: Options
    targets: Sequence[Target]
    """The backends that serve the model, in the order to try them."""
    first: Question
    """What the first attempt needs."""


class Attempts:
    """The attempts at a job, in order: retries, an attempt without a refused part, and failover."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._request = job.request
        self._targets = list(job.targets)
        self._tried = 1  # attempts at the current backend
        self.notes: list[Note] = []
        """The reasons for further attempts."""
        self.delay = 0.0
        """Seconds before the next attempt."""
        self._question = job.first
        self._budget.earn()

    def choose_next(self, failure: Failure, now: float) -> Question | None:
        """The attempt that follows this failure; None if the failure is final."""
        self.delay = 0.0
        if self._omit_refused_part(failure):
            self._tried = 0
            return self._make_next()
        if failure.code == THREAD_GONE:
            self.notes.append(Note("retried", failure.code))
            self._tried -= 1  # nothing was sent
            return self._make_next()
        if not failure.retryable:
            return None
        delay = choose_retry_delay(failure, self._tried, MAX_RETRY_DELAY)
        route, _ = self._targets[0]
        retries = self._job.options.retries
        if delay is None or self._tried > (route.backend.retries if retries is None else retries):
            return self._fail_over(failure)
        if not self._budget.spend(now):
            withheld = Note("retry_withheld", failure.code)
            self.notes.append(withheld)
            self._question.assembly.stats.add_note(withheld)
            return self._fail_over(failure)
        self.notes.append(Note("retried", failure.code))
        self.delay = delay
        return self._make_next()

    @property
    def _budget(self) -> RetryBudget:
        return self._job.engine.router.budgets[self._targets[0][0].backend.name]

    def _make_next(self) -> Question:
        job = self._job
        self._question = _make_question(job.engine, self._request, job.caller, job.options, self._targets[0])
        self._tried += 1
        for note in self.notes:
            self._question.assembly.stats.add_note(note)
        return self._question

    def _fail_over(self, failure: Failure) -> Question | None:
        """The first attempt at the next backend that serves the model."""
        if len(self._targets) == 1:
            return None
        self._job.engine.router.cool(self._targets.pop(0)[0])
        self.notes.append(Note("failed_over", failure.code))
        self._tried = 0
        self._budget.earn()
        return self._make_next()

    def _omit_refused_part(self, failure: Failure) -> bool:
        """Omit the part of the request that the backend refuses; returns False if no part can be omitted."""
        found = find_refused_part(failure)
        route, model = self._targets[0]
        if found is None or not _can_omit(self._question.request, found.part, route):
            return False
        if found.always:
            self._job.engine.reasoning.refuse(route.backend.name, model, found.part)
            self.notes += [Note("field_dropped", found.part)] if found.part != "reasoning" else ()
        else:
            entries = tuple(map(strip_reasoning, self._request.entries))
            without = (*self._request.without, found.part)
            self._request = msgspec.structs.replace(self._request, entries=entries, without=without)
            self.notes.append(Note("reasoning_dropped", failure.code))
        return True


def _make_question(engine: Engine, request: Request, caller: Caller, options: Options, target: Target) -> Question:
    """What an attempt at this backend needs."""
    route, model = target
    settings, reasoning, owner = engine.settings, engine.reasoning, caller.owner
    rules, seed, name = options.rules, options.seed, route.backend.name
    whole, entries, asked = request, request.entries, request.model
    request = reasoning.fit_to_backend(name, owner, request)
    if refused := reasoning.list_refused(name, model):
        notes = request.notes
        if "reasoning" in refused and any(map(_is_reasoning, request.entries)):
            notes = (*notes, Note("reasoning_dropped"))
            request = msgspec.structs.replace(request, entries=tuple(map(strip_reasoning, request.entries)))
        request = msgspec.structs.replace(request, notes=notes, without=(*request.without, *refused))
    request = adapt_request(request, rules, route.recorded_as, route.facts)
    is_same_dialect = route.recorded_as == request.dialect
    conversation = route.converse(msgspec.structs.replace(request, model=model), seed, owner)
    last = [make() for make in options.policies]
    carried, encode = request.carries_signatures, conversation.decoder.encode_reasoning
    last.append(KeepReasoning(reasoning, name, owner, entries, encode, is_carried=carried))
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
        route.describe_backend(key),
        request,
        conversation,
        assemble_policies(request, rules, seed, conversation.stand_in, last, validate, ReaderFacts(is_same_dialect)),
        route.upstream,
        key,
        settings.timeouts,
        bytes_of(settings.server.max_reply),
        settings.server.batching,
        None if guard is None else guard.begin_action if route.facts.acts else guard.confirm,
        [observer.attempt(info) for observer in observers],
    )


def _can_omit(request: Request, part: Omission, route: Route) -> bool:
    """Whether a request to a backend has a part that was added or adapted here, so that it can be omitted."""
    if part in request.without and part != "reasoning":
        return False
    if part == "reasoning":
        is_signed = any(isinstance(entry, CallEntry) and entry.signature for entry in request.entries)
        return any(map(_is_reasoning, request.entries)) or (is_signed and part not in request.without)
    if part == "include":
        return route.facts.adds_include and route.recorded_as != request.dialect
    searches = any(tool.deferred or tool.kind == "search" for tool in request.tools)
    return route.facts.search == request.dialect and (searches or any(tool.searches for tool in request.hosted_tools))


def _is_reasoning(entry: Entry) -> bool:
    return isinstance(entry, ReasoningEntry) and bool(entry.text or entry.signature)
