"""Which tool a prompt asks for, if any.

A tool that the prompt names is chosen; otherwise one whose verb and object, taken from its name, are in the prompt. A
tool that only looks something up is also chosen for a question about its object: "What is the weather in Paris?" calls
`get_weather`. A tool that writes, deletes or executes needs its verb and its object side by side: "Write a test for
hello.txt" writes no file. If no other tool reads or lists files, a shell gets a command for that.
"""

import re
from collections.abc import Sequence

from toolwire.backends.demo.prompt import CHANGING, LOOKING, UserPrompt, find_concept, split_name, split_words
from toolwire.core.request import Tool

_SENTENCE = re.compile(r"[^.\n]{1,200}")
_REFUSES_TOOLS = re.compile(
    r"\b(?:do not|don['\u2019]t|never|without)\s+(?:call|use|run|calling|using)\b[^.\n]{0,80}\btools?\b"
    r"|\bwithout (?:any )?tools\b|\bcall no tools?\b|\bno tool calls?\b"
)
_IDENTIFIER = re.compile(r"[\w.-]+")
_NAMED = re.compile(
    r"(?P<no>(?:\bnot|\bnever|n['\u2019]t|\bwithout)\s+)?\b(?:call|calling|use|using|invoke|invoking|via|try)\s+"
    r"(?:the\s+)?(?:(?:tool|function)\s+)?[`\"']?(?P<name>[\w.-]+)|(?<![\w.-])(?P<before>[\w.-]+)[`\"']?\s+(?:tool|function)\b"
)
_NEGATIONS = split_words("not never don't don\u2019t how without")
_CLAUSES = split_words("is are was were be has have i my we want need")


class Ability:
    """A tool and what it does: `get_weather` gets weather, `Read` reads a file, `exec_command` runs a command."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.short_name = re.split(r"__|\.", tool.name)[-1] or tool.name
        """The name without its server: `read` of `mcp__files__read`."""
        own = [word for word in map(find_concept, split_name(self.short_name)) if word]
        verbs = [word for word in (own[:1] + own[-1:]) if word in LOOKING | CHANGING]
        self.verb = verbs[0] if verbs else "run" if "command" in own else ""
        sentence = _SENTENCE.match(tool.description.lstrip("`#* \n"))
        described = {find_concept(word) for word in sentence[0].split()} if sentence is not None else set[str]()
        is_about_files = self.verb in ("read", "write") or (self.verb == "find" and "file" in described)
        self.objects = [word for word in own if word != self.verb] or (["file"] if is_about_files else [])
        changes = bool({self.verb, *own, *described} & CHANGING)
        self.is_harmless = not changes and (self.verb in LOOKING or len(own) < 2)
        """It only looks something up. A tool with an unknown verb may do anything."""
        self.is_shell = tool.kind == "function" and self.does_only("run", "command")

    def does_only(self, verb: str, thing: str) -> bool:
        """Whether this is all that it does."""
        return (self.verb, self.objects) == (verb, [thing])


def choose(prompt: UserPrompt, abilities: Sequence[Ability]) -> tuple[Ability, str] | None:
    """The tool that the prompt asks for, if there is one, and the reason."""
    if not abilities or _REFUSES_TOOLS.search(prompt.low):
        return None
    named = _find_named(prompt, abilities)
    if named is not None:
        return named, f"The prompt names the tool {named.tool.name}."
    best = max(abilities, key=lambda ability: _score(prompt, ability))
    if _score(prompt, best) <= 0:
        best = next((ability for ability in abilities if ability.is_shell and prompt.read_commands()), None)
    return (best, f"The question fits the tool {best.tool.name}.") if best is not None else None


def _find_named(prompt: UserPrompt, abilities: Sequence[Ability]) -> Ability | None:
    """The tool that is named first: `get_weather`, or `use Bash`, or `the tool "ping"`."""
    written: dict[str, int] = {}
    for match in _IDENTIFIER.finditer(prompt.low):
        written.setdefault(match[0].strip("."), match.start())
    meant: dict[str, int] = {}
    for match in _NAMED.finditer(prompt.low):
        if not match["no"]:
            meant.setdefault((match["name"] or match["before"]).strip("."), match.start())
    found: list[tuple[int, int]] = []
    for at, ability in enumerate(abilities):
        for name in (ability.tool.name, ability.short_name):
            # An ordinary word is a name only where it is meant as one.
            positions = written if len(split_name(name)) > 1 else meant
            if name.lower() in positions:
                found.append((positions[name.lower()], at))
    return abilities[min(found)[1]] if found else None


def _score(prompt: UserPrompt, ability: Ability) -> float:
    """The score of a tool; 0 if it does not fit. Words of its own name count a little more than their synonyms."""
    objects = [thing for thing in ability.objects if thing in prompt.things]
    if 2 * len(objects) < len(ability.objects):
        return 0
    is_meant = _looks_for if ability.is_harmless else _asks_to_change
    if not is_meant(prompt, ability, objects):
        return 0
    own = sum(map(prompt.mentions, split_name(ability.short_name))) / 10
    return 3 * len(objects) - len(ability.objects) + 5 * (ability.verb in prompt.concepts) + own


def _asks_to_change(prompt: UserPrompt, ability: Ability, objects: Sequence[str]) -> bool:
    """Whether the verb is followed by its object, with nothing but values, names and empty words between."""
    if not (objects and ability.verb):
        return False
    follows_verb = False
    for at, token in enumerate(prompt.tokens):
        if follows_verb:
            is_command = "command" in objects and any(each.startswith(token.text) for each in prompt.commands)
            if is_command or token.concept in objects or any(thing in objects for thing in token.things):
                return True
            follows_verb = not token.concept or token.text[:1].isupper()
        if token.concept == ability.verb:
            before = {each.text.lower() for each in prompt.tokens[max(at - 2, 0) : at]}
            follows_verb = follows_verb or not before & _NEGATIONS
    return False


def _looks_for(prompt: UserPrompt, ability: Ability, objects: Sequence[str]) -> bool:
    """Whether the prompt has the verb, or is a question about the object, or a few words that begin with it."""
    has_verb = ability.verb in prompt.concepts
    first = next((token.concept for token in prompt.tokens if token.concept), "")
    if not ability.objects:
        return has_verb and first == ability.verb
    if ability.verb == "read" and "file" in objects and (not prompt.files or prompt.concepts & {"list", "find"}):
        return False
    if ability.verb in ("list", "find") and not has_verb and not prompt.concepts & {*objects}:
        return False
    # A few words without a verb: `weather in Paris`.
    is_phrase = len(prompt.tokens) < 8 and not {token.text.lower() for token in prompt.tokens} & _CLAUSES
    return bool(objects) and (has_verb or prompt.looks or (is_phrase and first in objects))
