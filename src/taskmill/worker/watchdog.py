"""Says which handler blocks the loop. The lease does not suffer (the supervisor beats), but everything else in this process waits."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback

from taskmill.clock import SECOND
from taskmill.worker.executor import Executor

__all__ = ["Watchdog"]

log = logging.getLogger("taskmill")

PATIENCE = 2 * SECOND
ROUND = 1.0


class Watchdog:
    """A thread that looks at the loop's clock. It sees what Python code does; a C function that holds the GIL holds this thread too."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._loop_thread = threading.get_ident()
        self._turned = 0
        self._told = 0

    def start(self) -> None:
        threading.Thread(target=self._watch, name="taskmill-watchdog", daemon=True).start()

    def turned(self, now: int) -> None:
        """The loop has come round."""
        self._turned = now

    def _watch(self) -> None:
        while True:
            time.sleep(ROUND)
            turned = self._turned
            if turned and turned != self._told and time.monotonic_ns() // 1_000 - turned > PATIENCE:
                self._told = turned
                self._tell()

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else ""
        types = sorted({running.claimed.type for running in list(self._executor.held.values()) if running.started and running.task is not None})
        if types:  # else the whole process stood still, and nobody in it is to blame
            log.warning(
                "the loop of this worker is blocked for more than %d s by one of %s; a handler that blocks should be a plain function, or isolated=True\n%s",
                PATIENCE // SECOND, ", ".join(types), stack,
            )  # fmt: skip
