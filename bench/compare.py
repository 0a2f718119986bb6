"""Peers beside Taskmill in one run: the same no-op, each system in an environment of its own, taking turns round by round.

A system is measured from outside: its no-op counts itself in memory that all processes share, and a drain lasts from the first to the last
no-op, or to the last commit where the store knows it. Peers run with their best settings, and the table says how safe each of them is:
an acknowledged task at synchronous=FULL survives the loss of power, at NORMAL the last ones and at OFF the whole store may not.
On PostgreSQL all of them run at synchronous_commit=on, on one private server, each in a database of its own, and a drain ends for
all in the same way: when that database holds no unfinished task. On Redis all of them share the settings of one private server,
appendfsync=everysec, and a drain ends likewise; when the last task of Taskmill ended its own record says.
Peers are installed in $BENCH_PEERS, else in taskmill-bench of the user's cache; one that cannot be is left out, and the table says so.
"""

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
  submit      many at once, one by one, and from 64 coroutines; Taskmill beside the best peer
  drain       `taskmill worker` with one and two processes beside peers and a raw loop; CPU of a task
  latency     from a submit in another process to the start on an idle worker

  offered     of Redis: 10,000 submits a second through the SDK beside a claimer; how long each takes

peers on SQLite: Huey, Taskito, Honker; on PostgreSQL: River (Go), Graphile Worker (Node), PgQueuer, Procrastinate;
on Redis: asynq (Go), BullMQ (Node), Huey, Dramatiq, taskiq

examples:
  python bench/compare.py --quick
  python bench/compare.py --engine postgres --only drain
  python bench/compare.py --engine postgres --only drain --system "async def" --system River
  python bench/compare.py --engine redis --only submit --only offered
  python bench/compare.py --only drain --rounds 5 --json figures.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import runner

    return runner.run("bench/compare.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections(), arguments)


def sections() -> dict[str, dict[str, Section]]:
    """By engine and name, in order."""
    from bench import drain, drain_postgres, drain_redis, latency, latency_postgres, latency_redis, offered, submit, submit_postgres, submit_redis

    return {
        "sqlite": {"submit": submit.run, "drain": drain.run, "latency": latency.run},
        "postgres": {"submit": submit_postgres.run, "drain": drain_postgres.run, "latency": latency_postgres.run},
        "redis": {"submit": submit_redis.run, "drain": drain_redis.run, "latency": latency_redis.run, "offered": offered.run},
    }


if __name__ == "__main__":
    sys.exit(main())
