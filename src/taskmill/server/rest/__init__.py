"""The routes, by what they are about; `ROUTES` is the whole table, `STREAMS` are the two that go on."""

from __future__ import annotations

from taskmill.server.rest import dead, health, keys, limits, queues, remote, schedules, store, tasks, workers
from taskmill.server.rest.description import described
from taskmill.server.rest.streams import STREAMS
from taskmill.server.routes import Route

__all__ = ["ROUTES", "STREAMS"]

_MODULES = (tasks, queues, dead, schedules, workers, limits, store, keys, remote, health)

ROUTES: tuple[Route, ...] = described([route for module in _MODULES for route in module.ROUTES], STREAMS)
