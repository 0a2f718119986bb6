"""Submits over gRPC from a second process, beside the engine's own submit of many in the same run.

The server listens in this process, on loopback, with nothing left out: keys are looked at, payloads are read, metrics are kept.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.report import Figure, Plan
    from bench.runner import Section
    from taskmill.server.grpc.server import GrpcServer
    from taskmill.server.service import Service

ROOT = Path(__file__).resolve().parent.parent
SECTION = "grpc"
MANY = 50_000
TARGET = 0.6
WAYS = {"SubmitBatch(500), one caller": ("batch", 1), "SubmitBatch(500), four callers": ("batch", 4), "SubmitStream": ("stream", 1)}
JUDGED = ("SubmitBatch(500), four callers", "SubmitStream")

EPILOG = """
examples:
  python bench/grpc_surface.py --quick
  python bench/grpc_surface.py --engine redis --rounds 5
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path[0] = str(ROOT)  # this folder first would hide libraries behind files of ours
    from bench import runner

    return runner.run("bench/grpc_surface.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections(), arguments)


def sections() -> dict[str, dict[str, Section]]:
    return {engine: {SECTION: run} for engine in ("sqlite", "redis", "postgres")}


async def run(plan: Plan) -> list[Figure]:
    from bench.report import each, rates

    n = plan.count(MANY, least=2_000)
    bulk: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {n:,} tasks each way")
        with plan.stores.fresh() as url:
            async with _served(url, plan.directory) as (service, server):
                bulk.append(await _bulk(service, n))
                for name, (way, callers) in WAYS.items():
                    found[name].append(await _client(server.port, n, way, callers))
    ratios = [
        rates(SECTION, f"{name} / submit_many", TARGET if name in JUDGED else None, {"gRPC": of, "engine": bulk}, "tasks/s", typical=plan.stores.typical)
        for name, of in found.items()
    ]
    return [*ratios, each(SECTION, "submit_many in the server's process", bulk, plan.stores.release, typical=plan.stores.typical)]


@asynccontextmanager
async def _served(url: str, directory: Path) -> AsyncIterator[tuple[Service, GrpcServer]]:
    from bench.store import QUEUE, TYPE
    from bench.temporary import folder
    from taskmill.config import Settings
    from taskmill.engine import Joining
    from taskmill.engines import create, schema
    from taskmill.server.grpc.server import GrpcServer
    from taskmill.server.service import Service
    from taskmill.task import TypeSettings

    await asyncio.to_thread(schema(url).upgrade)
    with folder(directory) as kept:
        async with Service(create(url), Settings(), audit=kept / "audit.jsonl", open=True) as service:
            await service.engine.join(Joining(worker="bench", queues=(QUEUE,), types={TYPE: TypeSettings()}))
            server = GrpcServer(service.desk, service.crew, service.keys, observed=lambda *_: None)
            await server.start("127.0.0.1", 0)
            try:
                yield service, server
            finally:
                await server.stop(0)


async def _bulk(service: Service, n: int) -> float:
    from bench.store import plain
    from taskmill.engine import Status

    began = time.perf_counter()
    answers = await service.operations.submit_many(plain(number) for number in range(n))
    taken = time.perf_counter() - began
    assert all(answer.status is Status.CREATED for answer in answers)
    return n / taken


async def _client(port: int, n: int, way: str, callers: int) -> float:
    program = str(Path(__file__).with_name("grpc_client.py"))
    process = await asyncio.create_subprocess_exec(sys.executable, program, f"127.0.0.1:{port}", str(n), way, str(callers), stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0, f"the client ended with {process.returncode}"
    return float(said)


if __name__ == "__main__":
    sys.exit(main())
