"""How long a refusal takes: the server is a process of its own, each kind of bad request is sent to it one after the other, and p50 and p99 are printed.

    python bench/refusals.py
    python bench/refusals.py --rounds 2000 --beside 32      while 32 connections submit tasks as fast as they can

The target is p99 of at most 50 ms for every kind.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET_MS = 50.0
COMMAND = [sys.executable, "-c", "import sys; from taskmill.cli import main; sys.exit(main())"]
GOOD = json.dumps({"type": "mail", "queue": "default", "payload": {"n": 1}}).encode()


def request(method: str, target: str, body: bytes | None = None, *head: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *head]
    if body is not None:
        lines += [f"Content-Length: {len(body)}"] + ([] if any(line.startswith("Content-Type") for line in head) else ["Content-Type: application/json"])
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


TASKS = "/api/v1/tasks"
KINDS = {
    "no JSON": request("POST", TASKS, b"{"),
    "no field": request("POST", TASKS, b'{"type":"mail"}'),
    "wrong value": request("POST", TASKS, GOOD.replace(b"mail", b"MAIL")),
    "too deep": request("POST", TASKS, b"[" * 100_000),
    "payload too large": request("POST", TASKS, b'{"type":"mail","queue":"default","payload":"' + b"x" * 300_000 + b'"}'),
    "body too large": request("POST", TASKS, b" " * 5_000_000),
    "too many values": request("POST", f"{TASKS}:batch", b'{"tasks":[' + b"{}," * 500_000 + b"{}]}"),
    "batch too long": request("POST", f"{TASKS}:batch", b'{"tasks":[' + b"{}," * 10_000 + b"{}]}"),
    "wrong content type": request("POST", TASKS, GOOD, "Content-Type: text/plain"),
    "no such task": request("GET", f"{TASKS}/0189abcd-0000-7000-8000-00000000000a"),
    "no id": request("GET", f"{TASKS}/x"),
    "wrong parameter": request("GET", f"{TASKS}?limit=0"),
    "no such path": request("GET", "/nowhere"),
    "no such method": request("PUT", TASKS),
    "another host": request("GET", TASKS).replace(b"127.0.0.1", b"evil.example"),
    "1,000 headers": request("GET", TASKS, None, *(f"X-{n}: a" for n in range(1_000))),
    "no HTTP": b"\x00\x01\r\n\r\n",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=300, help="requests of each kind")
    parser.add_argument("--beside", type=int, default=0, help="connections that submit tasks meanwhile")
    given = parser.parse_args()
    with serving() as port, busy(port, given.beside):
        print(f"{'refusal':<22}{'status':>7}{'p50 ms':>10}{'p99 ms':>10}")
        slow = [name for name, data in KINDS.items() if row(name, port, data, given.rounds) > TARGET_MS]
    print(f"p99 over {TARGET_MS:.0f} ms: {', '.join(slow) or 'none'}")
    return 1 if slow else 0


def row(name: str, port: int, data: bytes, rounds: int) -> float:
    times, status = [], 0
    for _ in range(rounds):
        took, status = once(port, data)
        times.append(took)
    times.sort()
    p50, p99 = (times[min(len(times) - 1, int(len(times) * part))] for part in (0.5, 0.99))
    print(f"{name:<22}{status:>7}{p50:>10.2f}{p99:>10.2f}", flush=True)
    return p99


def once(port: int, data: bytes) -> tuple[float, int]:
    """Milliseconds from the first byte sent to the first byte of the answer; what is large is sent while the answer may be on its way."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        sending = threading.Thread(target=_send, args=(peer, data))
        if len(data) > 65_536:
            sending.start()
        else:
            peer.sendall(data)
        first = peer.recv(4_096)
        took = (time.perf_counter() - began) * 1_000
        if sending.ident is not None:
            sending.join()
    return took, int(first[9:12])


def _send(peer: socket.socket, data: bytes) -> None:
    try:
        peer.sendall(data)
    except OSError:
        return


@contextmanager
def serving() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        subprocess.run([*COMMAND, "db", "upgrade", "--url", url], check=True, capture_output=True)
        with subprocess.Popen([*COMMAND, "api", "--port", "0", "--no-grpc", "--url", url], stderr=subprocess.PIPE, text=True, cwd=folder) as process:
            try:
                yield int(next(found[1] for line in process.stderr or () if (found := re.search(r"127\.0\.0\.1:(\d+);", line))))
            finally:
                process.send_signal(signal.SIGTERM)


@contextmanager
def busy(port: int, connections: int) -> Iterator[None]:
    """Submits by others, each connection one after the other."""
    over = threading.Event()
    others = [threading.Thread(target=_submit, args=(port, over.is_set), daemon=True) for _ in range(connections)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        over.set()
        for other in others:
            other.join()


def _submit(port: int, over: Callable[[], bool]) -> None:
    data = request("POST", TASKS, GOOD)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        while not over():
            peer.sendall(data)
            while not peer.recv(4_096).endswith(b"}"):
                pass


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
