"""Live events: 1,000 WebSocket clients of one API process, how late they hear, and what they cost those who submit.

The clients are one process, those who submit another; both on loopback, beside the API on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from bench.report import Figure, Plan
    from bench.runner import Section

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = 1_000
PACE = 0.5
"""Seconds between two events for all clients."""
SECTION = "live"

EPILOG = """
sections:
  live        1,000 WebSocket clients: how late an event comes, without and with a load of submits, and the load's rate without and with the clients

examples:
  python bench/live.py --quick
  python bench/live.py --engine redis --rounds 3
"""


async def run(plan: Plan) -> list[Figure]:
    return await asyncio.to_thread(measured, plan)


def measured(plan: Plan) -> list[Figure]:
    from bench.report import Figure, percentile, rates

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    clients = plan.count(CLIENTS, least=100)
    alone: list[float] = []
    beside: list[float] = []
    idle: list[list[float]] = []
    loaded: list[list[float]] = []
    figures: list[Figure] = []
    kept = ""
    with plan.stores.fresh() as store, api(store) as (url, process):
        load(url, 1.0)
        for number in range(plan.rounds):
            plan.say(f"{SECTION}: round {number + 1} of {plan.rounds}, {clients} clients, {plan.seconds:g} s each")
            alone.append(load(url, plan.seconds))
            with listening(url, clients, "/ws?queue=watch") as ask:
                idle.append(told(url, plan.seconds, ask)["delays"])
                with submitting(url, plan.seconds) as rate:
                    loaded.append(told(url, plan.seconds, ask)["delays"])
                    beside.append(rate())
                kept = f"{rss(process.pid) / 1e6:,.0f} MB of the API with {clients:,} clients"
        plan.say(f"{SECTION}: {clients} clients that want everything")
        with listening(url, clients, "/ws") as ask:
            flooded = load(url, plan.seconds)
            flood = ask()
    for name, found in (("nothing else happens", idle), ("beside submits", loaded)):
        every, rounds = [one for delays in found for one in delays], [percentile(one, 0.99) for one in found]
        how = f"p50 {percentile(every, 0.5):.1f} ms, {len(every):,} messages to {clients:,} clients; {kept}"
        figures.append(Figure(SECTION, f"event to client, p99, {name}", percentile(every, 0.99), "ms", "<", 100.0, how=how, rounds=rounds))
    how, typical = f"one event for all every {PACE * 1e3:g} ms", plan.stores.typical
    figures.append(rates(SECTION, "POST a second, clients of another queue", 0.95, {"with clients": beside, "without": alone}, how, typical=typical))
    how = f"{flood['events']:,} events and {flood['resyncs']:,} resyncs in {plan.seconds:g} s, {flood['bytes'] / 1e6 / plan.seconds:,.0f} MB/s"
    sides = {"with clients": [flooded], "without": [typical(alone)]}
    figures.append(rates(SECTION, "POST a second, clients that want everything", None, sides, how))
    return figures


@contextlib.contextmanager
def api(store: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    subprocess.run([sys.executable, "-m", "taskmill", "db", "upgrade", "--url", store], check=True, capture_output=True)
    command = [sys.executable, "-m", "taskmill", "api", "--port", "0", "--no-grpc", "--log-level", "warning", "--url", store]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = cast("IO[str]", process.stderr).readline()
        if " at http" not in line:
            raise RuntimeError(f"the API did not start: {line}")
        yield line.split(" at ")[1].split(";")[0], process
    finally:
        process.terminate()
        process.wait()


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def other(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "bench" / "live_clients.py"), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def listening(url: str, clients: int, path: str) -> Iterator[Any]:
    """Connected clients; what is given tells what they have heard since it was last asked."""
    process = other("listen", url, clients, path)
    asked, answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

    def ask() -> dict[str, Any]:
        asked.write("\n")
        asked.flush()
        return cast("dict[str, Any]", json.loads(answers.readline()))

    try:
        if answers.readline() != "ready\n":
            raise RuntimeError("the clients did not connect")
        ask()
        yield ask
    finally:
        asked.close()
        process.wait()


@contextlib.contextmanager
def submitting(url: str, seconds: float) -> Iterator[Any]:
    process = other("submit", url, seconds)
    yield lambda: float(json.loads(cast("IO[str]", process.stdout).read())["rate"])
    process.wait()


def load(url: str, seconds: float) -> float:
    with submitting(url, seconds) as rate:
        return cast("float", rate())


def told(url: str, seconds: float, ask: Any) -> dict[str, Any]:
    """One event for all clients, again and again; what they heard of them."""
    end = time.monotonic() + seconds
    body = json.dumps({"type": "watch", "queue": "watch", "payload": None}).encode()
    while time.monotonic() < end:
        began = time.monotonic()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/tasks", body, {"content-type": "application/json"})) as answer:
            answer.read()
        time.sleep(max(0.0, began + PACE - time.monotonic()))
    time.sleep(0.2)
    return cast("dict[str, Any]", ask())


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    from bench import runner

    return runner.run("bench/live.py", (__doc__ or "").split("\n\n")[0], EPILOG, sections(), arguments)


def sections() -> dict[str, dict[str, Section]]:
    return {engine: {"live": run} for engine in ("sqlite", "postgres", "redis")}


if __name__ == "__main__":
    sys.exit(main())
