"""view_image: what is an image, and what is too much of one."""

import asyncio
import base64
from pathlib import Path

import msgspec
import pytest

from toolwire.agent.tools import image
from toolwire.agent.tools.image import view_image
from toolwire.core.request import ImagePart
from toolwire.turns.tools.call import FunctionPayload, ToolCall, ToolError
from toolwire.turns.tools.registry import Context, Result

IMAGES = {
    "png": b"\x89PNG\r\n\x1a\nrest",
    "jpeg": b"\xff\xd8\xff\xe0rest",
    "gif": b"GIF89arest",
    "webp": b"RIFF\x10\0\0\0WEBPVP8 ",
}


def look(folder: Path, path: str) -> Result:
    payload = FunctionPayload(msgspec.json.encode({"path": path}).decode())
    context = Context(folder, lambda text: None, writable=False)
    return asyncio.run(view_image.run(ToolCall("view_image", "call_1", payload), context))


def test_looking_may_run_beside_others():
    assert (view_image.name, view_image.parallel, view_image.writes) == ("view_image", True, False)


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_what_its_bytes_say(tmp_path: Path, kind: str):
    (tmp_path / "picture.txt").write_bytes(IMAGES[kind])
    result = look(tmp_path, "picture.txt")
    assert result.parts == (ImagePart(f"data:image/{kind};base64,{base64.b64encode(IMAGES[kind]).decode()}"),)
    assert not result.failed


def test_the_older_gif_is_one_too(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"GIF87arest")
    part = look(tmp_path, "a").parts[0]
    assert isinstance(part, ImagePart)
    assert part.url.startswith("data:image/gif;base64,")


@pytest.mark.parametrize("data", [b"", b"hello", b"RIFF\x10\0\0\0WAVEfmt ", b"<svg/>", b"\x89PNG", b"BM rest"])
def test_a_name_makes_no_image(tmp_path: Path, data: bytes):
    (tmp_path / "picture.png").write_bytes(data)
    with pytest.raises(ToolError, match=r"^picture\.png is not a PNG, JPEG, GIF or WebP image$"):
        look(tmp_path, "picture.png")


def test_the_largest_image_fits_into_five_megabytes_of_base64(tmp_path: Path):
    room = image.MAX_IMAGE_BYTES - len(IMAGES["png"])
    (tmp_path / "a").write_bytes(IMAGES["png"] + b"\0" * room)
    part = look(tmp_path, "a").parts[0]
    assert isinstance(part, ImagePart)
    assert len(part.url.partition(",")[2]) == 5 * 1024 * 1024
    (tmp_path / "b").write_bytes(IMAGES["png"] + b"\0" * (room + 1))
    with pytest.raises(ToolError, match="b is too large"):
        look(tmp_path, "b")


def test_a_huge_image_is_not_read_to_its_end(tmp_path: Path):
    with (tmp_path / "a").open("wb") as file:
        file.write(IMAGES["png"])
        file.truncate(8 * 1024**3)
    with pytest.raises(ToolError, match="a is too large"):
        look(tmp_path, "a")


def test_a_missing_image_names_similar_ones(tmp_path: Path):
    (tmp_path / "logo.png").write_bytes(IMAGES["png"])
    with pytest.raises(ToolError, match=r"^there is no logo\.jpg; similar: logo\.png$"):
        look(tmp_path, "logo.jpg")


def test_an_image_out_of_the_roots_is_refused(tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "a.png").write_bytes(IMAGES["png"])
    (tmp_path / "work" / "link.png").symlink_to(tmp_path / "a.png")
    for path in ("../a.png", "link.png"):
        with pytest.raises(ToolError, match="is outside the folders"):
            look(tmp_path / "work", path)
