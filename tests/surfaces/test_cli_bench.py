"""`taskmill bench`: all measures on a store of its own or on one that is named, nothing left behind; how fast anything is, is no matter of a test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from taskmill.cli import bench_measures, main
from taskmill.cli.bench_app import QUEUE, declare
from taskmill.cli.bench_measures import Sizes

SIZES = Sizes(single=5, concurrent=70, bulk=200, waits=3)
KEYS = {
    "submit_single_per_second",
    "submit_concurrent_per_second",
    "submit_many_per_second",
    "drain_1_per_second",
    "drain_2_per_second",
    "idle_to_start_p50_ms",
    "idle_to_start_p99_ms",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_measures, "QUICK", SIZES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TASKMILL_URL", raising=False)


def test_a_store_of_its_own_is_made_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taskmill.toml").write_text('url = "sqlite:///data/shop.db"\ndurability = "local"\n', encoding="utf-8")
    (tmp_path / "data").mkdir()
    assert main(["bench", "--quick", "--json"]) == 0
    told = capsys.readouterr()
    answer = json.loads(told.out)
    assert set(answer) >= KEYS
    assert all(answer[key] > 0 for key in KEYS)
    assert answer["idle_to_start_p50_ms"] <= answer["idle_to_start_p99_ms"]
    assert (answer["engine"], answer["durability"]) == ("sqlite", "local")
    assert answer["store"].startswith(f"{tmp_path}/data/taskmill-bench-")
    assert list((tmp_path / "data").iterdir()) == []


async def left(url: str) -> tuple[int, int, bool]:
    """Tasks, live workers, and whether the bench's queue is paused."""
    async with declare(url).app as app:
        page = await app.operations.list()
        workers = [worker for worker in await app.operations.workers() if worker.alive]
        [queue] = [queue for queue in await app.operations.queues() if queue.name == QUEUE]
        return len(page.tasks), len(workers), queue.paused


def test_a_store_that_is_named_is_used_and_cleaned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--url", "sqlite:///own.db"]) == 0
    told = capsys.readouterr()
    assert f"measuring {tmp_path}/own.db" in told.err
    for words in ("submit_many", "drain, 1 process", "drain, 2 processes", "idle to start, p50", "sqlite, durability=fsync"):
        assert words in told.out
    assert asyncio.run(left(f"sqlite:///{tmp_path}/own.db")) == (0, 0, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dir", "nowhere"), "there is no folder nowhere"),
        (("--dir", ".", "--url", "sqlite:///x.db"), "--url and --dir are both given"),
        (("--url", "sqlite://:memory:"), "no place for a worker"),
        (("--url", "mysql://x"), "there is no engine 'mysql'"),
    ],
    ids=["no folder", "both", "memory", "no engine"],
)
def test_what_it_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert main(["bench", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
