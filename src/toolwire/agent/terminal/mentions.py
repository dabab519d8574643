"""Files that a prompt mentions: `@src/main.py`, or `@"a name.txt"`. Their text is sent with the prompt."""

import re
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from toolwire.agent.terminal.display import MAX_CHARS, shorten_line
from toolwire.agent.tools import files
from toolwire.agent.tools.file_access import confine
from toolwire.agent.tools.image import image_url
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context

MAX_MENTIONS = 20
"""Files that one prompt may include."""

MENTION = re.compile(r'(?<!\S)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>\S+))')
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")


class PromptWithFiles(msgspec.Struct, frozen=True):
    """A prompt with the files that it mentions."""

    text: str
    images: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()
    """Messages about mentioned files that could not be included."""


def include_files(text: str, cwd: Path) -> PromptWithFiles:
    """Add the files that a prompt mentions. A mention that is not a file of the working directory stays a word, and
    is a problem.
    """
    context = Context(cwd)
    parts, images, problems, missing = [text], list[Path](), list[str](), list[str]()
    found: dict[str, Path] = {}
    for mention in islice(MENTION.finditer(text), MAX_MENTIONS):
        whole: str = mention["quoted"] or mention["plain"]
        for name in (whole, whole.rstrip(".,;:!?)]}'\"")):
            with suppress(ToolError, OSError, ValueError):
                path = confine(name, context).path
                if path.is_file():
                    found[name] = path
                    break
        else:
            missing.append(shorten_line(mention[0], MAX_CHARS))
    if missing:
        problems.append(f"there is no such file, so this stays a word: {', '.join(missing)}")
    for name, path in found.items():
        try:
            if path.suffix.lower() in _IMAGES:
                image_url(path)  # raises if it is not an image or too large
                images.append(path)
            else:
                parts.append(f'<file path="{name}">\n{files.read(name, context=context)}\n</file>')
        except (ToolError, OSError, ValueError) as error:
            problems.append(f"@{name}: {error}")
    return PromptWithFiles("\n\n".join(parts), tuple(images), tuple(problems))
