"""Taskmill: background tasks on the store you have.

    from taskmill import App, Context, Fail, Retry

    app = App("sqlite:///taskmill.db")

    @app.task(retry=Retry.exponential(max_retries=5), timeout="30s")
    async def send_welcome(ctx: Context, user_id: int) -> str: ...

    handle = await send_welcome.submit(42)

The names below are loaded when they are first used, so that `import taskmill`, and with it every command, starts at once.
"""

from typing import TYPE_CHECKING

from taskmill.version import __version__

if TYPE_CHECKING:
    from taskmill.app import App
    from taskmill.client import Client
    from taskmill.context import Context, Fail, RetryAfter
    from taskmill.errors import ResultExpired, ResultTimeout, StaleLease, TaskCancelled, TaskFailed, TaskmillError
    from taskmill.handle import Handle
    from taskmill.retry import Retry
    from taskmill.task import Priority, State, Unique
    from taskmill.tasks import Call, Tasks, TaskType

__all__ = [
    "App",
    "Call",
    "Client",
    "Context",
    "Fail",
    "Handle",
    "Priority",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "StaleLease",
    "State",
    "TaskCancelled",
    "TaskFailed",
    "TaskType",
    "TaskmillError",
    "Tasks",
    "Unique",
    "__version__",
]

_MODULES = {
    "app": ("App",),
    "client": ("Client",),
    "context": ("Context", "Fail", "RetryAfter"),
    "errors": ("ResultExpired", "ResultTimeout", "StaleLease", "TaskCancelled", "TaskFailed", "TaskmillError"),
    "handle": ("Handle",),
    "retry": ("Retry",),
    "task": ("Priority", "State", "Unique"),
    "tasks": ("Call", "TaskType", "Tasks"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module

            value: object = getattr(import_module(f"taskmill.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'taskmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
