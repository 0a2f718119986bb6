"""A client in programs: forked, not closed, in two loops; and what it costs to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskmill.engine import Engine, Filter
from tests.surfaces.serving import Server


def run_python(folder: Path, code: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TASKMILL_")}
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


async def test_a_forked_process_opens_its_own(server: Server, engine: Engine, tmp_path: Path) -> None:
    code = f"""
import os
from taskmill import Client
client = Client("{server.url}")
mine = client.sync.submit("note", 1, queue="q")
child = os.fork()
if child == 0:
    assert client.sync.submit("note", 2, queue="q").status() == "pending"
    assert mine.status() == "pending"
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert client.sync.submit("note", 3, queue="q").status() == "pending"
client.sync.close()
print("done")
"""
    assert run_python(tmp_path, code) == "done\n"
    assert sorted(task.payload for task in (await engine.list(Filter(), n=10)).tasks) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "way",
    [
        'client.sync.submit("note", 1, queue="q")',
        "import asyncio; asyncio.run(main())",
        "import asyncio; asyncio.run(main()); asyncio.run(main())",
        'client.sync.submit("note", 1, queue="q"); client = None; import gc; gc.collect()',
    ],
)
def test_a_program_that_does_not_close_ends_in_silence(server: Server, tmp_path: Path, way: str) -> None:
    code = f"""
from taskmill import Client
client = Client("{server.url}")
async def main(): await client.submit("note", 1, queue="q")
{way}
print("done")
"""
    assert run_python(tmp_path, code) == "done\n"


def test_importing_a_client_loads_no_http(tmp_path: Path) -> None:
    code = """
import sys
import taskmill
taskmill.Client("http://127.0.0.1:1")
heavy = {"aiohttp", "apsw", "click", "starlette", "uvicorn", "asyncpg", "redis", "grpc", "sqlite3"}
print(sorted(heavy & set(sys.modules)))
"""
    assert run_python(tmp_path, code) == "[]\n"
