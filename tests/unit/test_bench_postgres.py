"""The comparison on PostgreSQL: its arithmetic, what it is judged by, and what it says where a server or a peer is missing; it starts no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import compare, drain, drain_postgres, held, latency_postgres, postgres_server, runner, submit_postgres
from bench.contenders import Contender, Drained, Waits
from bench.contenders_postgres import ALL, GRAPHILE, PGQUEUER, PROCRASTINATE, RIVER, TASKMILL, TASKMILL_ASYNC
from bench.peers import environments
from bench.report import Figure
from bench.submit import Submits

WORDS = dict.fromkeys(ALL, "release; durability")


def named(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def judged(figures: list[Figure]) -> dict[str, tuple[float, bool | None]]:
    return {figure.name: (figure.value, figure.met) for figure in figures if figure.met is not None}


# Arithmetic


def drained(rates: dict[Contender, list[float]]) -> drain.Found:
    return {(one, processes): [Drained(rate * processes, 20.0, 30.0) for rate in rounds] for one, rounds in rates.items() for processes in (1, 2)}


def test_a_drain_is_judged_by_medians_beside_the_best_peers_and_the_raw_loop() -> None:
    found = drained(
        {
            TASKMILL: [20.0, 20.0, 20.0],
            TASKMILL_ASYNC: [26.0, 30.0, 90.0],
            RIVER[0]: [10.0, 10.0, 10.0],
            RIVER[1]: [15.0, 15.0, 15.0],
            GRAPHILE: [99.0, 20.0, 5.0],
            PGQUEUER: [16.0, 16.0, 16.0],
            PROCRASTINATE: [1.0, 1.0, 1.0],
        }
    )
    figures = drain_postgres.figures(WORDS, [60.0, 60.0, 60.0], found)
    assert judged(figures) == {
        "async def / best of River and Graphile": (1.5, True),
        "async def / PgQueuer": (30 / 16, False),
        "async def / best of River and Graphile, two processes": (1.5, True),
        "async def / PgQueuer, two processes": (30 / 16, False),
        "async def / raw loop": (0.5, True),
    }
    assert named(figures)["async def / best of River and Graphile"].sides == {"own": 30.0, GRAPHILE.name: 20.0}
    assert named(figures)["Taskmill: one process"].how == "20 µs CPU a task, 30 of the server; release; durability"


def test_a_drain_of_some_systems_shows_these_alone() -> None:
    assert judged(drain_postgres.figures(WORDS, [60.0], drained({RIVER[0]: [10.0], PGQUEUER: [5.0]}))) == {}
    alone = named(drain_postgres.figures(WORDS, [60.0], drained({TASKMILL_ASYNC: [20.0]})))
    assert alone["async def / raw loop"].met is False
    assert not any("River" in name for name in alone)


def test_submits_are_judged_beside_river_and_pythons_best() -> None:
    found = Submits(
        WORDS,
        bulk={TASKMILL: [60.0], RIVER[0]: [50.0], GRAPHILE: [70.0], PGQUEUER: [30.0], PROCRASTINATE: [45.0]},
        copy={RIVER[0]: [90.0]},
        single={TASKMILL: [1.0], RIVER[0]: [1.0]},
        concurrent={TASKMILL: [10.0], RIVER[0]: [3.0]},
    )
    figures = submit_postgres.figures(found)
    assert judged(figures) == {
        "submit_many / River's InsertMany": (1.2, True),
        "64 callers / River's": (10 / 3, False),
        "submit_many / best Python peer": (60 / 45, False),
    }
    assert named(figures)["River: many, unchecked"].value == 90.0


def test_without_taskmill_its_peers_are_still_shown() -> None:
    found = Submits(WORDS, bulk={RIVER[0]: [50.0]}, copy={}, single={}, concurrent={RIVER[0]: [5.0]})
    assert set(named(submit_postgres.figures(found))) == {"River: many at once", "River: 64 callers"}


def test_latency_is_judged_by_its_median_and_its_99th_percentile() -> None:
    figures = latency_postgres.figures(WORDS, {TASKMILL: [Waits([1.0, 2.0, 9.0], [0.5])], RIVER[0]: [Waits([3.0], [0.5])]})
    assert judged(figures) == {"Taskmill: idle to start, p50": (2.0, True), "Taskmill: idle to start, p99": (9.0, False)}


def test_a_held_snapshot_is_judged_by_the_last_fifth() -> None:
    sizes = [held.Size("task", 12.0, 3_000), held.Size("body", 30.0, 0)]
    course = held.Course([100] * 8 + [80, 60], 250, sizes)
    [ratio, largest, _] = held.figures("common lane", held.Course([100] * 5, 0, []), course, 100, 10.0, 0.9)
    assert (ratio.value, ratio.met) == (0.7, False)
    assert "slowest second 60, 250 wait at the end" in ratio.how
    assert (largest.value, largest.unit) == (42.0, "MB")
    assert "task 12 MB, 3,000 dead rows" in largest.how


# Peers and servers


@pytest.mark.parametrize(("peer", "tool"), [("river", "go"), ("graphile", "node")])
def test_a_peer_whose_language_is_missing_is_unavailable(peer: str, tool: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(environments.Unavailable, match=f"{tool} is not installed"):
        environments.program_of(peer, print)


def test_every_contender_says_when_its_database_is_empty() -> None:
    assert all(contender.unfinished.startswith("SELECT EXISTS (") for contender in ALL)


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(postgres_server, "DEBIAN", tmp_path / "nothing")
    return tmp_path


@pytest.mark.parametrize(("arguments", "status"), [(("--engine", "postgres"), 2), ((), 0)], ids=["asked for", "one of all"])
def test_a_missing_server_is_said_in_one_line(no_server: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int) -> None:
    done = runner.run("bench", "", "", {"postgres": compare.sections()["postgres"]}, [*arguments, "--dir", str(no_server)], every=True)
    assert done == status
    assert capsys.readouterr().err == "bench: postgres is left out: PostgreSQL 14 or newer is not installed; apt-get install postgresql\n"
    assert list(no_server.iterdir()) == []
