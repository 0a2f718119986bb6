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
from collections.abc import Callable, Coroutine
from typing import Any


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
