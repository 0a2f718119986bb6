"""What a remote worker says of an attempt, as the store takes it."""

from __future__ import annotations

from taskmill.engine import Ending, Outcome
from taskmill.server.outcomes import judged
from taskmill.task import NewTask, State, Task, TypeSettings, new_id, resolve


def test_tasks_that_follow_stay_under_the_limits_of_their_type_and_in_the_tenant() -> None:
    task = Task(
        id=new_id(), type="work", queue="q", payload=b"1", priority=1, state=State.RUNNING, version=2, run_at=0, tenant="acme", created_at=0, updated_at=0
    )  # fmt: skip
    said = Outcome(task=task.id, worker="w", token=1, ending=Ending.COMPLETED, then=(NewTask(type="mail", limits=()), NewTask(type="mail", limits=("own",))))
    followers = judged(said, task).then
    found = [resolve(new, TypeSettings(limits=("third-party",))) for new in followers]
    assert [resolved.limits for resolved in found] == [("third-party",), ("own", "third-party")]
    assert {resolved.new.tenant for resolved in found} == {"acme"}
