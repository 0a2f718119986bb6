"""For the tests of programs that use Taskmill: their app on a real store in memory, and a clock that tests move.

    async with under_test(app) as test:
        await send_welcome.submit(42)
        test.assert_submitted(send_welcome, user_id=42)
        await test.drain()                       # everything that is ready runs
        await test.advance("30d")                # schedules, retries and delays, each at its own time

Nothing is a fake: the store is SQLite, attempts go through the worker's own pipeline, and schedules through the scheduler's. What a worker
does with processes and real time is left out: isolated handlers run here, timeouts do not pass, and nobody sleeps.

The pytest plugin is loaded in every run of everybody who has Taskmill installed, so nothing is imported here before it is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskmill.testing.face import SyncUnderTest, UnderTest, under_test
    from taskmill.testing.running import Ran
    from taskmill.testing.submissions import Submission

__all__ = ["Ran", "Submission", "SyncUnderTest", "UnderTest", "under_test"]

_MODULES = {"Ran": "running", "Submission": "submissions"}


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        module = _MODULES.get(name, "face")
        value: object = getattr(import_module(f"taskmill.testing.{module}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'taskmill.testing' has no attribute {name!r}")
