"""The floor on Redis: a list, a string for each record, a hash of leases, and nothing else. No limits, no priorities, no history, no events.

One connection claims a batch (ids from the list, their records, a lease with a token for each) and finishes it (tokens compared, leases gone, records
written anew, ids into the list of what has ended), one script a verb. What an engine costs beyond this is what its promises cost.
"""

from __future__ import annotations

import time
from typing import Any

import redis
import redis.asyncio

__all__ = ["Commits", "claim_and_finish", "drain", "fill"]

FILL = 200
PREFIX = "raw:{0}:"

# KEYS[1] the prefix; ARGV: id, record, …
SUBMIT = """
local ids, records = {}, {}
for i = 1, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
  records[i], records[i + 1] = KEYS[1] .. 't:' .. ARGV[i], ARGV[i + 1]
end
redis.call('MSET', unpack(records))
redis.call('RPUSH', KEYS[1] .. 'line', unpack(ids))
return #ids
"""

# KEYS[1] the prefix; ARGV: how many, worker. Answers {ids, records, the token before the first}
CLAIM = """
local ids = redis.call('LPOP', KEYS[1] .. 'line', ARGV[1])
if not ids then return {} end
local token = redis.call('INCRBY', KEYS[1] .. 'token', #ids) - #ids
local keys, leases = {}, {}
for i, id in ipairs(ids) do
  keys[i] = KEYS[1] .. 't:' .. id
  leases[2 * i - 1], leases[2 * i] = id, token + i
end
redis.call('HSET', KEYS[1] .. 'run:' .. ARGV[2], unpack(leases))
return {ids, redis.call('MGET', unpack(keys)), token}
"""

# KEYS[1] the prefix; ARGV: worker, then id, token, record, …. Answers how many were refused
FINISH = """
local run, ids = KEYS[1] .. 'run:' .. ARGV[1], {}
for i = 2, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
local held = redis.call('HMGET', run, unpack(ids))
local ended, records = {}, {}
for n, id in ipairs(ids) do
  if held[n] == ARGV[3 * n] then
    ended[#ended + 1] = id
    records[#records + 1] = KEYS[1] .. 't:' .. id
    records[#records + 1] = ARGV[3 * n + 1]
  end
end
if #ended > 0 then
  redis.call('HDEL', run, unpack(ended))
  redis.call('MSET', unpack(records))
  redis.call('RPUSH', KEYS[1] .. 'ended', unpack(ended))
end
return #ids - #ended
"""


def claim_and_finish(url: str, jobs: int, batch: int, payload: bytes) -> float:
    """Jobs a second; the jobs are there before the clock starts."""
    fill(url, jobs, payload)
    began = time.perf_counter()
    done = drain(url, batch)
    taken = time.perf_counter() - began
    assert done == jobs, f"{done} of {jobs} jobs were finished"
    return done / taken


def fill(url: str, jobs: int, payload: bytes) -> None:
    client: Any = redis.Redis.from_url(url)
    submit = client.register_script(SUBMIT)
    record = b"p1default\t\n" + payload
    for start in range(0, jobs, FILL):
        ids = (f"{number:032x}" for number in range(start, min(start + FILL, jobs)))
        submit(keys=[PREFIX], args=[part for id in ids for part in (id, record)])
    client.close()


def drain(url: str, batch: int, worker: str = "bench") -> int:
    """Claim and finish until nothing is left; how many it did."""
    client: Any = redis.Redis.from_url(url)
    claim, finish = client.register_script(CLAIM), client.register_script(FINISH)
    done = 0
    while found := claim(keys=[PREFIX], args=[batch, worker]):
        ids, records, token = found
        arguments: list[Any] = [worker]
        for number, (id, record) in enumerate(zip(ids, records, strict=True), start=token + 1):
            arguments += (id, number, b"c" + record[1:])
        refused = finish(keys=[PREFIX], args=arguments)
        assert not refused, f"{refused} finishes were refused"
        done += len(ids)
    client.close()
    return done


class Commits:
    """Writes of one small key: what the server alone makes a caller wait, measured in between the steps of an engine."""

    def __init__(self, url: str) -> None:
        self.seconds: list[float] = []
        self._client: Any = redis.asyncio.Redis.from_url(url)

    async def measure(self) -> None:
        began = time.perf_counter()
        await self._client.set("probe", "1")
        self.seconds.append(time.perf_counter() - began)

    async def close(self) -> None:
        await self._client.aclose()
