"""A kit that tests any worker, in whatever language, against the worker protocol: `taskmill kit worker -- node worker.js`.

    worker under test ──HTTP──▶ proxy (records, loses answers) ──▶ taskmill api ──▶ a store of its own
          ▲                                                                          ▲
          └── started, signalled, killed ── a scene for each check ── submits, cancels, pauses

The worker runs for real, and so does the server: a process over a new SQLite store. Each check has a worker process, a proxy, a key and a queue of its own, so
several run at once. What goes over the wire is recorded, and besides the checks it must obey the rules of the protocol at every moment.

The worker has to know a few types, whose handlers docs/guides/other-languages.md describes; `TYPES` are their names.
"""

from taskmill.testing.workers.checks import CHECKS, TYPES
from taskmill.testing.workers.conforming import conform
from taskmill.testing.workers.report import Report, Result
from taskmill.testing.workers.rules import RULES

__all__ = ["CHECKS", "RULES", "TYPES", "Report", "Result", "conform"]
