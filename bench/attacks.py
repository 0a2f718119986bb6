"""Small requests that once cost a server seconds or gigabytes: each is sent for a moment to a server of its own on loopback, and what it costs is printed.

A heartbeat in the server's loop notes the longest stretch between two of its beats, in processor time: of the loop's own thread, and of the whole process, in
which other threads may have held the interpreter. Processor time says the same on a busy machine.

    python bench/attacks.py            # all
    python bench/attacks.py duration   # those whose name holds this
"""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 4.0
"""How long an attack goes on."""
BEAT = 0.002
FILES = 1_024
"""The server's limit of open files: what systems start programs with."""
JSON = "application/json"
BATCH, TASKS = "/api/v1/tasks:batch", "/api/v1/tasks"


class Target:
    """A server to be attacked, and keys of it."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.port: int = said["port"]
        self.grpc: int = said["grpc"]
        self.keys: dict[str, str] = said["keys"]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def head(self, method: str, path: str, key: str | None, length: int | None = None, *, packed: bool = False) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [] if key is None else [f"Authorization: Bearer {self.keys[key]}"]
        lines += [] if length is None else [f"Content-Type: {JSON}", f"Content-Length: {length}"]
        lines += ["Content-Encoding: gzip"] if packed else []
        return "\r\n".join([*lines, "", ""]).encode()

    def ask(self, method: str, path: str, body: bytes | None = None, key: str | None = "submit", *, packed: bool = False) -> int:
        """The status of the answer."""
        with self.connect() as connection:
            connection.sendall(self.head(method, path, key, None if body is None else len(body), packed=packed) + (body or b""))
            return int(connection.recv(65_536).split(b" ", 2)[1])


Attack = Callable[[Target], object]


def repeated(act: Attack, callers: int = 4) -> Attack:
    """By several callers at once, again and again; answers their statuses."""

    def attack(target: Target) -> object:
        until = time.monotonic() + SECONDS
        statuses: list[object] = []

        def caller() -> None:
            while time.monotonic() < until:
                try:
                    statuses.append(act(target))
                except OSError as error:
                    statuses.append(type(error).__name__)

        threads = [threading.Thread(target=caller) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {str(status): statuses.count(status) for status in dict.fromkeys(statuses)}

    return attack


def packed(method: str, path: str, body: bytes, key: str = "submit") -> Attack:
    data = gzip.compress(body, 9)
    return repeated(lambda target: target.ask(method, path, data, key, packed=True))


def plain(body: bytes) -> Attack:
    return repeated(lambda target: target.ask("POST", BATCH, body))


def batch(*tasks: object) -> bytes:
    return json.dumps({"tasks": tasks}, separators=(",", ":")).encode()


def edges(waits: int) -> bytes:
    ids = [str(uuid.uuid4()) for _ in range(1_000)]
    return batch(*({"type": "a", "queue": "q", "payload": 1, "id": id, "after": ids[max(0, n - waits) : n]} for n, id in enumerate(ids)))


def many_types(target: Target) -> int:
    types = {f"t{uuid.uuid4().hex}": {"queue": "q"} for _ in range(1_000)}
    return target.ask("POST", "/api/v1/worker/join", json.dumps({"types": types}).encode(), "worker")


def unread_pages(target: Target) -> object:
    """Large tasks are stored, then pages of them are asked for and not read."""
    headers = {f"h{n}": "x" * 3_900 for n in range(4)}
    task = {"type": "a", "queue": "q", "payload": "x" * 200_000, "headers": headers}
    body = batch(*[task] * 100)
    stored = [target.ask("POST", BATCH, body) for _ in range(3)]
    held = [target.connect() for _ in range(30)]
    for connection in held:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.sendall(target.head("GET", f"{TASKS}?limit=1000", "admin"))
    time.sleep(SECONDS)
    for connection in held:
        connection.close()
    return {"stored": stored}


def silent(number: int, data: bytes = b"") -> Attack:
    """Connections that say nothing, or half of something; answers how probes fared meanwhile."""

    def attack(target: Target) -> object:
        held = []
        for _ in range(number):
            connection = target.connect()
            connection.sendall(data)
            held.append(connection)
        found = repeated(lambda target: target.ask("GET", "/healthz", key=None), 1)(target)
        for connection in held:
            connection.close()
        return found

    return attack


def pipelined(target: Target) -> int:
    with target.connect() as connection:
        connection.sendall(target.head("GET", "/readyz", None) * 3)
    return 0


def stream_of_submits(target: Target) -> object:
    from taskmill.server.grpc.v1 import taskmill_pb2 as pb

    return asyncio.run(_streams(target, pb))


async def _streams(target: Target, pb: Any) -> object:
    import grpc

    message = pb.SubmitBatchRequest(tasks=[pb.NewTask(type="a", queue="q", payload=b'"' + b"x" * 250_000 + b'"') for _ in range(60)]).SerializeToString()
    until = time.monotonic() + SECONDS
    sent = [0]

    async def one() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc}", compression=grpc.Compression.Gzip) as channel:
            call: Any = channel.stream_stream("/taskmill.v1.Tasks/SubmitStream")(metadata=(("authorization", f"Bearer {target.keys['submit']}"),))
            try:
                async with asyncio.timeout(SECONDS):
                    while time.monotonic() < until:
                        await call.write(message)
                        sent[0] += 1
            except (TimeoutError, grpc.RpcError):
                call.cancel()

    await asyncio.gather(*(one() for _ in range(4)))
    return {"messages": sent[0]}


def watchers(target: Target) -> object:
    return asyncio.run(_watchers(target))


async def _watchers(target: Target) -> object:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc}", options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)]
    stubs: list[Any] = [health_pb2_grpc.HealthStub(channel) for channel in channels]
    calls = [stubs[n % 4].Watch(health_pb2.HealthCheckRequest()) for n in range(2_000)]
    await asyncio.sleep(SECONDS)
    for call in calls:
        call.cancel()
    for channel in channels:
        await channel.close()
    return {"watchers": len(calls)}


NAME = " - at `$"
ATTACKS: dict[str, Attack] = {
    "nothing at all": lambda target: time.sleep(SECONDS),
    "plain submits": repeated(lambda target: target.ask("POST", TASKS, b'{"type":"a","queue":"q","payload":1}')),
    "F1 a query that looks like paths": repeated(lambda target: target.ask("GET", "/healthz?" + "+-+at+`$" * 4_000 + "%0Ax=1", key=None)),
    "F1 a field that looks like paths": packed("POST", "/api/v1/tasks:wait", json.dumps({NAME * 30_000 + "\nx": 1}).encode(), "read"),
    "F2 a name of 30 MB": packed("POST", BATCH, batch({"type": "a", "payload": 1, "x" * 30_000_000: 1})),
    "F2 a name of 1 MB": packed("POST", BATCH, batch({"type": "a", "payload": 1, "x" * 1_000_000: 1})),
    "F3 32 MB of blanks": packed("POST", BATCH, b" " * (32 << 20)),
    "F3 4 MB of blanks": packed("POST", TASKS, b" " * (4 << 20)),
    "F3 30 MB as they are": plain(batch(*[{"type": "a", "queue": "q", "payload": "x" * 250_000}] * 120)),
    "F3 240,000 values": plain(batch(*[{"type": "a", "queue": "q", "payload": [0] * 24}] * 9_000)),
    "F4 240,000 edges": plain(edges(240)),
    "F4 19,000 edges": plain(edges(19)),
    "F5 a duration of 3 MB": packed("POST", TASKS, json.dumps({"type": "a", "payload": 1, "delay": "1s" * 1_500_000}).encode()),
    "F8 pages that are not read": unread_pages,
    "F10 F15 joins of 1,000 types": repeated(many_types, 2),
    "F11 F16 1,500 silent connections": silent(1_500),
    "F16 500 half heads of 60 KB": silent(500, b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 60_000),
    "F13 streams of submits": stream_of_submits,
    "F17 requests sent together and left alone": repeated(pipelined),
    "F22 2,000 watchers": watchers,
}


# The server


async def _serve(folder: Path) -> None:
    from taskmill.config import Settings
    from taskmill.engines import create
    from taskmill.server.access import create_key
    from taskmill.server.listening import bound
    from taskmill.server.running import Grpc, run
    from taskmill.server.service import Service

    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    engine = create(f"sqlite:///{folder}/store.db", base=folder)
    stop, longest = asyncio.Event(), [0.0, 0.0]
    scopes = ("submit", "read", "worker", "admin")

    def began(service: Service) -> None:
        starting.append(asyncio.create_task(_tell(service, scopes, create_key)))

    starting: list[asyncio.Task[None]] = []
    threading.Thread(target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(stop.set)), daemon=True).start()
    loop = asyncio.get_running_loop()
    beating = asyncio.create_task(_beat(longest))
    with bound("127.0.0.1", 0) as sock:
        await run(engine, Settings(audit_log="audit.jsonl"), sock, stop, base=folder, grpc=Grpc(0, must=True), began=began)
    beating.cancel()
    # What getrusage says begins with the memory of the process that started this one.
    peak = await asyncio.to_thread(_peak)
    sys.stdout.write(json.dumps({"loop_ms": 1_000 * longest[0], "process_ms": 1_000 * longest[1], "peak_mb": peak}) + "\n")


async def _tell(service: Any, scopes: tuple[str, ...], create_key: Any) -> None:
    tenants = {"submit": "acme", "read": "acme"}
    keys = {name: (await create_key(service.engine, name=name, scopes=(name,), tenant=tenants.get(name)))[0] for name in scopes}
    service.keys.changed()
    port, grpc = (int(place.rpartition(":")[2]) for place in (service.place.http, service.place.grpc))
    sys.stdout.write(json.dumps({"port": port, "grpc": grpc, "keys": keys}) + "\n")
    sys.stdout.flush()


def _peak() -> float:
    """In MB."""
    return int(Path("/proc/self/status").read_text(encoding="ascii").partition("VmHWM:")[2].split()[0]) / 1_024


async def _beat(longest: list[float]) -> None:
    await asyncio.sleep(1)  # what starting costs is not the question
    while True:
        thread, process = time.thread_time(), time.process_time()
        await asyncio.sleep(BEAT)
        longest[0] = max(longest[0], time.thread_time() - thread)
        longest[1] = max(longest[1], time.process_time() - process)


def attacked(name: str, attack: Attack) -> str:
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, __file__, "--serve", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            target = Target(json.loads(server.stdout.readline()))
            time.sleep(1.5)
            found = attack(target)
            server.stdin.close()
            cost = json.loads(server.stdout.readlines()[-1])
        finally:
            server.kill()
            server.wait()
    return f"| {name} | {cost['loop_ms']:.0f} | {cost['process_ms']:.0f} | {cost['peak_mb']:.0f} | {json.dumps(found)} |"


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        import uvloop

        uvloop.run(_serve(Path(sys.argv[2])))
        return
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    sys.stdout.write("| attack | longest stretch of the loop, ms | of the process, ms | peak of memory, MB | answers |\n|---|---|---|---|---|\n")
    for name, attack in ATTACKS.items():
        if wanted in name:
            sys.stdout.write(attacked(name, attack) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
