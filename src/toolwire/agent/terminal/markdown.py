"""Markdown of a model, rendered while it arrives.

A block (a paragraph, a list, a table, a piece of code) becomes permanent when the next one begins; the last one is
redrawn until then. Text of models is untrusted: control characters are removed, even those written as HTML entities,
HTML is shown as source, and links are shown with their address instead of hiding it behind a text.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import cast

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment, Segments
from rich.syntax import Syntax
from rich.text import Text

from toolwire.core.display import clean

CODE_THEME = "ansi_dark"
"""Uses the terminal's own sixteen colours."""
PLAIN = "text"
"""The language of code that names none."""
MAX_LIVE_LINES = 40
"""Lines of code that are redrawn; the lines before them become permanent."""
MAX_BLOCK = 8192
"""Characters of a block that are redrawn; a longer one becomes permanent up to its last complete line."""

_parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class MarkdownStream:
    """Takes pieces of text; `complete` returns the blocks that will not change, and `rest` the last, unfinished one."""

    def __init__(self) -> None:
        self._text = ""
        self._is_first = True
        self._is_inside_code = False  # a part of the code in `_text` is printed already
        self._is_new = False

    def feed(self, text: str) -> None:
        """Add a piece of text."""
        self._text += clean(text)
        self._is_new = True

    def complete(self) -> list[ConsoleRenderable]:
        """The blocks that have become complete since the last call."""
        if not self._is_new:
            return []
        self._is_new = False
        lines = self._text.split("\n")[:-1]  # the last line may become anything
        tokens = _parser.parse("\n".join(lines)) if lines else []
        blocks = [(token.map[0], token) for token in tokens if token.level == 0 and token.map]  # by first line
        if not blocks:
            return []
        last, token = blocks[-1]
        done = [self._block(lines[start:stop]) for (start, _), (stop, _) in pairwise(blocks)]
        rest = self._text.split("\n")[last:]
        is_code = token.type == "fence" and not _is_closed(token, rest)
        if is_code and len(rest) > MAX_LIVE_LINES:
            done.append(self._block(lines[last:], goes_on=True))
            self._is_inside_code = True
            rest = [lines[last], rest[-1]]
        elif (token.type == "fence" and not is_code) or sum(map(len, rest)) > MAX_BLOCK:
            done.append(self._block(lines[last:]))
            rest = rest[-1:]
        self._text = "\n".join(rest)
        return done

    def finish(self) -> list[ConsoleRenderable]:
        """Everything that is left; the next text starts a new document."""
        rest = [self._block(self._text.split("\n"))] if self._text.strip() or self._is_inside_code else []
        self.__init__()
        return rest

    def rest(self) -> ConsoleRenderable | None:
        """The last block in its current state; None if there is none."""
        if not self._text.strip():
            return None
        return SafeMarkdown(self._text, is_first=self._is_first, continues=self._is_inside_code)

    def _block(self, lines: Sequence[str], *, goes_on: bool = False) -> ConsoleRenderable:
        parts = {"continues": self._is_inside_code, "goes_on": goes_on}
        made = SafeMarkdown("\n".join(lines), is_first=self._is_first, **parts)
        self._is_first = self._is_inside_code = False
        return made


def _is_closed(fence: Token, lines: Sequence[str]) -> bool:
    """Whether the last block of these lines, a piece of code, is closed."""
    first, end = cast("list[int]", fence.map)
    last = lines[end - first - 1].strip()
    return end - first > 1 and last.startswith(fence.markup) and not last.strip(fence.markup[0])


class SafeMarkdown(Markdown):
    """Markdown of a model. With `continues` or `goes_on` it is a part of a code block, without its start or end."""

    def __init__(self, text: str, *, is_first: bool = True, continues: bool = False, goes_on: bool = False) -> None:
        super().__init__("", code_theme=CODE_THEME, justify="default", hyperlinks=False)
        self.markup = text
        self.parsed = [*_clean_tokens(_parser.parse(text))]
        self._is_first = is_first
        self._is_part = continues or goes_on
        self._continues = continues
        for token in self.parsed[:1]:
            token.meta.update(continues=continues, goes_on=goes_on)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._is_first and not self._continues:
            yield Segment.line()
        parts = cast("list[RenderableType]", [*super().__rich_console__(console, options)])
        lines = [_strip_line(line) for line in Segment.split_lines(console.render(Group(*parts), options))]
        while lines and not lines[-1] and not self._is_part:
            lines.pop()
        blank = next((index for index, line in enumerate(lines) if line), 0) if not self._is_part else 0
        for line in lines[blank:]:
            yield Segments([*line, Segment.line()])


def _strip_line(line: list[Segment]) -> list[Segment]:
    """The line without trailing spaces, so that it can be copied."""
    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(" "), kept[-1].style)
    return kept


def _clean_tokens(tokens: Iterable[Token]) -> Iterator[Token]:
    for token in tokens:
        token.content = clean(token.content)
        token.info = clean(token.info)
        token.attrs = {key: clean(value) if isinstance(value, str) else value for key, value in token.attrs.items()}
        if token.type == "softbreak":
            token.type = "hardbreak"  # models intend their line breaks
        token.children = [*_clean_tokens(token.children)] if token.children else token.children
        yield token


class _LeftHeading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text.assemble(self.text, style=console.get_style(self.style_name, default="bold"))


class _Code(CodeBlock):
    """Code between its fences, highlighted. The terminal wraps its lines, so that they can be copied."""

    def __init__(self, token: Token) -> None:
        super().__init__((token.info or "").partition(" ")[0] or PLAIN, CODE_THEME)
        self._info = token.info.strip()
        self._is_fenced = token.type == "fence"
        self._has_beginning = not token.meta.get("continues")
        self._has_end = not token.meta.get("goes_on")
        self._wraps = token.level > 0  # inside a list or a quotation, long lines would be cut off

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> "_Code":  # noqa: ARG003 - as rich calls it
        return cls(token)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).removesuffix("\n")
        if self._is_fenced and self._has_beginning:
            yield Text(f"```{self._info}", "dim", no_wrap=True, overflow="ellipsis")
        if not self._is_fenced:
            text = Text("    " + code.replace("\n", "\n    "))
        elif self.lexer_name == PLAIN:
            text = Text(code)
        else:
            text = Syntax(code, self.lexer_name, theme=CODE_THEME, background_color="default").highlight(code)
            text.right_crop(len(text.plain) - len(text.plain.removesuffix("\n")))
        text.no_wrap, text.overflow = not self._wraps, "fold" if self._wraps else "ignore"
        if code:
            yield text
        if self._is_fenced and self._has_end:
            yield Text("```", "dim")


SafeMarkdown.elements = {
    **Markdown.elements,
    **cast("dict[str, type[MarkdownElement]]", {"heading_open": _LeftHeading, "fence": _Code, "code_block": _Code}),
}
