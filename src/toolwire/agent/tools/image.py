"""view_image: an image file for the model to look at."""

from toolwire.agent.call import ToolError
from toolwire.agent.images import MAX_BYTES, data_url
from toolwire.agent.registry import Context, tool
from toolwire.agent.tools.confine import confined, opened
from toolwire.core.request import ImagePart


@tool(name="view_image", parallel=True)
def view_image(path: str, *, context: Context) -> ImagePart:
    """Look at an image file (PNG, JPEG, GIF or WebP).

    Args:
        path: The image, absolute or from the working directory.
    """
    place = confined(path, context)
    with opened(place, context) as file:
        data = file.read(MAX_BYTES + 1)
    try:
        return ImagePart(data_url(data, place.name))
    except ValueError as error:
        raise ToolError(str(error)) from None
