"""One scrape of `taskmill up`: what the API counted, and what the workers did, each family once."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from pathlib import Path

from tests.surfaces.workers import GENEROUS, client, program, until
from tests.unit.test_telemetry import Scrape

APP = """
from taskmill import App

app = App("sqlite:///store.db")


@app.task
async def work() -> None:
    pass
"""


def fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


async def test_one_scrape_has_it_all(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with program("up", "shop.py", "--port", "0", "--log-format", "json", folder=tmp_path) as up:
        await until(lambda: "the API is at" in up.said, "an address")
        found = re.search(r"the API is at (http://[\d.:]+)", up.said)
        assert found
        async with client(f"sqlite:///{tmp_path / 'store.db'}") as own:
            await own.joined()
            await own.run("work")
        deadline = asyncio.get_running_loop().time() + GENEROUS
        while True:
            text = await asyncio.to_thread(fetched, found[1] + "/metrics")
            scrape = Scrape(text)
            if scrape("taskqueue_time_in_queue_seconds_count", type="work") == 1 and scrape.named("taskqueue_request_duration_seconds_count"):
                break
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)
        assert up.end() == 0
    headers = [line for line in text.decode().splitlines() if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers))
    assert scrape("taskqueue_worker_processes", state="ready") == 1
    assert scrape("taskqueue_tasks_completed_total", type="work", status="completed") == 1
    assert scrape("taskqueue_request_duration_seconds_count", surface="http", route="GET /metrics", status="200")
