"""The server from outside, by a load from a second process on loopback: submits over HTTP, clients that wait, and what it costs when nobody calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.runner import Section

ROOT = Path(__file__).resolve().parent.parent

EPILOG = """
sections:
  ingest      single POST beside a handler that stores nothing, and batches of 500
  waiting     an idle API process; a thousand clients that wait for results
  client      taskmill.Client: 10,000 submits/s offered (--load) for 20 s (--hold 600: ten minutes), and its rate with 64, 256 and 1,000 callers
  grpc        batches and a stream of submits beside the engine's own submits
  live        a thousand WebSocket clients: how late events come, and what submits beside them lose

examples:
  python bench/api.py --quick
  python bench/api.py --engine redis --only ingest
  python bench/api.py --only client --rounds 1 --hold 600
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import runner

    return runner.run("bench/api.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections(), arguments)


def sections() -> dict[str, dict[str, Section]]:
    """By engine and name, in order."""
    from bench import client, grpc_surface, ingest, live, waiting

    every: dict[str, Section] = {"ingest": ingest.run, "waiting": waiting.run, "client": client.run, "grpc": grpc_surface.run, "live": live.run}
    return {"sqlite": every, "postgres": every, "redis": every}


if __name__ == "__main__":
    sys.exit(main())
