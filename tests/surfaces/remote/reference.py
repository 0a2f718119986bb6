"""A worker in plain Python that knows nothing but the written protocol, and mutations of it that break one promise each: `python reference.py never-beats`.

The kit must pass the first and name what is wrong with each of the others.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.parse
from typing import Any, NoReturn

WRONG = sys.argv[1] if len(sys.argv) > 1 else ""


class Stopped(Exception):
    """A handler was told to stop."""


class Task:
    """One attempt."""

    def __init__(self, data: dict[str, Any], worker: str) -> None:
        self.data = data
        self.worker = worker
        self.id: str = data["id"]
        self.token: str = data["token"]
        self.reason: str | None = None
        self.told = threading.Event()
        if WRONG != "no-timeout":
            self.timer = threading.Timer(data["timeout"], self.stop, ("timeout",))
            self.timer.daemon = True
            self.timer.start()

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self.told.set()

    def sleep(self, seconds: float) -> None:
        if self.told.wait(seconds):
            raise Stopped

    @property
    def lease(self) -> dict[str, str]:
        return {"task": self.id, "token": self.token}


class Worker:
    def __init__(self) -> None:
        self.url = urllib.parse.urlsplit(os.environ["TASKMILL_SERVER_URL"])
        self.key = os.environ["TASKMILL_API_KEY"]
        self.slots = int(os.environ["TASKMILL_SLOTS"])
        self.lock = threading.RLock()
        self.wake = threading.Condition(self.lock)
        self.id = ""
        self.every = 1.0
        self.answered = 0
        self.number = 0
        self.held: dict[str, Task] = {}
        self.paused = self.draining = self.over = False

    # Messages

    def post(self, verb: str, body: dict[str, Any], seconds: float) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=seconds)
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
            connection.request("POST", f"/api/v1/worker/{verb}", json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def ask(self, verb: str, body: dict[str, Any], seconds: float = 10.0) -> tuple[int, Any]:
        pause = 0.05
        while True:
            try:
                status, data = self.post(verb, body, seconds)
                if status in {401, 403} and WRONG != "never-gives-up":
                    end(1, "the key is refused")
                if status != 429 and status < 500 and status not in {401, 403}:
                    return status, data
                if WRONG == "ends-on-503" and status == 503:
                    end(1, "the server is away")
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                if (WRONG == "new-number" and verb == "claim") or (WRONG == "finishes-or-not" and verb == "finish"):
                    return 0, None
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, 2.0)

    def join(self, unknown: str) -> None:
        """Anew, unless another thread did so already."""
        with self.lock:
            if self.id != unknown or (WRONG == "keeps-its-id" and self.id):
                return
            for task in self.held.values():
                task.stop("lost")
            self.held.clear()
            body = {"types": list(HANDLERS), "queues": os.environ["TASKMILL_QUEUES"].split(","), "lease": os.environ["TASKMILL_LEASE"]}
            status, data = self.ask("join", body)
            if status != 200:
                end(1, f"join is refused: {data}")
            self.id, self.every = data["worker"], data["beat_every"]
            self.answered = self.number = 0

    # Loops

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: end(0, "at once") if WRONG == "leaves-at-once" else self.drain())
        self.join("")
        if WRONG != "never-beats":
            threading.Thread(target=self.beat, daemon=True).start()
        claiming = threading.Thread(target=self.claim, daemon=True)
        claiming.start()
        while not (self.draining and not self.held):
            time.sleep(0.05)
        self.over = True
        self.ask("leave", {"worker": self.id})
        end(0, "drained")

    def drain(self) -> None:
        self.draining = True

    def claim(self) -> None:
        while not self.draining:
            with self.lock:
                room = 0 if self.paused and WRONG != "deaf" else self.slots - len(self.held)
                worker = self.id
            if room <= 0:
                time.sleep(0.02)
                continue
            self.number = self.number + 1 if WRONG == "new-number" else self.answered + 1
            wait = "0s" if WRONG == "spins" else "1s"
            status, data = self.ask("claim", {"worker": worker, "request": self.number, "slots": room, "wait": wait})
            if status == 404:
                self.join(worker)
            elif status == 200:
                self.take(worker, data)

    def take(self, worker: str, data: dict[str, Any]) -> None:
        with self.lock:
            if worker != self.id:
                return
            self.answered = data["request"]
            for each in data["tasks"]:
                task = Task(each, worker)
                self.held[task.token] = task
                threading.Thread(target=self.attempt, args=(task,), daemon=True).start()

    def beat(self) -> None:
        while not self.over:
            time.sleep(self.every * (9 if WRONG == "beats-late" else 1))
            with self.lock:
                worker = self.id
                leases = [] if WRONG == "beats-empty" else list(self.held)
                body = {"worker": worker, "request": self.answered + (1 if WRONG == "beats-ahead" else 0), "leases": leases}
            if self.left():
                return
            try:
                status, data = self.post("beat", body, self.every)
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                continue
            if status in {401, 403} and WRONG != "never-gives-up":
                end(1, "the key is refused")
            if status == 404 or (status == 200 and not data["known"]):
                self.join(worker)
            elif status == 200:
                self.told(data)

    def left(self) -> bool:
        return self.over

    def told(self, data: dict[str, Any]) -> None:
        with self.lock:
            for task in self.held.values():
                if task.token in data["lost"]:
                    task.stop("lost")
                if task.id in data["cancelled"] and WRONG != "ignores-cancel":
                    task.stop("cancelled")
            self.paused = bool(data["commands"]) and data["commands"][-1] in {"pause", "quiet"}
            self.draining = self.draining or (data["commands"] == ["stop"] and WRONG != "deaf")

    def attempt(self, task: Task) -> None:
        try:
            outcome = {**task.lease, "ending": "completed", "result": HANDLERS[task.data["type"]](self, task)}
        except Stopped:
            outcome = {**task.lease, "ending": "cancelled" if task.reason == "cancelled" else "failed"}
            if task.reason == "timeout":
                outcome["error"] = {"code": "timeout"}
        except Exception as error:
            told = {} if WRONG == "says-nothing" else {"message": str(error)}
            outcome = {**task.lease, "ending": "failed", "error": {"code": type(error).__name__, **told}}
        for _ in range(2 if WRONG == "finishes-twice" else 1):
            if task.reason != "lost":
                self.ask("finish", {"worker": task.worker, "outcomes": [outcome]})
        with self.lock:
            self.held.pop(task.token, None)


def end(code: int, why: str) -> NoReturn:
    print(why, flush=True)
    os._exit(code)


# The types of the kit


def echo(worker: Worker, task: Task) -> Any:
    return task.data["payload"]


def fail(worker: Worker, task: Task) -> Any:
    raise ValueError(task.data["payload"]["message"])


def fail_then_work(worker: Worker, task: Task) -> Any:
    if task.data["attempt"] == 1:
        raise ValueError("not yet")
    return {"attempt": task.data["attempt"]}


def slow(worker: Worker, task: Task) -> Any:
    task.sleep(task.data["payload"]["seconds"])
    return "done"


def checkpoint(worker: Worker, task: Task) -> Any:
    if "value" in task.data["checkpoints"]:
        return {"resumed": task.data["checkpoints"]["value"]}
    if WRONG != "forgets":
        entry = {**task.lease, "name": "value", "value": task.data["payload"]["value"]}
        worker.ask("checkpoint", {"worker": task.worker, "entries": [entry]})
    elif task.data["attempt"] > 1:
        return {"resumed": None}
    raise ValueError("on purpose")


HANDLERS = {
    "kit.echo": echo,
    "kit.fail": fail,
    "kit.fail-then-work": fail_then_work,
    "kit.slow": slow,
    "kit.cancel": slow,
    "kit.checkpoint": checkpoint,
}

if __name__ == "__main__":
    Worker().run()
