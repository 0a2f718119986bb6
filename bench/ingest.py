"""Submits over HTTP, accepted and committed: one a request beside a handler that stores nothing, and 500 a request."""

from __future__ import annotations

import json

from bench.report import Figure, Plan, each, rates
from bench.serving import Load, load, served, trivial

__all__ = ["run"]

SECTION = "ingest"
CONNECTIONS = 32
BATCH = 500
TASK = {"type": "bench", "payload": {"user_id": 42, "name": "Ada", "tags": ["a", "b"]}, "queue": "bench"}
PATH = "/api/v1/tasks"


async def run(plan: Plan) -> list[Figure]:
    one = json.dumps(TASK, separators=(",", ":")).encode()
    many = json.dumps({"tasks": [TASK] * BATCH}, separators=(",", ":")).encode()
    found: dict[str, list[Load]] = {"ours": [], "trivial": [], "batch": []}
    cpu: list[float] = []
    for number in range(plan.rounds):
        plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {CONNECTIONS} connections, {plan.seconds:g} s each")
        with trivial(plan) as api:
            await load(api, PATH, one, CONNECTIONS, 0.5)
            found["trivial"].append(_checked(await load(api, PATH, one, CONNECTIONS, plan.seconds)))
        with plan.stores.fresh() as url, served(url, plan) as api:
            await load(api, PATH, one, CONNECTIONS, 0.5)
            before = api.group.usage().cpu
            found["ours"].append(_checked(await load(api, PATH, one, CONNECTIONS, plan.seconds)))
            cpu.append((api.group.usage().cpu - before) / sum(found["ours"][-1].statuses.values()) * 1e6)
        with plan.stores.fresh() as url, served(url, plan) as api:
            found["batch"].append(_checked(await load(api, f"{PATH}:batch", many, 4, plan.seconds)))
    return _figures(plan, found, cpu)


def _checked(load: Load) -> Load:
    assert set(load.statuses) == {"202"}, load.statuses
    return load


def _figures(plan: Plan, found: dict[str, list[Load]], cpu: list[float]) -> list[Figure]:
    typical = plan.stores.typical
    ours, beside = [load.rate for load in found["ours"]], [load.rate for load in found["trivial"]]
    judged = plan.stores.engine in {"sqlite", "redis"}
    p95 = [load.p95 for load in found["ours"]]
    tasks = [load.rate * BATCH for load in found["batch"]]
    how = f"{CONNECTIONS} connections, a second process asks; {min(cpu):.0f} us of the API's processor time a request"
    return [
        Figure(SECTION, "single POST, accepted and committed", typical(ours), "/s", ">=" if judged else "", 6_000 if judged else None, how=how, rounds=ours),
        Figure(SECTION, "single POST, p95", min(p95), "ms", "<" if judged else "", 10 if judged else None, rounds=p95),
        rates(SECTION, "single POST / trivial handler", 0.5, {"ours": ours, "trivial": beside}, typical=typical),
        Figure(SECTION, f"batch of {BATCH}", typical(tasks), "/s", ">=", 50_000, how="tasks, over 4 connections", rounds=tasks),
        each(SECTION, "trivial Starlette + msgspec handler", beside, typical=typical),
    ]
