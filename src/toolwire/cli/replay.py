"""`toolwire replay`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from toolwire.cli.options import stop


def replay(
    file: Annotated[Path, typer.Argument(help="A recording, as [debug] record writes it.")],
) -> None:
    """Print what each dialect makes of a recorded turn."""
    from toolwire.replay import show

    try:
        show(file.read_bytes(), sys.stdout)
    except (OSError, ValueError) as error:
        raise stop(f"{file}: {error}") from None
