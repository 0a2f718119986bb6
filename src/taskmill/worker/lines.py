"""What waits for a slot in one process."""

from __future__ import annotations

from collections import deque

from taskmill.worker.attempt import Running

__all__ = ["Line"]


class Line:
    """What waits for a slot, by priority and then in the order of claiming. Threads and the loop may take from it at once."""

    def __init__(self) -> None:
        self._waiting: tuple[deque[Running], ...] = (deque(), deque(), deque(), deque())

    def __len__(self) -> int:
        low, normal, high, critical = self._waiting
        return len(low) + len(normal) + len(high) + len(critical)

    def add(self, running: Running) -> None:
        self._waiting[running.claimed.priority].append(running)

    def take(self) -> Running | None:
        for priority in (3, 2, 1, 0):
            if waiting := self._waiting[priority]:
                try:
                    return waiting.popleft()
                except IndexError:  # a thread was faster
                    continue
        return None

    def head(self) -> tuple[int, int]:
        """Priority and age of the first; (-1, 0) when nobody waits."""
        for priority in (3, 2, 1, 0):
            try:
                return priority, -self._waiting[priority][0].claimed.token
            except IndexError:
                continue
        return -1, 0
