"""The other side of `bench/grpc_surface.py`: submits tasks over gRPC and prints how many a second were answered.

python bench/grpc_client.py ADDRESS TASKS batch|stream CALLERS
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

BATCH = 500


async def run(address: str, n: int, way: str, callers: int) -> float:
    import grpc

    from bench.store import PAYLOAD, TYPE
    from taskmill.server.grpc.v1 import taskmill_pb2 as pb
    from taskmill.server.grpc.v1 import taskmill_pb2_grpc as stubs

    request = pb.SubmitBatchRequest(tasks=[pb.NewTask(type=TYPE, payload=PAYLOAD)] * BATCH)
    left = n // BATCH

    async def requests() -> AsyncIterator[pb.SubmitBatchRequest]:
        nonlocal left
        while left > 0:
            left -= 1
            yield request

    async with grpc.aio.insecure_channel(address) as channel:
        stub: stubs.TasksAsyncStub = stubs.TasksStub(channel)
        await channel.channel_ready()

        async def caller() -> int:
            if way == "stream":
                return sum([len(response.answers) async for response in stub.SubmitStream(requests())])
            return sum([len((await stub.SubmitBatch(each)).answers) async for each in requests()])

        began = time.perf_counter()
        answered = sum(await asyncio.gather(*(caller() for _ in range(callers))))
        taken = time.perf_counter() - began
    assert answered == n // BATCH * BATCH, f"{answered} of {n} tasks were answered"
    return answered / taken


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    print(asyncio.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))))
