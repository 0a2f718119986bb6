"""The comparison with peers: its counter, its arithmetic, and runs too small to say more than that they run; how fast anything is, is no matter of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from bench import contenders_postgres, contenders_redis, drain, latency, memory, submit
from bench.contenders import HUEY, LOCAL, PEERS, TASKMILL, TASKMILL_ASYNC, Contender, Drained, Waits
from bench.group import Group
from bench.peers import counter, environments
from bench.report import Figure, each, over_best

BENCH = Path(__file__).resolve().parents[2] / "bench"
WORDS = dict.fromkeys((TASKMILL, TASKMILL_ASYNC, LOCAL, *PEERS), "release; durability")


def bench(script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCH / script), *arguments], env={**os.environ, **environ}, capture_output=True, text=True, timeout=240, check=False
    )


# The counter


COUNTING = """
import os
from bench.peers import counter
for _ in range(3):
    counter.hit()
if (child := os.fork()) == 0:
    counter.hit()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_processes_and_their_forks_are_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    counter.make(path)
    environ = {**os.environ, counter.COUNTER: str(path), "PYTHONPATH": str(BENCH.parent)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", COUNTING], env=environ, check=True)
    with closing(counter.attach(path)) as seen:
        reading = counter.read(seen)
    assert reading.hits == 8
    assert 0 < reading.first < reading.last
    assert reading.seconds == (reading.last - reading.first) / 1e9


def hit_often() -> None:
    for _ in range(500):
        counter.hit()


def test_threads_are_counted_without_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counter"
    counter.make(path)
    monkeypatch.setenv(counter.COUNTER, str(path))
    monkeypatch.setattr(counter, "_process", counter._Process())
    threads = [threading.Thread(target=hit_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(counter.attach(path)) as seen:
        assert counter.read(seen).hits == 2_000


def test_a_counter_begins_at_nought(tmp_path: Path) -> None:
    counter.make(tmp_path / "counter")
    with closing(counter.attach(tmp_path / "counter")) as seen:
        assert counter.read(seen) == (0, 0, 0)


def test_waits_are_kept_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "counter"
    counter.make(path)
    monkeypatch.setenv(counter.COUNTER, str(path))
    monkeypatch.setattr(counter, "_process", counter._Process())
    now = time.monotonic_ns()
    counter.hit_late(now - 5_000_000_000)
    counter.hit_late(now - 1_000_000_000)
    with closing(counter.attach(path)) as seen:
        first, second = counter.latencies(seen, 2)
        assert counter.read(seen).hits == 2
    assert first >= 5_000
    assert 1_000 <= second < first


# Arithmetic


def named(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def test_the_best_of_others_is_the_one_compared_with() -> None:
    figure = over_best("s", "own / best", 1.5, [300.0, 250.0], {"slow": [50.0, 60.0], "fast": [80.0, 100.0]})
    assert figure.value == 3.0
    assert figure.sides == {"own": 300.0, "fast": 100.0}
    assert list(figure.rounds) == [3.75, 2.5]
    assert figure.met is True


def test_a_side_by_itself_is_not_judged() -> None:
    figure = each("s", "one", [10.0, 20.0], "how")
    assert (figure.value, figure.unit, figure.met) == (20.0, "/s", None)


def test_a_peer_without_a_bulk_submit_counts_with_its_single_one() -> None:
    huey, taskito = HUEY[1], PEERS[2]
    single = {TASKMILL: [10.0], huey: [300.0], taskito: [50.0]}
    bulk = {TASKMILL: [600.0], taskito: [200.0]}
    found = named(submit.figures(WORDS, bulk, single, {TASKMILL: [100.0]}))
    assert found["submit_many / best peer"].sides == {"own": 600.0, huey.name: 300.0}
    assert found["submit_many / best peer"].met is True
    assert found["single submits / best peer"].met is None


def drained(rates: dict[Contender, float]) -> drain.Found:
    return {(contender, processes): [Drained(rate * processes, 20.0)] for contender, rate in rates.items() for processes in (1, 2)}


def test_a_drain_is_judged_beside_both_settings_of_huey_and_the_raw_loop() -> None:
    safe, unsafe = HUEY
    found = named(drain.figures(WORDS, [200.0], drained({TASKMILL: 50.0, TASKMILL_ASYNC: 40.0, LOCAL: 60.0, safe: 5.0, unsafe: 20.0})))
    judged = {name: (figure.value, figure.met) for name, figure in found.items() if figure.met is not None}
    assert judged == {"def / Huey": (10.0, True), "def / Huey, fsync=False": (2.5, False), "async def / raw loop": (0.2, False)}
    assert found["Taskmill: 2 processes"].value == 100.0
    assert found["Taskmill: 2 processes"].how == "20 µs CPU a task; release; durability"


def test_without_any_peer_the_rest_is_still_there() -> None:
    found = named(drain.figures(WORDS, [200.0], drained({TASKMILL: 50.0, TASKMILL_ASYNC: 60.0, LOCAL: 60.0})))
    assert found["async def / raw loop"].met is True
    assert set(named(submit.figures(WORDS, {TASKMILL: [1.0]}, {TASKMILL: [1.0]}, {TASKMILL: [1.0]}))) == {
        "Taskmill: many at once",
        "Taskmill: one by one",
        "Taskmill: 64 coroutines",
    }


def test_a_median_of_all_rounds_is_judged_for_taskmill_alone() -> None:
    own, peer = latency.figures(WORDS, {TASKMILL: [Waits([1.0, 2.0, 9.0], [0.5]), Waits([4.0, 4.0, 4.0], [0.5])], HUEY[0]: [Waits([12.0], [0.1])]})
    assert (own.value, own.met, list(own.rounds)) == (4.0, False, [2.0, 4.0])
    assert "p99 9.0 ms, 6 tasks, the submit itself 0.5 ms" in own.how
    assert peer.met is None


@pytest.mark.parametrize(("held", "ratio", "flat"), [([100, 150, 105], 1.05, True), ([100, 110, 120], 1.2, False)], ids=["a peak", "growing"])
def test_memory_is_judged_by_what_is_there_at_the_end(held: list[int], ratio: float, flat: bool) -> None:
    [figure] = memory.growth(held, 10)
    assert (figure.value, figure.met) == (ratio, flat)
    assert list(figure.rounds) == [one / 100 for one in held[1:]]


# Programs and environments


CHILDREN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"], stdin=subprocess.PIPE)
child.wait()
"""


def test_a_group_counts_its_children_and_leaves_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Group([[sys.executable, "-c", CHILDREN]], {}, tmp_path, log) as group:
        while "up" not in group.words():
            assert group.running
        usage = group.usage()
        assert usage.processes == 2
        assert usage.memory > 1_000_000
    assert not group.running
    end = time.monotonic() + 10
    while group.usage().processes:  # killed, and not yet gone: nobody is told when a grandchild ends
        assert time.monotonic() < end


def test_environments_live_where_they_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(environments.CACHE, raising=False)
    assert environments.cache() == tmp_path / "taskmill-bench"
    monkeypatch.setenv(environments.CACHE, str(tmp_path / "here"))
    assert environments.cache() == tmp_path / "here"


@pytest.mark.parametrize("peer", sorted({contender.peer for contender in (*PEERS, *contenders_postgres.PEERS, *contenders_redis.PEERS)}))
def test_every_peer_has_its_releases_pinned(peer: str) -> None:
    folder = BENCH / "peers" / peer
    if (folder / "go.mod").exists():
        assert f"/{peer} v" in (folder / "go.mod").read_text(encoding="utf-8")
        assert "h1:" in (folder / "go.sum").read_text(encoding="utf-8")
    elif folder.exists():
        wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
        locked = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
        assert all(locked[f"node_modules/{name}"]["version"] == release for name, release in wanted.items())
    else:
        lines = folder.with_suffix(".txt").read_text(encoding="utf-8").split()
        assert any(line.startswith(f"{peer}==") for line in lines)
        assert all("==" in line for line in lines)


# Small runs


def figures_of(done: subprocess.CompletedProcess[str], file: Path) -> dict[str, dict[str, object]]:
    assert done.returncode == 0, done.stderr
    return {figure["name"]: figure for figure in json.loads(file.read_text(encoding="utf-8"))["figures"]}


def test_peers_that_cannot_be_installed_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    nowhere = {"UV_OFFLINE": "1", "UV_NO_CACHE": "1", "PIP_NO_INDEX": "1", environments.CACHE: str(tmp_path / "peers")}
    done = bench("compare.py", "--quick", "--scale", "0.001", "--only", "drain", "--dir", str(tmp_path), "--json", str(file), **nowhere)
    figures = figures_of(done, file)
    assert "Huey is left out, it cannot be installed" in done.stderr
    assert {"async def / raw loop", "def / raw loop", "Taskmill: one process", "Taskmill, async def: 2 processes"} <= set(figures)
    assert not any("Huey" in name for name in figures)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figures.json", "peers"]


def test_the_executor_alone(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = bench("executor.py", "--quick", "--scale", "0.02", "--dir", str(tmp_path), "--json", str(file))
    figures = figures_of(done, file)
    assert {name: figure["target"] for name, figure in figures.items()} == {"async def / bare create_task": 0.5, "def / one thread hop each": 2}


def test_starts_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    figures = figures_of(bench("product.py", "--quick", "--only", "start", "--dir", str(tmp_path), "--json", str(file)), file)
    assert figures["taskmill version"]["target"] == 150


def test_all_of_it_has_every_section() -> None:
    done = bench("all.py", "--help")
    assert done.returncode == 0
    for script in ("engine.py", "executor.py", "compare.py", "product.py"):
        assert script in done.stdout
    assert bench("all.py", "--only", "nothing").returncode == 2
