"""The server against its own description: whatever schemathesis makes of the OpenAPI document, each answer is one that the document tells of.

Requests are sent to `taskmill api` as a process of its own, first with names and ids that mean nothing, then with those of things that exist.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

from taskmill.engine import Joining
from taskmill.engines import create
from taskmill.server.access import create_key
from taskmill.task import NewTask, TypeSettings
from tests.surfaces.api import process

CONFIG = """
[generation]
with-security-parameters = false

[checks]
# Rules that hold between fields (delay or run_at, a rate that is one) are no business of a schema.
positive_data_acceptance.enabled = false
# Who has no key is tested for each route in test_access_matrix.py; here the address of the test would be throttled.
ignored_auth.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 410, 412, 413, 414, 415, 422, 426, 428, 429, 431]

[[operations]]
# Each task of a batch is answered by itself, and a wrong one does not make the batch wrong.
include-operation-id = "submit_batch"
checks = { negative_data_rejection = { enabled = false } }

[[operations]]
# Its answer does not end, and no program that waits for the end can judge it; test_bad_fuzz.py asks it whatever chance makes, and reads the head.
include-operation-id = "stream_events"
enabled = false
"""
KNOWN = """
[parameters]
"path.name" = "mail"
"path.queue" = "mail"

[[operations]]
include-tag = "tasks"
parameters = { "path.id" = "TASK" }

[[operations]]
# A wait that is long enough to be one.
include-operation-id = "get_task"
parameters = { "path.id" = "TASK", "query.wait" = "10ms" }

[[operations]]
include-tag = "workers"
parameters = { "path.id" = "anna" }
"""


class Server(NamedTuple):
    """A server process with a few things in its store."""

    url: str
    key: str
    task: str
    log: Path


async def seeded(url: str) -> tuple[str, str]:
    """A key, and the id of a task."""
    engine = create(url)
    await engine.open()
    try:
        token, _ = await create_key(engine, name="", scopes=["admin"])
        await engine.join(Joining(worker="anna", queues=("mail",), types={"mail": TypeSettings(queue="mail")}, lease=3_600_000_000))
        [answer] = await engine.submit([NewTask(type="mail", queue="mail")])
        await engine.put("limit", "mail", b'{"cap": 5}')
        await engine.put("schedule", "mail", b'{"type": "mail", "cron": {"expression": "@daily"}}')
    finally:
        await engine.close()
    return token, answer.id


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    key, task = asyncio.run(seeded(f"sqlite:///{folder}/store.db"))
    with process(folder) as at:
        yield Server(at.url, key, task, at.log)


def judged(at: Server, folder: Path, config: str, examples: int, phases: str, seed: Sequence[str]) -> None:
    """Schemathesis finds nothing, the server lives, and its log has no error."""
    file = folder / "schemathesis.toml"
    file.write_text(config, encoding="utf-8")
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    command = [sys.executable, "-c", program, "--config-file", str(file), "run", f"{at.url}/openapi.json", "-H", f"Authorization: Bearer {at.key}"]
    how = ["--phases", phases, "-n", str(examples), "--no-color", "--continue-on-failure", "--warnings", "off", "--suppress-health-check", "all"]
    done = subprocess.run([*command, *how, *seed], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    with urlopen(f"{at.url}/healthz", timeout=10) as answer:
        assert answer.status == 200


def quiet(log: Path) -> None:
    text = log.read_text(encoding="utf-8")
    assert "Traceback" not in text, text
    assert "ERROR" not in text, text


def check(folder: Path, examples: int, *, known: str, seed: Sequence[str] = ()) -> None:
    with server(folder) as at:
        judged(at, folder, CONFIG, examples, "examples,coverage,fuzzing", seed)
        judged(at, folder, CONFIG + KNOWN.replace("TASK", at.task), examples, known, seed)
    quiet(at.log)


def test_every_answer_is_one_that_the_document_tells_of(tmp_path: Path) -> None:
    """The same requests each time, so that what one run finds every run finds; the long form has others each time."""
    check(tmp_path, 3, known="fuzzing", seed=("--seed", "1"))


@pytest.mark.soak
def test_the_same_for_minutes(tmp_path: Path) -> None:
    check(tmp_path, 200, known="examples,coverage,fuzzing")
