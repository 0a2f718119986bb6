"""Servers for the tests that need one; nothing is started before the first of them asks.

TASKMILL_TEST_POSTGRES=postgresql://… and TASKMILL_TEST_REDIS=redis://… use servers that are there; tests of faults start their own all the same.
TASKMILL_TEST_PROGRAMS says in which folders the programs are.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import pgbouncer as poolers
from tests.servers import postgres as servers
from tests.servers import redis as redis_servers
from tests.servers import redis_cluster as redis_clusters
from tests.servers import typescript
from tests.servers.absence import Absence, skip
from tests.servers.existing import URL, Server, existing
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.servers.programs import FOLDERS, Absent
from tests.servers.redis import RedisServer, Shared
from tests.servers.redis_cluster import RedisCluster
from tests.servers.temporary import memory, prefer_memory

GIVEN = pytest.StashKey[dict[str, str]]()

# How long an example takes says how busy the machine is.
settings.register_profile("taskmill", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("taskmill")


def pytest_configure(config: pytest.Config) -> None:
    """Our variables are not settings of Taskmill, which refuses names that it does not know. A process that only hands tests to others
    leaves them, for those to inherit."""
    # A shell starts what runs in the background with Ctrl-C ignored, and so would all be that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[GIVEN] = {name: os.environ[name] for name in (URL, redis_servers.URL, FOLDERS) if name in os.environ}
    worker = hasattr(config, "workerinput")
    if worker or config.getoption("dist", "no") == "no":
        for name in config.stash[GIVEN]:
            del os.environ[name]
    if not worker:
        prefer_memory()
        config.pluginmanager.register(Absence(), "absence of servers")


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The server of this process, for all tests that leave it as it is. It does not wait for the disk: nobody cuts its power."""
    given = pytestconfig.stash[GIVEN]
    try:
        opened = existing(given[URL]) if URL in given else servers.started(fsync=False, folders=given.get(FOLDERS))
        with opened as server:
            yield server
    except Absent as absent:
        skip(absent)


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """A database as new, with the migrations applied."""
    url = postgres.databases.give()
    try:
        yield url
    finally:
        postgres.databases.take_back(url)


@pytest.fixture(scope="session")
def curl() -> str:
    """The program that the documents call the server with."""
    found = shutil.which("curl")
    if found is None:
        skip(Absent("curl", "apt-get install curl"))
    return found


@pytest.fixture(scope="session")
def redis_server(pytestconfig: pytest.Config) -> Iterator[Shared]:
    """The Redis server of this process, for all tests that leave it as it is."""
    given = pytestconfig.stash[GIVEN]
    try:
        url = given.get(redis_servers.URL)
        with redis_servers.existing(url) if url else redis_servers.started(folders=given.get(FOLDERS)) as server:
            yield server
    except Absent as absent:
        skip(absent)


@pytest.fixture
def redis_url(redis_server: Shared) -> Iterator[str]:
    """An empty store, under a prefix of its own."""
    prefix = f"taskmill-test-{secrets.token_hex(4)}"
    yield redis_server.url(prefix)
    redis_servers.empty(redis_server, prefix)


@pytest.fixture
def private_redis(pytestconfig: pytest.Config) -> Iterator[RedisServer]:
    """A server of one's own, which keeps nothing, and may be killed, emptied and set up otherwise."""
    try:
        with redis_servers.started(folders=pytestconfig.stash[GIVEN].get(FOLDERS)) as server:
            yield server
    except Absent as absent:
        skip(absent)


@pytest.fixture(scope="session")
def redis_cluster(pytestconfig: pytest.Config) -> Iterator[RedisCluster]:
    """The Redis Cluster of this process, three primaries, for all tests that leave it as it is."""
    try:
        with redis_clusters.cluster(folders=pytestconfig.stash[GIVEN].get(FOLDERS)) as made:
            yield made
    except Absent as absent:
        skip(absent)


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> Iterator[str]:
    """An empty store."""
    yield redis_cluster.url()
    redis_cluster.flush()


@pytest.fixture(scope="session")
def typescript_worker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The command that runs the worker of examples/workers/typescript, compiled into a folder of this run."""
    try:
        return typescript.built(tmp_path_factory.mktemp("typescript"), pytestconfig.stash[GIVEN].get(FOLDERS))
    except Absent as absent:
        skip(absent)


@pytest.fixture
def server_place() -> Path | None:
    """Where servers of one's own have their folders."""
    return memory()


@pytest.fixture
def private_postgres(pytestconfig: pytest.Config, server_place: Path | None) -> Iterator[Postgres]:
    """A server of one's own, which may be killed."""
    try:
        with servers.started(place=server_place, folders=pytestconfig.stash[GIVEN].get(FOLDERS)) as server:
            yield server
    except Absent as absent:
        skip(absent)


@pytest.fixture
def pgbouncer(pytestconfig: pytest.Config, postgres: Server) -> Iterator[PgBouncer]:
    """A pooler in front of `postgres`; `pgbouncer.through(postgres_url)` is the way to a database by it."""
    try:
        with poolers.started(postgres.url(), folders=pytestconfig.stash[GIVEN].get(FOLDERS)) as pooler:
            yield pooler
    except Absent as absent:
        skip(absent)
