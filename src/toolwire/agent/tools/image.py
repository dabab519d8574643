"""view_image: an image file for the model to look at.

What a file is, its first bytes say, not its name: servers refuse an image whose type is told wrong.
"""

from base64 import b64encode

from toolwire.agent.call import ToolError
from toolwire.agent.registry import Context, tool
from toolwire.agent.tools.confine import confined, opened
from toolwire.core.request import ImagePart

MAX_BYTES = 5 * 1024 * 1024 // 4 * 3
"""What fits into 5 MB of base64, the least that a server is known to take of one image (Anthropic)."""


@tool(name="view_image", parallel=True)
def view_image(path: str, *, context: Context) -> ImagePart:
    """Look at an image file (PNG, JPEG, GIF or WebP).

    Args:
        path: The image, absolute or from the working directory.
    """
    place = confined(path, context)
    with opened(place, context) as file:
        data = file.read(MAX_BYTES + 1)
    kind = _kind(data)
    if not kind:
        raise ToolError(f"{place.name} is not a PNG, JPEG, GIF or WebP image")
    if len(data) > MAX_BYTES:
        raise ToolError(f"{place.name} is too large to look at (more than {MAX_BYTES} bytes); make it smaller first")
    return ImagePart(f"data:image/{kind};base64,{b64encode(data).decode()}")


def _kind(data: bytes) -> str:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "webp"
    return ""
