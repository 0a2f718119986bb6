"""Taskmill: background tasks on the store you have.

from taskmill import App, Context, Fail, Retry

app = App("sqlite:///taskmill.db")

@app.task(retry=Retry.exponential(max_retries=5), timeout="30s")
async def send_welcome(ctx: Context, user_id: int) -> str: ...

handle = await send_welcome.submit(42)
"""

from taskmill.app import App
from taskmill.context import Context, Fail, RetryAfter, Snooze
from taskmill.errors import ResultExpired, ResultTimeout, TaskCancelled, TaskFailed, TaskmillError
from taskmill.handle import Handle
from taskmill.retry import Retry
from taskmill.task import Priority, State, Unique
from taskmill.tasks import Call, Tasks, TaskType

__all__ = [
    "App",
    "Call",
    "Context",
    "Fail",
    "Handle",
    "Priority",
    "ResultExpired",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Snooze",
    "State",
    "TaskCancelled",
    "TaskFailed",
    "TaskType",
    "TaskmillError",
    "Tasks",
    "Unique",
]
