"""The systems of the comparison on Redis: Taskmill, and peers in three languages, each with its best settings, all on the settings of one server."""

from __future__ import annotations

from bench.contenders import Contender

__all__ = ["ALL", "ASYNQ", "BULLMQ", "DRAMATIQ", "HUEY", "OTHERS", "PEERS", "PYTHON", "TASKIQ", "TASKMILL", "TASKMILL_ASYNC"]

DRAIN = 100_000
SLOWER = 20_000


def _unfinished(lists: tuple[str, ...], sets: tuple[str, ...] = ()) -> str:
    """A script: whether one of these has an entry."""
    sizes = [f"redis.call('LLEN', '{key}')" for key in lists] + [f"redis.call('ZCARD', '{key}')" for key in sets]
    return f"return {' + '.join(sizes)}"


TASKMILL = Contender("Taskmill", "taskmill_side", "def", drain=DRAIN)
TASKMILL_ASYNC = Contender("Taskmill, async def", "taskmill_side", "async def", drain=DRAIN)

ASYNQ = Contender(
    "asynq, 8 servers", "", "8x100", peer="asynq", drain=DRAIN,
    unfinished=_unfinished(("asynq:{default}:pending", "asynq:{default}:active"), ("asynq:{default}:retry",)),
)  # fmt: skip
BULLMQ = Contender("BullMQ", "", peer="bullmq", drain=DRAIN, unfinished=_unfinished(("bull:bench:wait", "bull:bench:active"), ("bull:bench:delayed",)))
HUEY = Contender("Huey", "huey_redis", peer="huey", drain=SLOWER, unfinished=_unfinished(("huey.redis.bench",)))
DRAMATIQ = Contender("Dramatiq", "dramatiq_redis", peer="dramatiq", drain=SLOWER, unfinished="return redis.call('HLEN', 'dramatiq:default.msgs')")

_TASKIQ = """
local left = 0
for _, group in ipairs(redis.call('XINFO', 'GROUPS', 'taskiq')) do
  for i = 1, #group, 2 do
    if group[i] == 'pending' or group[i] == 'lag' then left = left + (tonumber(group[i + 1]) or 0) end
  end
end
return left
"""
TASKIQ = Contender("taskiq", "taskiq_redis", peer="taskiq", drain=SLOWER, unfinished=_TASKIQ)

OTHERS = (ASYNQ, BULLMQ)
PYTHON = (HUEY, DRAMATIQ, TASKIQ)
PEERS = (*OTHERS, *PYTHON)
ALL = (TASKMILL, TASKMILL_ASYNC, *PEERS)
