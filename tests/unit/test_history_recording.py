"""Histories written by many processes read back as one, and a killed process leaves its last call as lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import msgspec
import pytest

from taskmill.errors import AnswerLost, InvalidInput, StoreError
from tests.history import Recorder, check, load
from tests.history.events import Attempt, Beat, Claim, Died, Finish, Given, Read, Recover, Submit


def _client(path: Path, number: int, calls: int) -> None:
    with Recorder(path) as recorder:
        for call in range(calls):
            with recorder.calling(Submit(task=f"{number}-{call}", type="t")) as (submit,):
                submit.answer("created", created_at=call)


def _killed(path: Path) -> None:
    with Recorder(path) as recorder, recorder.calling(Submit(task="killed", type="t")):
        os.kill(os.getpid(), signal.SIGKILL)


def test_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    spawn = multiprocessing.get_context("spawn")
    clients = [spawn.Process(target=_client, args=(path, number, 200)) for number in range(3)]
    clients.append(spawn.Process(target=_killed, args=(path,)))
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert [client.exitcode for client in clients] == [0, 0, 0, -signal.SIGKILL]
    history = load(path)
    submits = [event for event in history if isinstance(event, Submit)]
    assert len(submits) == len(history) == 601
    assert {submit.task for submit in submits if submit.answer == "created"} == {f"{number}-{call}" for number in range(3) for call in range(200)}
    (killed,) = [submit for submit in submits if submit.task == "killed"]
    assert (killed.answer, killed.ended, killed.process) == ("lost", None, clients[-1].pid)
    assert [submit.began for submit in submits] == sorted(submit.began for submit in submits)
    assert all(submit.ended is not None and submit.ended >= submit.began for submit in submits if submit is not killed)
    assert check(history) == []


@pytest.mark.parametrize(
    ("error", "answer"),
    [(AnswerLost("cut off"), "lost"), (StoreError("locked"), "error"), (InvalidInput("no"), "error"), (RuntimeError("who knows"), "lost")],
)
def test_an_error_is_an_answer_only_if_it_says_that_nothing_was_written(tmp_path: Path, error: Exception, answer: str) -> None:
    with Recorder(tmp_path / "h") as recorder, pytest.raises(type(error)), recorder.calling(Submit(task="a", type="t")):
        raise error
    (event,) = load(tmp_path / "h")
    assert isinstance(event, Submit)
    assert event.answer == answer


def test_a_batch_is_answered_one_by_one(tmp_path: Path) -> None:
    calls = [Finish(worker="w", task=task, token=1, outcome="completed") for task in "abc"]
    with Recorder(tmp_path / "h") as recorder, recorder.calling(*calls) as finishes:
        finishes[0].answer("applied")
        finishes[1].answer("stale")
    answers = {event.task: event.answer for event in load(tmp_path / "h") if isinstance(event, Finish)}
    assert answers == {"a": "applied", "b": "stale", "c": "lost"}


def test_every_field_comes_back(tmp_path: Path) -> None:
    given = Given(task="a", token=3, attempt=2, claimed_at=9, type="t", limits=("l",))
    claim = Claim(worker="w", request=1, given=(given,), answer="given")
    read = Read(task="a", state="dead", version=4, executions=2, failures=2, attempts=(Attempt(1, "retry"), Attempt(2)), final=True)
    written = [claim, read, Beat(worker="w", request=1, leases=(3,), gone=(3,), answer="applied"), Recover(moved=(), answer="applied"), Died(worker="w")]
    with Recorder(tmp_path / "h") as recorder:
        began = recorder.now()
        for call in written:
            recorder.note(call, began)
    back = load(tmp_path / "h")
    assert [msgspec.structs.replace(event, began=0, ended=None, process=0, number=0) for event in back] == written
    assert {event.began for event in back} == {began}


def test_histories_of_several_files_are_merged(tmp_path: Path) -> None:
    with Recorder(tmp_path / "one") as one, Recorder(tmp_path / "two") as two:
        for recorder, worker in ((one, "a"), (two, "b"), (one, "c")):
            recorder.note(Died(worker=worker))
    assert sorted(event.worker for event in load(tmp_path / "one", tmp_path / "two") if isinstance(event, Died)) == ["a", "b", "c"]
