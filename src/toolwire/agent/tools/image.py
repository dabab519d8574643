"""Images for a model: the `view_image` tool, and images of a prompt, as data URLs.

The type is detected from the first bytes, not from the name: servers refuse an image with a wrong type.
"""

import re
from base64 import b64encode
from pathlib import Path

from toolwire.agent.tools.file_access import confine, open_target
from toolwire.core.request import ImagePart
from toolwire.memory.private_files import open_file
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context, tool

MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3
"""5 MB as base64, the smallest known limit for one image (Anthropic)."""

_SIGNATURES = {
    "png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "jpeg": re.compile(rb"\xff\xd8\xff"),
    "gif": re.compile(rb"GIF8[79]a"),
    "webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
}
"""The first bytes of each kind of image."""


@tool(name="view_image", parallel=True)
def view_image(path: str, *, context: Context) -> ImagePart:
    """Look at an image file (PNG, JPEG, GIF or WebP).

    Args:
        path: The image, absolute or from the working directory.
    """
    target = confine(path, context)
    with open_target(target, context) as file:
        data = file.read(MAX_IMAGE_BYTES + 1)
    try:
        return ImagePart(data_url(data, target.name))
    except ValueError as error:
        raise ToolError(str(error)) from None


def data_url(data: bytes, name: str) -> str:
    """An image as a data URL. Raises `ValueError` if it is not an image or too large."""
    kind = next((kind for kind, signature in _SIGNATURES.items() if signature.match(data)), "")
    if not kind:
        raise ValueError(f"{name} is not a PNG, JPEG, GIF or WebP image")
    if len(data) > MAX_IMAGE_BYTES:
        raise ValueError(f"{name} is too large (more than {MAX_IMAGE_BYTES} bytes); reduce its size first")
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


def image_url(image: str | Path) -> str:
    """A URL as it is, or an image file as a data URL. Raises `ValueError` and `OSError`."""
    if isinstance(image, Path):
        with open_file(image) as file:
            return data_url(file.read(MAX_IMAGE_BYTES + 1), image.name)
    if not image.startswith(("data:", "http://", "https://")):
        raise ValueError(f"{image[:80]!r} is no URL; a file is given as a Path")
    return image
