"""A server that was there before us: tests use it under prefixes of their own, and leave it as it was."""

from __future__ import annotations

from pathlib import Path

from tests.engines.postgres.test_servers import run
from tests.servers.programs import FOLDERS
from tests.servers.redis import URL, RedisServer

PROBE = """
def test_an_empty_store(redis_url):
    import redis
    with redis.Redis.from_url(redis_url.partition("?")[0]) as client:
        client.set(redis_url.rpartition("=")[2] + ":{0}:store", "ours")
        print("SERVER", client.info("server")["process_id"])
"""


def test_an_existing_server_is_used_and_left_as_it_was(tmp_path: Path, private_redis: RedisServer) -> None:
    with private_redis.client() as client:
        client.set("theirs", "1")
    url = private_redis.url().partition("?")[0]
    result = run(tmp_path, "-n", "0", probe=PROBE, **{URL: url, FOLDERS: str(tmp_path)})
    assert (result.returncode, f"SERVER {private_redis.pid}" in result.stdout) == (0, True), result.stdout
    with private_redis.client() as client:
        assert client.keys() == [b"theirs"]


def test_a_missing_server_is_said_loudly(tmp_path: Path) -> None:
    result = run(tmp_path, "-n", "0", probe=PROBE, CI="true", **{FOLDERS: str(tmp_path)})
    line = "Redis is not installed: 1 tests of its engine were skipped; apt-get install redis-server, or set TASKMILL_TEST_REDIS"
    assert (result.returncode, result.stdout.count(line)) == (1, 1), result.stdout
