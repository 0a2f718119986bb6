"""The comparison on Redis: its arithmetic, its peers, and what it says where a server is missing; it starts no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import compare, drain, drain_redis, engine, latency_redis, offered, runner, submit_redis
from bench.contenders import Contender, Drained, Waits
from bench.contenders_redis import ALL, ASYNQ, BULLMQ, DRAMATIQ, HUEY, PEERS, TASKIQ, TASKMILL, TASKMILL_ASYNC
from bench.report import Figure
from bench.submit import Submits

WORDS = dict.fromkeys(ALL, "release; durability")


def values(figures: list[Figure]) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures}


def drained(rates: dict[Contender, list[float]]) -> drain.Found:
    return {(one, processes): [Drained(rate * processes, 20.0, 30.0) for rate in rounds] for one, rounds in rates.items() for processes in (1, 2)}


def test_a_drain_is_seen_beside_each_of_other_languages_and_pythons_best() -> None:
    found = drained({TASKMILL: [20.0], TASKMILL_ASYNC: [30.0], ASYNQ: [10.0], BULLMQ: [5.0], HUEY: [2.0], DRAMATIQ: [3.0], TASKIQ: [1.0]})
    seen = values(drain_redis.figures(WORDS, [60.0], found))
    assert {name: value for name, value in seen.items() if " / " in name} == {
        "async def / asynq, 8 servers": 3.0,
        "async def / BullMQ": 6.0,
        "async def / best Python peer": 10.0,
        "async def / asynq, 8 servers, two processes": 3.0,
        "async def / BullMQ, two processes": 6.0,
        "async def / best Python peer, two processes": 10.0,
        "async def / raw loop": 0.5,
        "def / raw loop": 20 / 60,
        "async def, two processes / one": 2.0,
    }


def test_a_drain_of_some_systems_shows_these_alone() -> None:
    alone = values(drain_redis.figures(WORDS, [60.0], drained({BULLMQ: [10.0]})))
    assert set(alone) == {"raw loop: one connection", "BullMQ: one process", "BullMQ: 2 processes"}


def test_each_way_to_submit_is_seen_beside_the_peer_that_has_it() -> None:
    found = Submits(
        WORDS,
        bulk={TASKMILL: [60.0], BULLMQ: [20.0]},
        copy={},
        single={TASKMILL: [2.0], HUEY: [4.0], BULLMQ: [1.0]},
        concurrent={TASKMILL: [10.0], ASYNQ: [20.0]},
    )
    seen = values(submit_redis.figures(found))
    assert {name: value for name, value in seen.items() if " / " in name} == {
        "submit_many / BullMQ's addBulk": 3.0,
        "64 callers / asynq's": 0.5,
        "single submits / Huey's": 0.5,
    }
    assert seen["asynq: 64 callers"] == 20.0


def test_latency_has_its_median_and_its_99th_percentile() -> None:
    seen = values(latency_redis.figures(WORDS, {TASKMILL: [Waits([1.0, 2.0, 9.0], [0.5])], BULLMQ: [Waits([3.0], [0.5])]}))
    assert seen == {"Taskmill: idle to start, p50": 2.0, "BullMQ: idle to start, p50": 3.0, "Taskmill: idle to start, p99": 9.0}


def test_an_offered_rate_is_shown_with_what_was_answered() -> None:
    rounds = [offered.Offered([0.001] * 95 + [0.5] * 5, [0.002], 9_000.0), offered.Offered([0.001] * 100, [0.004], 10_000.0)]
    seen = values(offered.figures(rounds, 10_000))
    assert seen == {"10,000/s offered: a submit, p95": 1.0, "10,000/s offered: a claim, p95": 4.0, "10,000/s offered: answered": 9_000.0}


def test_every_peer_says_when_its_store_is_empty() -> None:
    assert all("redis.call(" in contender.unfinished for contender in PEERS)


def test_sections_of_every_engine_are_there() -> None:
    assert set(compare.sections()["redis"]) == {"submit", "drain", "latency", "offered"}
    assert {"throughput", "claim_cost", "edges", "processes", "delayed", "bytes"} <= set(engine.sections()["redis"])


def test_a_missing_server_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = runner.run("bench", "", "", {"redis": compare.sections()["redis"]}, ["--engine", "redis", "--dir", str(tmp_path)])
    assert done == 2
    assert capsys.readouterr().err == "bench: redis is left out: Redis is not installed; apt-get install redis-server\n"
    assert list(tmp_path.iterdir()) == []
