"""Runs inside the environment of one system and does one thing there: `python -m bench.peers.drive MODULE COMMAND [N]`; answers JSON.

describe          its versions, its durability, its ways to submit, its workers' commands
submit KIND N     n tasks that way, timed
fill N            n tasks, untimed
late N SECONDS    up to n tasks, one at a time, each when the one before has started; its worker is already there
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.peers import counter
from bench.peers.side import Side

KINDS = ("single", "concurrent", "bulk", "copy")
WARM_UP = 10
PATIENCE = 10.0


def main(arguments: list[str]) -> int:
    module, command, *rest = arguments
    side = importlib.import_module(f"bench.peers.{module}").SIDE
    assert isinstance(side, Side)
    try:
        side.prepare()
        print(json.dumps(COMMANDS[command](side, *rest)))
    finally:
        side.close()
    return 0


def describe(side: Side) -> dict[str, Any]:
    return {
        "versions": {name: metadata.version(name) for name in side.packages},
        "durability": side.durability(),
        "kinds": [kind for kind in KINDS if getattr(side, kind) is not None],
        "workers": {str(processes): side.workers(processes) for processes in (1, 2)},
    }


def submit(side: Side, kind: str, n: str) -> dict[str, Any]:
    way = getattr(side, kind)
    way(WARM_UP)
    began = time.perf_counter()
    way(int(n))
    return {"seconds": time.perf_counter() - began}


def fill(side: Side, n: str) -> dict[str, Any]:
    side.fill(int(n))
    side.hold()
    return {}


def release(side: Side, processes: str) -> dict[str, Any]:
    side.release(int(processes))
    return {}


def left(side: Side) -> dict[str, Any]:
    return {"left": side.left(), "ended": side.ended()}


def late(side: Side, n: str, seconds: str) -> dict[str, Any]:
    """The pause between two is of a length by chance, so that no poll falls into step with it; the first one only shows that the worker is there."""
    memory = counter.attach(Path(os.environ[counter.COUNTER]))
    sent, end = 0, time.monotonic() + float(seconds)
    submits: list[float] = []
    while sent <= int(n) and (sent < 2 or time.monotonic() < end):
        began = time.monotonic_ns()
        side.late(began)
        submits.append((time.monotonic_ns() - began) / 1e6)
        sent += 1
        if not _started(memory, sent):
            break
        time.sleep(random.uniform(0.005, 0.03))
    return {"milliseconds": counter.latencies(memory, sent)[1:], "submits": submits[1:]}


def _started(memory: Any, n: int) -> bool:
    end = time.monotonic() + PATIENCE
    while counter.read(memory).hits < n:
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return True


COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {"describe": describe, "submit": submit, "fill": fill, "release": release, "left": left, "late": late}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
