"""view_image: an image file for the model to look at."""

from toolwire.agent.images import MAX_BYTES, data_url
from toolwire.agent.tools.confine import confined, opened
from toolwire.core.request import ImagePart
from toolwire.turns.tools.call import ToolError
from toolwire.turns.tools.registry import Context, tool


@tool(name="view_image", parallel=True)
def view_image(path: str, *, context: Context) -> ImagePart:
    """Look at an image file (PNG, JPEG, GIF or WebP).

    Args:
        path: The image, absolute or from the working directory.
    """
    target = confined(path, context)
    with opened(target, context) as file:
        data = file.read(MAX_BYTES + 1)
    try:
        return ImagePart(data_url(data, target.name))
    except ValueError as error:
        raise ToolError(str(error)) from None
