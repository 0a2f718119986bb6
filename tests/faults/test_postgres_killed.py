"""The server is stopped as at a crash, or killed, while clients are at work: they go on by themselves, nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.task import NewTask
from tests.faults.clients import LEASE, at_work, judged
from tests.faults.effects import percentile
from tests.faults.growing import Growing
from tests.faults.judging import judge
from tests.faults.processes import started
from tests.faults.terminating import terminating
from tests.faults.workers import BRISK, Load, place_at, verdict
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events
from tests.history.events import Event
from tests.servers.postgres import Postgres, Stop

SOON = 15 * SECOND
"""Promised are 5 s; the rest is for a machine that is busy with other tests."""


def killable(server: Postgres) -> Postgres:
    """After a crash it has its files written at once, not one after the other, which takes seconds; what was acknowledged is on the disk before."""
    if sys.platform == "linux":
        server.configure(recovery_init_sync_method="syncfs")
    return server


async def kills(tmp_path: Path, server: Postgres, modes: Sequence[Stop], clients: int = 2) -> list[int]:
    """The server ends in these ways, one after the other; how long after each it had answered again until a task was completed."""
    url, history, random = server.databases.give(), tmp_path / "history", Random(clients)
    delays = []
    async with at_work(url, history, n=clients) as programs:
        growing = Growing(history)
        for mode in modes:
            await growing.completed(random.randrange(1, 100))
            await asyncio.to_thread(server.restart, mode)
            delays.append(await growing.goes_on())
    assert lost(await judged(url, history, programs))
    assert max(delays) < SOON
    return delays


async def test_the_server_dies_under_load(tmp_path: Path, private_postgres: Postgres) -> None:
    await kills(tmp_path, killable(private_postgres), ("immediate", "kill") * 2)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_the_server_dies_twenty_times_under_load(tmp_path: Path, private_postgres: Postgres, capsys: pytest.CaptureFixture[str], mode: Stop) -> None:
    delays = await kills(tmp_path, killable(private_postgres), [mode] * 20, clients=4)
    with capsys.disabled():
        print(f"\n20 times the server ended by {mode}; from its first answer until the next completion: {figures(delays)}")


def lost(history: list[Event]) -> bool:
    """Whether the fault came between a question and its answer at all."""
    return any(isinstance(event, events.Submit | events.Claim | events.Finish) and event.answer == "lost" for event in history)


def figures(delays: list[int]) -> str:
    return ", ".join(f"{name} {percentile(delays, part):.2f} s" for name, part in (("p50", 0.5), ("longest", 1)))


# Down for longer than a lease


async def stay_away(tmp_path: Path, server: Postgres, lease: int) -> None:
    """Nobody could beat, so nobody is judged by it: the leases are kept, and no crash is counted."""
    url, history = server.databases.give(), tmp_path / "history"
    tasks = [NewTask(type="plain", payload=codec.encode({"do": "complete"})) for _ in range(6)]
    async with client_of(url, history) as client:
        await prepare(client)
        await client.submit(tasks)
    async with (
        started("sit", url, history, "--lease", lease, "--batches", 3) as first,
        started("sit", url, history, "--lease", lease, "--batches", 3) as second,
    ):
        held = [*await first.hear("claimed"), *await second.hear("claimed")]
        for sitter in (first, second):
            await sitter.hear("beat")
        await asyncio.to_thread(server.stop, "kill")
        await asyncio.sleep(1.5 * lease / SECOND)  # the fault itself
        await asyncio.to_thread(server.start)
        for sitter in (first, second):
            sitter.tell("finish")
        answers = [*await first.hear("answers"), *await second.hear("answers")]
        await asyncio.gather(first.done(), second.done())
    _, reads = await judge(url, history, Bounds(lease=lease // 2))
    assert answers == ["applied"] * 6
    assert {(reads[task].executions, reads[task].crashes) for task in held} == {(1, 0)}


async def test_the_server_is_away_for_longer_than_a_lease(tmp_path: Path, private_postgres: Postgres) -> None:
    await stay_away(tmp_path, killable(private_postgres), LEASE)


# Real workers


async def kills_beside_workers(tmp_path: Path, server: Postgres, modes: Sequence[Stop], env: Mapping[str, str]) -> list[int]:
    """`taskmill worker` goes on: the same processes, every task completed, once."""
    random = Random(0)
    delays = []
    async with place_at(tmp_path, env, url=server.databases.give()) as place, place.worker() as first, place.worker() as second:
        children = [*await first.joined(), *await second.joined()]
        growing = Growing(place.history)
        async with Load(place):
            for mode in modes:
                await growing.completed(random.randrange(10, 60))
                await asyncio.to_thread(server.restart, mode)
                delays.append(await growing.goes_on())
        assert [*first.children(), *second.children()] == children
        assert [await first.stop(), await second.stop()] == [0, 0]
        await verdict(place)
    assert max(delays) < SOON
    return delays


async def test_workers_go_on(tmp_path: Path, private_postgres: Postgres) -> None:
    await kills_beside_workers(tmp_path, killable(private_postgres), ("kill", "immediate"), BRISK)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_workers_go_on_twenty_times(tmp_path: Path, private_postgres: Postgres, capsys: pytest.CaptureFixture[str], mode: Stop) -> None:
    """Their settings as they are by default, and the server as it is."""
    delays = await kills_beside_workers(tmp_path, private_postgres, [mode] * 20, {})
    with capsys.disabled():
        print(f"\n20 times the server of two workers ended by {mode}; from its first answer until the next completion: {figures(delays)}")


# Backends that end, one by one


async def terminations(tmp_path: Path, server: Postgres, n: int) -> None:
    """Backends of clients at work, each ended when its transaction was committed and its client had not been told."""
    url, history = server.databases.give(), tmp_path / "history"
    async with at_work(url, history) as programs:
        growing = Growing(history)
        async with terminating(server, url) as fault:
            fault.chance = 0.5
            await fault.until_ended(n)
        await growing.goes_on()
    assert lost(await judged(url, history, programs))


async def test_backends_are_terminated_under_load(tmp_path: Path, private_postgres: Postgres) -> None:
    await terminations(tmp_path, private_postgres, 30)


@pytest.mark.chaos
async def test_many_backends_are_terminated_under_load(tmp_path: Path, private_postgres: Postgres) -> None:
    await terminations(tmp_path, private_postgres, 2_000)
