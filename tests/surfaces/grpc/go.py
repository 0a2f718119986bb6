"""The reference worker in Go: built from a clean copy, as its README says, and run as a process."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.servers.programs import Absent

__all__ = ["Worker", "built", "started"]

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "examples/workers/go"
MODULE = "taskmill.example/worker"
HANGS = 60.0


def built(folder: Path) -> Path:
    """The program, made once for all who ask for the same folder."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise Absent("Go", "install Go 1.24 or newer (go.dev/dl)")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = folder / "source/worker"
        if not program.exists():
            _build(go, folder / "source")
    return program


def _build(go: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("go.mod", "go.sum", "main.go", "handlers.go"):
        shutil.copy(SOURCE / name, folder)
    path = os.pathsep.join([str(folder / "bin"), str(Path(go).parent), os.environ["PATH"]])
    environment = {**os.environ, "GOBIN": str(folder / "bin"), "PATH": path}
    options = f"module={MODULE},Mtaskmill/v1/taskmill.proto={MODULE}/taskmillv1"
    _run([go, "install", "tool"], folder, environment)
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", "--go_out=.", "--go-grpc_out=."]
    _run([*protoc, f"--go_opt={options}", f"--go-grpc_opt={options}", "taskmill/v1/taskmill.proto"], folder, environment)
    _run([go, "vet", "./..."], folder, environment)
    _run([go, "build", "-o", "worker", "."], folder, environment)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Worker:
    """The process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    async def until(self, text: str) -> str:
        """The next line with this in it."""
        assert self.process.stderr is not None
        async with asyncio.timeout(HANGS):
            while line := (await self.process.stderr.readline()).decode():
                self.said.append(line.rstrip())
                if text in line:
                    return line.rstrip()
        raise AssertionError(f"it never said {text!r}: {self.said}")

    async def ended(self) -> int:
        async with asyncio.timeout(HANGS):
            _, rest = await self.process.communicate()
        self.said += rest.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode


@contextlib.asynccontextmanager
async def started(program: Path, address: str, key: str, *arguments: str) -> AsyncIterator[Worker]:
    """A worker that has joined; killed at the end, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        program, "-address", address, "-queue", "go", *arguments, env={"TASKMILL_API_KEY": key}, stderr=asyncio.subprocess.PIPE
    )
    worker = Worker(process)
    try:
        await worker.until("joined as remote-")
        yield worker
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
