"""Which tool a prompt asks for, if any.

A tool that the prompt names is chosen. Otherwise one whose verb and object the prompt has. One that only looks
something up is also chosen for a question about its object: "What is the weather in Paris?" is one for `get_weather`.
One that writes, deletes or executes needs its verb and its object side by side: "Write a test for hello.txt" writes no
file. Where nothing else reads or lists files, a shell is given a command for that.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from shlex import quote

from toolwire.backends.demo.abilities import Ability, Sense
from toolwire.backends.demo.vocabulary import CHANGING, LOOKING, RETRIEVING, concept, parts_of
from toolwire.backends.demo.words import Token, Words

_NAMED = re.compile(
    r"(?P<no>(?:\bnot|\bnever|n['\u2019]t|\bwithout)\s+)?\b(?:call|calling|use|using|invoke|invoking|via|try)\s+"
    r"(?:the\s+)?(?:(?:tool|function)\s+)?[`\"']?(?P<name>[\w.-]+)|(?<![\w.-])(?P<before>[\w.-]+)[`\"']?\s+(?:tool|function)\b"
)
_NO_TOOLS = re.compile(
    r"\b(?:do not|don['\u2019]t|never|without)\s+(?:call|use|run|calling|using)\b[^.\n]{0,80}\btools?\b"
    r"|\bwithout (?:any )?tools\b|\bcall no tools?\b|\bno tool calls?\b"
)
_IDENTIFIER = re.compile(r"[\w.-]+")
_BARE_COMMAND = re.compile(
    r"\b(?:run|execute)\s+(?:(?:the\s+)?(?:following\s+)?command:?\s+(?P<any>[^`\"\s][^`\n]*)"
    r"|(?P<known>(?:ls|pwd|cat|echo|date|whoami|uname|git|grep|head|tail|wc|df|du|ps|which|id|hostname)\b[^`\n]*))",
    re.IGNORECASE,
)
_PLAIN_PATH = re.compile(r"[\w*./~@+-]+", re.ASCII)
_FILE_LIKE = re.compile(r"[\w./*~-]{0,100}[./*][\w./*~-]{1,100}")
_SEARCHED = re.compile(r"\b(?:search|grep|find|look)\s+(?:(?:the|my|this|all|in|through)\s+)*(\w+)\s+for\b")
_CLAUSES = frozenset(("is", "are", "was", "were", "be", "has", "have", "i", "my", "we", "want", "need"))
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
_ALIKE = ({"list", "find"}, {"find", "search"}, {"read", "get"}, {"get", "check"}, {"get", "search"})
_NEGATIONS = frozenset(("not", "never", "don't", "don\u2019t", "how", "without"))


class Prompt(Words):
    """A prompt, and what it asks for."""

    @cached_property
    def things(self) -> frozenset[str]:
        """What it is about: its words, and what its values are."""
        found = {*self.concepts, *(thing for token in self.tokens for thing in _things(token))}
        if self.commands:
            found.add("command")
        if "list" in found and "file" in found:
            found.add("directory")
        return frozenset(found)

    @cached_property
    def changes(self) -> bool:
        """Whether it asks to change something."""
        return bool(self.concepts & CHANGING)

    @cached_property
    def looks(self) -> bool:
        """Whether it asks to look at something."""
        return not self.changes and (self.is_question or bool(self.concepts & RETRIEVING))

    @cached_property
    def paths(self) -> list[str]:
        """The files and directories in it."""
        about_files = self.concepts & {"file", "directory"}
        return [
            token.text
            for token in self.tokens
            if "directory" in _things(token) or (about_files and token.kind in ("code", "quoted"))
        ]

    @cached_property
    def files(self) -> list[str]:
        """The paths in it that may be files."""
        return [path for path in self.paths if not path.endswith("/")]

    @cached_property
    def commands(self) -> list[str]:
        """The commands that it asks to run."""
        if "run" not in self.concepts:
            return []
        bare = _BARE_COMMAND.search(self.text)
        code = self.values("code")
        return code or ([(bare["any"] or bare["known"]).strip().rstrip(".!?")] if bare is not None else [])

    @cached_property
    def looking_commands(self) -> list[str]:
        """Commands that read, list or search the files that it asks for, and change nothing."""
        if not self.looks:
            return []
        if self.concepts & {"file", "directory"} and (self.concepts & {"list", "find"} or not self.files):
            return [f"ls {_quoted(path)}" for path in self.paths] or ["ls"]
        if self.concepts & {"search", "find"}:
            return [f"grep -rnF -- {quote(text)} ." for text in self.values("code", "quoted")]
        return [f"cat {_quoted(path)}" for path in self.files]

    @cached_property
    def refuses_tools(self) -> bool:
        """Whether it asks for an answer without tools."""
        return _NO_TOOLS.search(self.low) is not None

    def named(self, abilities: Sequence[Ability]) -> Ability | None:
        """The tool that is named first: `get_weather`, or `use Bash`, or `the tool "ping"`."""
        written: dict[str, int] = {}
        for match in _IDENTIFIER.finditer(self.low):
            written.setdefault(match[0].strip("."), match.start())
        meant: dict[str, int] = {}
        for match in _NAMED.finditer(self.low):
            if not match["no"]:
                meant.setdefault((match["name"] or match["before"]).strip("."), match.start())
        found: list[tuple[int, int]] = []
        for at, ability in enumerate(abilities):
            for name in (ability.tool.name, ability.short_name):
                places = written if len(parts_of(name)) > 1 else meant
                if name.lower() in places:
                    found.append((places[name.lower()], at))
        return abilities[min(found)[1]] if found else None

    def fit(self, ability: Ability) -> float:
        """How well a tool fits; 0 if it does not. Words of its own name count a little more than their like."""
        score = self._fit_looking if ability.is_harmless else self._fit_changing
        best = max(score(sense) - at / 10 for at, sense in enumerate(ability.senses))
        return best + sum(self.mentions(part) for part in parts_of(ability.short_name)) / 10 if best > 0 else 0

    def _met(self, sense: Sense) -> list[str]:
        """The objects that are meant, if those are enough."""
        met = [thing for thing in sense.objects if thing in self.things]
        return met if 2 * len(met) >= len(sense.objects) * (1 + sense.strictly) else []

    def _fit_changing(self, sense: Sense) -> float:
        met = self._met(sense)
        is_meant = (met or not sense.objects) and self._asks_to(sense.verb, met)
        return 4 + 3 * len(met) - len(sense.objects) if is_meant else 0

    def _fit_looking(self, sense: Sense) -> float:
        met = self._met(sense)
        if "file" in met and sense.verb == "read" and not self.files:
            return 0
        score = 3 * len(met) - len(sense.objects)
        alike = _alike(sense.verb)
        if sense.verb in self.concepts and (met or (not sense.objects and self._has_subject(sense.verb))):
            return score + 5
        if (
            alike & self.concepts
            and not self.changes
            and (met or (not sense.objects and self.values("code", "quoted")))
        ):
            return score + 2
        return score if met and self._asks_about(met, sense.verb, alike) else 0

    def _has_subject(self, verb: str) -> bool:
        """Whether it begins with the verb, and does not say to search something else than usual."""
        first = next((token.concept for token in self.tokens if token.concept), "")
        place = _SEARCHED.search(self.low)
        return first == verb and (place is None or concept(place[1]) in ("file", "directory", "code", "project", ""))

    def _asks_about(self, things: Sequence[str], verb: str, alike: set[str]) -> bool:
        """Whether it is a question, or a few words, about these things, and not one for another verb."""
        if verb and verb not in RETRIEVING:
            return False
        others = self.concepts & LOOKING - {verb, *alike, "describe", "explain", "say", "get", "check"}
        if verb not in ("get", "") and others:
            return False
        if verb in ("list", "find") and not self.concepts & {*things}:
            return False
        return self.looks or (self._is_phrase and self.tokens[0].concept in things)

    @cached_property
    def _is_phrase(self) -> bool:
        """Whether it is a few words without a verb: `weather in Paris`."""
        return 0 < len(self.tokens) < 8 and not {token.text.lower() for token in self.tokens} & _CLAUSES

    def _asks_to(self, verb: str, things: Sequence[str]) -> bool:
        """Whether the verb is followed by its object, with nothing but values, names and empty words between."""
        for at, token in enumerate(self.tokens):
            before = {each.text.lower() for each in self.tokens[max(at - 2, 0) : at]}
            if verb and token.concept == verb and not before & _NEGATIONS and self._follows(at + 1, things):
                return True
        return False

    def _follows(self, start: int, things: Sequence[str]) -> bool:
        for token in self.tokens[start:]:
            if {token.concept, *_things(token), *_run(token, self.commands)} & {*things}:
                return True
            if token.concept and not token.text[:1].isupper():
                return False
        return not things


def _things(token: Token) -> tuple[str, ...]:
    """What a value is."""
    if token.kind == "url":
        return ("page", "web")
    is_path = token.kind == "path" or (token.kind in ("code", "quoted") and _FILE_LIKE.fullmatch(token.text))
    if not is_path:
        return ()
    if token.text.endswith("/"):
        return ("directory",)
    return ("file", "directory", *(["image"] if token.text.lower().endswith(_IMAGES) else []))


def _run(token: Token, commands: Sequence[str]) -> tuple[str, ...]:
    """The first word of a command that is to be run is a command."""
    return ("command",) if any(command.startswith(token.text) for command in commands) else ()


def _quoted(path: str) -> str:
    """A path as a shell takes it, not as an option; `~` and `*` keep their meaning."""
    path = f"./{path}" if path.startswith("-") else path
    return path if _PLAIN_PATH.fullmatch(path) else quote(path)


def _alike(verb: str) -> set[str]:
    return set[str]().union(*(pair for pair in _ALIKE if verb in pair)) - {verb}


def choose(prompt: Prompt, abilities: Sequence[Ability]) -> tuple[Ability, str] | None:
    """The tool that the prompt asks for, if there is one, and the reason."""
    if prompt.refuses_tools or not abilities:
        return None
    named = prompt.named(abilities)
    if named is not None:
        return named, f"The prompt names the tool {named.tool.name}."
    scores = [prompt.fit(ability) for ability in abilities]
    best = abilities[scores.index(max(scores))] if max(scores) > 0 else None
    if best is None and prompt.looking_commands:
        best = next((ability for ability in abilities if ability.is_shell), None)
    return (best, f"The question fits the tool {best.tool.name}.") if best is not None else None
