"""The benchmark's own tools on a server: its raw loop, its watch, its private server and its counts; how fast anything is, is no matter of a test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bench import raw_redis
from bench.redis_server import Server, started
from bench.stores import Keyspaces
from bench.watch import Watch

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(scope="module")
def server(redis_server: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Where the tests have no server the benchmark has none."""
    with started(tmp_path_factory.mktemp("bench")) as server:
        yield server


def client_of(url: str) -> Any:
    return redis.Redis.from_url(url)


def test_the_raw_loop_finishes_every_job(server: Server) -> None:
    with server.database() as url:
        assert raw_redis.claim_and_finish(url, 1_050, 100, b"{}") > 0
        client = client_of(url)
        assert client.llen("raw:{0}:ended") == 1_050
        assert client.exists("raw:{0}:line", "raw:{0}:run:bench") == 0
        assert client.get(f"raw:{{0}}:t:{7:032x}").startswith(b"c")


def test_the_raw_loop_refuses_a_lease_that_is_not_held(server: Server) -> None:
    with server.database() as url:
        raw_redis.fill(url, 1, b"{}")
        client = client_of(url)
        ids, records, token = client.eval(raw_redis.CLAIM, 1, raw_redis.PREFIX, 10, "one")
        assert client.eval(raw_redis.FINISH, 1, raw_redis.PREFIX, "one", ids[0], token + 2, records[0]) == 1
        assert client.eval(raw_redis.FINISH, 1, raw_redis.PREFIX, "two", ids[0], token + 1, records[0]) == 1
        assert client.eval(raw_redis.FINISH, 1, raw_redis.PREFIX, "one", ids[0], token + 1, records[0]) == 0


def test_a_watch_sees_when_nothing_is_left(server: Server) -> None:
    with server.database() as url:
        with Watch(url, "return 0") as watch:
            assert watch.emptied(5.0) is not None
        client_of(url).rpush("line", "one")
        with Watch(url, "return redis.call('LLEN', 'line')") as watch, pytest.raises(RuntimeError, match="have not ended"):
            watch.emptied(0.0)


def test_a_private_server_writes_its_file_and_leaves_nothing(redis_server: object, tmp_path: Path) -> None:
    with started(tmp_path) as server:
        client = client_of(server.url())
        assert client.config_get("append*")["appendonly"] == "yes"
        assert client.config_get("appendfsync")["appendfsync"] == "everysec"
        assert Keyspaces(server).release.startswith("Redis ")
        pid, folder = server.pid, server.folder
        assert server.cpu() >= 0
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_server_is_gone_after_a_failure_too(redis_server: object, tmp_path: Path) -> None:
    pid = 0

    def scene() -> None:
        nonlocal pid
        with started(tmp_path) as server:
            pid = server.pid
            raise KeyError

    with pytest.raises(KeyError):
        scene()
    assert pid
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()


def test_databases_are_apart_and_empty_again(server: Server) -> None:
    with server.database() as first, server.database() as second:
        client_of(first).set("key", "1")
        assert client_of(second).exists("key") == 0
    with server.database() as again:
        assert again == first
        assert client_of(again).dbsize() == 0


def test_commands_are_counted_but_for_what_blocks_and_what_scripts_do(server: Server) -> None:
    with server.database() as url:
        client = client_of(url)
        client.ping()
        sent = server.trace()
        client.get("key")
        client.eval("for _ = 1, 10 do redis.call('GET', 'key') end", 0)
        client.blpop("nothing", timeout=0.01)
        assert sent() == 2


def test_the_longest_script_is_known(server: Server) -> None:
    with server.database() as url:
        longest = server.slowest()
        client_of(url).eval("for _ = 1, 100000 do redis.call('GET', 'key') end", 0)
        assert longest() > 1_000


@pytest.mark.parametrize("section", ["throughput", "delayed", "bytes"])
def test_a_section_runs_on_redis(redis_server: object, tmp_path: Path, section: str) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--engine", "redis", "--quick", "--scale", "0.001", "--only", section, "--dir", str(tmp_path), "--json", str(file)]
    done = subprocess.run([sys.executable, str(BENCH / "engine.py"), *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
    assert figures
    assert {figure["engine"] for figure in figures} == {"redis"}
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
