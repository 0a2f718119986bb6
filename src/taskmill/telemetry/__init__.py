"""Metrics: what a process counts, and what it reads from its store when somebody asks.

    engine ── watch() ──▶ every verb that this process calls: how long, which error; what it submitted, finished, fired, recovered, leads
    children ── ended(), add() ──▶ attempts by type and ending, durations, time in queue; the verbs that they call
    surfaces ── request() ──▶ how long each route took
    store ── read at most every 5 s, when scraped ──▶ depth and lag of queues, dead letters, workers

`METRICS` is the one table. Values live in a `Metrics` as plain numbers: nothing is global, two of them in a process do not know each other, and
what one process has counted goes to another as a snapshot. Names of types, queues and schedules come from outside, so each label takes only the
first thousand; all others are counted together, for a store of a million names must not become a million series.
"""

from taskmill.telemetry.metrics import CONTENT_TYPE, FRESH, Counted, Metrics, Processes
from taskmill.telemetry.samples import MOST_NAMES, OTHERS
from taskmill.telemetry.table import METRICS, Metric

__all__ = ["CONTENT_TYPE", "FRESH", "METRICS", "MOST_NAMES", "OTHERS", "Counted", "Metric", "Metrics", "Processes"]
