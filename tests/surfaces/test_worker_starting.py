"""Processes for isolated tasks whose app takes its time to import: that is no part of a task's own time."""

from __future__ import annotations

from pathlib import Path

from tests.surfaces.workers import client, program

APP = """
import os
import time
from pathlib import Path

from taskmill import App

app = App()
imported = Path("imported")


@app.task(isolated=True, timeout="2s")
def quick() -> int:
    return os.getpid()


time.sleep(3 if imported.exists() else 0)  # the worker itself has it at once, its runners do not
imported.touch()
"""


async def test_an_import_is_no_part_of_a_timeout(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with program("worker", "app.py", folder=tmp_path, url=url) as worker:
        async with client(url) as store:
            await store.joined()
            task = await store.run("quick")
            assert (task.state, task.failures, task.executions) == ("completed", 0, 1), task.error
        assert worker.end() == 0


async def test_a_process_that_does_not_start_in_time_is_no_failure_of_the_task(tmp_path: Path) -> None:
    """It is told in the log and in the attempt, and the task comes back."""
    (tmp_path / "app.py").write_text(APP)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with program("worker", "app.py", folder=tmp_path, url=url, settings={"start_timeout": "1s"}) as worker:
        async with client(url) as store:
            await store.joined()
            id = await store.submit("quick")
            attempts = await store.ended_attempts(id, 1)
            assert attempts[0].outcome == "snoozed"
            assert attempts[0].error is not None
            assert attempts[0].error.code == "handler_unavailable"
            (task,) = await store.engine.get([id])
            assert getattr(task, "failures", None) == 0
        assert worker.end() == 0
        assert "was not ready in a new process after 1s" in worker.said
