"""An environment for each peer, with the releases its file beside this one pins, made once and kept in a cache outside of the repository."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["Unavailable", "cache", "python_of"]

HERE = Path(__file__).resolve().parent
CACHE = "BENCH_PEERS"


class Unavailable(Exception):
    """A peer that cannot be installed here; the comparison goes on without it."""


def cache() -> Path:
    """$BENCH_PEERS, else taskmill-bench in the user's cache."""
    named = os.environ.get(CACHE)
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taskmill-bench"


def python_of(peer: str, say: Callable[[str], None]) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there."""
    pins = HERE / f"{peer}.txt"
    key = hashlib.sha256(pins.read_bytes() + platform.python_version().encode()).hexdigest()[:12]
    folder = cache() / f"{peer}-{key}"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        say(f"{peer}: installing {', '.join(pins.read_text(encoding='utf-8').split())}")
        _make(folder, python, pins)
        (folder / "installed").touch()
    return python


def _make(folder: Path, python: Path, pins: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if uv is not None:
        _do(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        _do(uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(pins))
    else:
        _do(sys.executable, "-m", "venv", str(folder))
        _do(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(pins))


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable((done.stderr or done.stdout).strip().splitlines()[-1][:300] if (done.stderr or done.stdout).strip() else f"{command[0]} failed")
