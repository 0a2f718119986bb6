"""What each example does around its own lines: a store in a temporary folder, and a worker on it that ends with the example.

    if __name__ == "__main__":
        run(__file__, main)

An example is an app and a program in one file. The worker is `taskmill worker example.py`, a process of its own as in real life; both find the
store by TASKMILL_URL, because the app is made without a URL.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast


def run(file: str, main: Callable[[], Coroutine[Any, Any, None] | None], *, url: str | None = None) -> None:
    """Run an example's `main`, plain or async, beside a worker for its file; on another store where it needs one."""
    with tempfile.TemporaryDirectory(prefix="taskmill-example-") as folder:
        os.environ["TASKMILL_URL"] = url or f"sqlite:///{folder}/example.db"
        worker = subprocess.Popen([sys.executable, "-m", "taskmill", "worker", file, "--log-level", "error"])
        try:
            waiting = main()
            if waiting is not None:
                asyncio.run(waiting)
        finally:
            worker.terminate()
            worker.wait()


@contextmanager
def server() -> Iterator[str]:
    """`taskmill api` on a free port, over the same store; where it is."""
    command = [sys.executable, "-m", "taskmill", "api", "--port", "0", "--no-grpc", "--log-level", "error"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield cast("IO[str]", process.stderr).readline().split(" at ")[1].split(";")[0]
    finally:
        process.terminate()
        process.communicate()
