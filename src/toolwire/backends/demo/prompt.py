"""Splits the user's prompt into words, with their meanings, and into values for arguments.

    Search "foo bar" in src/main.py and show 3 lines
    words: search, in, and, show, lines   values: "foo bar" (quoted), src/main.py (a path), 3 (a number)

The concept of a word is the first of its synonyms, or the word itself without its ending.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import groupby, islice
from shlex import quote
from typing import Literal, TypeAlias

import msgspec

MAX_PROMPT_CHARS = 64 * 1024
"""The rest of a longer prompt is ignored."""

MAX_ENUMERATED = 8
"""Maximum parts of an enumeration that are searched for names."""

ValueKind: TypeAlias = Literal["word", "code", "quoted", "path", "url", "name", "number"]


def split_words(text: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(text.split())


def _read_synonyms(table: str) -> dict[str, str]:
    return {word: row.split()[0] for row in table.split(";") for word in row.split()}


_LOOKING = _read_synonyms(
    """get fetch retrieve load obtain give; read show open view cat display print see; list ls enumerate;
    find glob locate; search grep lookup query google; check verify validate test inspect; count; describe summarize;
    compare; explain; translate; calculate compute evaluate; convert; say echo tell repeat; ask; ping; wait;
    watch monitor"""
)
_CHANGING = _read_synonyms(
    """run execute exec; write save create make; edit modify change replace update; delete remove rm erase unlink;
    send; mail; post publish; move mv rename; copy cp; start; stop; launch; invoke; spawn; resume; kill; cancel; close;
    install; deploy; build; schedule; book; order; buy; pay; apply; patch; commit; push; merge; set; add; insert;
    append; enable; disable; submit; generate; drop; clear; reset"""
)
_THINGS = _read_synonyms(
    """file files document; directory folder dir; command cmd shell bash terminal; weather forecast temperature;
    web internet online; page website url link site; image picture photo screenshot; time clock"""
)
_CONCEPTS = {**_THINGS, **_LOOKING, **_CHANGING}
LOOKING = frozenset(_LOOKING.values())
"""Verbs that change nothing."""
CHANGING = frozenset(_CHANGING.values())
"""Verbs that write, delete, execute or have another effect."""
RETRIEVING = split_words("get read list find search check count describe explain")
"""Verbs that a question implies."""
QUESTIONS = split_words("what what's whats which who where when how why is are does")
_IGNORED = split_words(
    """a an the this that these those my your our its his her their some any all each every new current local latest
    given following please now just me us it i you we they and or of to in into on at for from with by as about is are
    was be can could would should will do does did there here out up"""
)
"""Words without a meaning of their own, also between a verb and its object."""
_INSIDE = split_words("in under inside within")
_ENDINGS = (("ies", "y"), ("es", ""), ("s", ""), ("ing", ""), ("ing", "e"), ("ed", ""), ("ed", "e"), ("er", ""))


def find_concept(word: str) -> str:
    """The concept of a word; empty for a word without a meaning of its own."""
    low = word.lower()
    if low in _IGNORED:
        return ""
    if low in _CONCEPTS or len(low) > 40:
        return _CONCEPTS.get(low, low)
    for ending, instead in _ENDINGS:
        if low.endswith(ending):
            stem = low[: -len(ending)] + instead
            if stem in _CONCEPTS and stem != "cat":
                return _CONCEPTS[stem]
            if stem[-2:-1] == stem[-1:] and stem[:-1] in _CONCEPTS:  # running
                return _CONCEPTS[stem[:-1]]
    return low[:-1] if low.endswith("s") and not low.endswith("ss") and len(low) > 3 else low


_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")


def split_name(name: str) -> list[str]:
    """The words in the name of a tool or a property: `getWeather` and `get_weather` have two."""
    return [part.lower() for part in _NAME_PARTS.findall(name)]


_TOKEN = re.compile(
    r"```(?:\w*\n)?(?P<fence>[^`]+)```|`(?P<code>[^`]+)`|\"(?P<double>[^\"]+)\"|“(?P<curly>[^”]+)”"
    r"|(?<![\w'])'(?P<single>[^'\n]+)'(?![\w'])|(?P<chunk>[^\s`\"“]+)"
)
_PATH = re.compile(
    r"(?:(?:~|\.{1,2}|[A-Za-z]:)?[/\\](?:[\w*.~@+-]+[/\\])*[\w*.~@+-]*"
    r"|(?:[\w*.~@+-]+/)*[\w*@+-]+(?:\.[\w*+-]+)*\.[A-Za-z*]\w{0,7}"
    r"|(?:[\w.@+-]+/)+|(?:\*\*?/)*\*(?:\.[\w*]+)?|\.[A-Za-z][\w.-]{2,40})"
)
_QUOTED_PATH = re.compile(r"[\w./*~-]{0,100}[./*][\w./*~-]{1,100}")
_SHELL_SAFE_PATH = re.compile(r"[\w*./~@+-]+", re.ASCII)
_ABBREVIATIONS = ("e.g", "i.e", "a.k.a", "p.s", "vs")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_WORD = re.compile(r"\w[\w'\u2019-]*")
_PAIR = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z_][\w-]{0,60})[ \t]?[=:][ \t]?"
    r"(?:`(?P<code>[^`]+)`|\"(?P<double>[^\"]+)\"|(?P<plain>[^\s,;`\"]+))"
)
_SEPARATOR = re.compile(r"\s*(?:[,;]|\b(?:and|und|et|or)\b)\s+", re.IGNORECASE)
_BARE_COMMAND = re.compile(
    r"\b(?:run|execute)\s+(?:(?:the\s+)?(?:following\s+)?command:?\s+(?P<any>[^`\"\s][^`\n]*)"
    r"|(?P<known>(?:ls|pwd|cat|echo|date|whoami|uname|git|grep|head|tail|wc|df|du|ps|which|id|hostname)\b[^`\n]*))",
    re.IGNORECASE,
)


class Token(msgspec.Struct):
    """A word or a value, and its position, quotes included."""

    text: str
    kind: ValueKind
    start: int
    end: int
    opens: bool = False
    """It is the first of a sentence."""
    is_scope: bool = False
    """It follows a word such as `in`."""
    concept: str = ""
    """The meaning of a word; empty for a value."""
    things: tuple[str, ...] = ()
    """The kinds of things that a value may denote."""

    def __post_init__(self) -> None:
        if self.kind == "word":
            self.concept = find_concept(self.text)
        elif self.kind == "url":
            self.things = ("page", "web")
        elif self.kind == "path" or (self.kind in ("code", "quoted") and _QUOTED_PATH.fullmatch(self.text)):
            self.things = ("directory",) if self.text.endswith("/") else ("file", "directory")


class UserPrompt:
    """A prompt and what it asks for."""

    def __init__(self, prompt: str) -> None:
        self.text = prompt[:MAX_PROMPT_CHARS]
        self.low = self.text.lower()
        self.whole = self.text.strip(" ?!.\n")
        self.tokens = list(_split_tokens(self.text))
        for at, token in enumerate(self.tokens):
            token.is_scope = any(each.text.lower() in _INSIDE for each in self.tokens[max(at - 2, 0) : at])
        self.concepts = frozenset(token.concept for token in self.tokens) - {""}
        self.pairs = {
            match["name"].lower(): match["code"] or match["double"] or match["plain"].rstrip(".!?)")
            for match in _PAIR.finditer(self.text)
        }
        """Values given by name: `city=Paris` or `city: "New York"`."""
        is_question = "?" in self.text or any(
            token.kind == "word" and token.text.lower() in QUESTIONS and (token.opens or token.text.lower() == "what")
            for token in self.tokens
        )
        self.looks = not self.concepts & CHANGING and (is_question or bool(self.concepts & RETRIEVING))
        """It asks for information, and for no change."""
        about_files = self.concepts & {"file", "directory"}
        self.paths = [
            token.text
            for token in self.tokens
            if "directory" in token.things or (about_files and token.kind in ("code", "quoted"))
        ]
        self.files = [path for path in self.paths if not path.endswith("/")]
        bare = _BARE_COMMAND.search(self.text)
        code = self.find_values("code") or ([(bare["any"] or bare["known"]).strip().rstrip(".!?")] if bare else [])
        self.commands = code if "run" in self.concepts else []
        """The commands that it asks to run."""
        self.things = {*self.concepts, *(thing for token in self.tokens for thing in token.things)}
        """The concepts of its words and values."""
        if self.commands:
            self.things.add("command")
        if {"list", "file"} <= self.things:
            self.things.add("directory")

    def read_commands(self) -> list[str]:
        """Shell commands that read, list or search the files that it asks for, and change nothing."""
        if not self.looks:
            return []
        if self.concepts & {"file", "directory"} and (self.concepts & {"list", "find"} or not self.files):
            return [f"ls {_quote_path(path)}" for path in self.paths] or ["ls"]
        if self.concepts & {"search", "find"}:
            return [f"grep -rnF -- {quote(text)} ." for text in self.find_values("code", "quoted")]
        return [f"cat {_quote_path(path)}" for path in self.files]

    def find_values(self, *kinds: ValueKind) -> list[str]:
        """The values of these kinds, without repetitions."""
        return list(dict.fromkeys(token.text for token in self.tokens if token.kind in kinds))

    def find_names(self, excluded: Collection[str] = ()) -> list[str]:
        """Capitalised names: the last one in each part of an enumeration. `Paris, France` is one.

        `excluded` are words, in lower case, that are not names.
        """
        separators = [*islice(_SEPARATOR.finditer(self.text), MAX_ENUMERATED)]
        is_one = [separator[0].strip() for separator in separators] == [","]
        starts = [separator.end() for separator in separators if not is_one]

        def find_part(token: Token) -> int | None:
            """The part that a name is in; None if the token is no name."""
            is_capitalised = token.kind == "word" and token.text[:1].isupper() and not token.opens
            is_name = is_capitalised and token.text != "I" and token.text.lower() not in excluded
            return bisect_right(starts, token.start) if is_name else None

        runs = [(part, [*tokens]) for part, tokens in groupby(self.tokens, find_part)]
        found = {part: self.text[run[0].start : run[-1].end] for part, run in runs if part is not None}
        return list(dict.fromkeys(found.values()))

    def mentions(self, phrase: str) -> bool:
        """Whether a phrase occurs in it, not as part of another word."""
        return bool(phrase) and re.search(rf"(?<!\w){re.escape(phrase.lower())}(?!\w)", self.low) is not None


def _quote_path(path: str) -> str:
    """A path quoted for a shell, so that it is never an option; `~` and `*` keep their meaning."""
    path = f"./{path}" if path.startswith("-") else path
    return path if _SHELL_SAFE_PATH.fullmatch(path) else quote(path)


def _split_tokens(text: str) -> Iterator[Token]:
    opens = True
    for match in _TOKEN.finditer(text):
        chunk = match["chunk"]
        if chunk is None:
            value = next(group for group in match.groups() if group is not None)
            kind: ValueKind = "code" if match["fence"] or match["code"] else "quoted"
            yield Token(value.strip() if kind == "code" else value, kind, match.start(), match.end(), opens)
            opens = False
            continue
        inner = chunk.lstrip("([{<,;")
        start = match.start() + len(chunk) - len(inner)
        inner = inner.rstrip(")]}>,;:!?").removesuffix(".").rstrip(")]}>")
        is_path = 1 < len(inner) < 1000 and _PATH.fullmatch(inner) and inner.lower() not in _ABBREVIATIONS
        if is_path or inner.startswith(("http://", "https://")) or _NUMBER.fullmatch(inner):
            kind = "url" if "://" in inner else "number" if _NUMBER.fullmatch(inner) else "path"
            yield Token(inner, kind, start, start + len(inner), opens)
            opens = False
        else:
            for word in _WORD.finditer(inner):
                kind = "number" if _NUMBER.fullmatch(word[0]) else "word"
                yield Token(word[0], kind, start + word.start(), start + word.end(), opens and word.start() == 0)
                opens = False
        opens = opens or chunk.endswith((".", "!", "?", ":"))
