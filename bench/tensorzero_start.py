"""Starts TensorZero's gateway out of its PyPI package and writes its address into a file: it chooses its own port.

usage: tensorzero_start.py CONFIG FILE
"""

import asyncio
import sys
from pathlib import Path

import tensorzero


async def main() -> None:
    gateway = await tensorzero._start_http_gateway(
        config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=True
    )
    tell(Path(sys.argv[2]), gateway.base_url)
    await asyncio.Event().wait()


def tell(file: Path, address: str) -> None:
    """All at once, for whoever waits for the file."""
    unfinished = file.with_suffix(".part")
    unfinished.write_text(address)
    unfinished.rename(file)


asyncio.run(main())
