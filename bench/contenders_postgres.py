"""The systems of the comparison on PostgreSQL: Taskmill, and peers in three languages, each with its best settings. All of them at synchronous_commit=on."""

from __future__ import annotations

from bench.contenders import Contender

__all__ = ["ALL", "GRAPHILE", "PEERS", "PGQUEUER", "PROCRASTINATE", "PYTHON", "RIVER", "TASKMILL", "TASKMILL_ASYNC"]

DRAIN = 100_000

OWN = "SELECT EXISTS (SELECT FROM taskmill.task)"  # it holds live tasks only
TASKMILL = Contender("Taskmill", "taskmill_side", "def", drain=DRAIN, unfinished=OWN)
TASKMILL_ASYNC = Contender("Taskmill, async def", "taskmill_side", "async def", drain=DRAIN, unfinished=OWN)

_RIVER = "SELECT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending'))"
RIVER = (
    Contender("River, 1,000 workers", "", "1000", peer="river", drain=DRAIN, unfinished=_RIVER),
    Contender("River, 10,000 workers", "", "10000", peer="river", drain=DRAIN, unfinished=_RIVER),
)
GRAPHILE = Contender("Graphile Worker, batched", "", peer="graphile", drain=DRAIN, unfinished="SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)")
PGQUEUER = Contender(
    "PgQueuer", "pgqueuer_postgres", peer="pgqueuer", drain=DRAIN, unfinished="SELECT EXISTS (SELECT FROM pgqueuer WHERE status IN ('queued', 'picked'))"
)
PROCRASTINATE = Contender(
    "Procrastinate", "procrastinate_postgres", peer="procrastinate", drain=2_000,
    unfinished="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
)  # fmt: skip

PYTHON = (PGQUEUER, PROCRASTINATE)
PEERS = (*RIVER, GRAPHILE, *PYTHON)
ALL = (TASKMILL, TASKMILL_ASYNC, *PEERS)
