"""An environment for each peer, with the releases that its files beside this one pin, made once and kept in a cache outside of the repository."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["Unavailable", "cache", "program_of", "python_of"]

HERE = Path(__file__).resolve().parent
CACHE = "BENCH_PEERS"

Say = Callable[[str], None]


class Unavailable(Exception):
    """A peer that cannot be installed here; the comparison goes on without it."""


_tried: dict[Path, Unavailable] = {}
"""What was not to be had: several contenders are one peer, set up otherwise."""


def cache() -> Path:
    """$BENCH_PEERS, else taskmill-bench in the user's cache."""
    named = os.environ.get(CACHE)
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taskmill-bench"


def python_of(peer: str, say: Say) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there."""
    pins = HERE / f"{peer}.txt"
    folder = _made(peer, [pins], platform.python_version(), say, lambda folder: _python(folder, pins))
    return folder / "bin" / "python"


def program_of(peer: str, say: Say) -> list[str]:
    """A peer in another language: its sources and pins lie in a folder of its name, what it shares with others of its language in one of the language's, and
    its program answers the commands of `drive.py` by itself."""
    sources = HERE / peer
    language = "go" if (sources / "go.mod").exists() else "node"
    files = sorted(path for folder in (HERE / language, sources) for path in folder.iterdir() if path.is_file())
    if language == "go":
        folder = _made(peer, files, _release("go", "version"), say, lambda folder: _go(folder, files))
        return [str(folder / "program")]
    folder = _made(peer, files, _release("node", "--version"), say, lambda folder: _node(folder, files))
    return [_tool("node"), str(folder / "main.js")]


def _made(peer: str, files: Sequence[Path], release: str, say: Say, make: Callable[[Path], None]) -> Path:
    """The folder of these files under this release of their language."""
    digest = hashlib.sha256(release.encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = cache() / f"{peer}-{digest.hexdigest()[:12]}"
    if folder in _tried:
        raise _tried[folder]
    if not (folder / "installed").exists():
        say(f"{peer}: installing what {', '.join(file.name for file in files)} say{'s' if len(files) == 1 else ''}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            make(folder)
        except Unavailable as error:
            _tried[folder] = error
            raise
        (folder / "installed").touch()
    return folder


def _python(folder: Path, pins: Path) -> None:
    python = folder / "bin" / "python"
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if uv is not None:
        _do(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder))
        _do(uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(pins))
    else:
        _do(sys.executable, "-m", "venv", "--without-pip", str(folder))  # to put pip in takes longer than most peers do
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
        _do(*pip, "install", "--requirement", str(pins))


def _go(folder: Path, files: Sequence[Path]) -> None:
    _copied(folder, files)
    _do(_tool("go"), "build", "-trimpath", "-o", "program", ".", cwd=folder)


def _node(folder: Path, files: Sequence[Path]) -> None:
    _copied(folder, files)
    _do(_tool("npm"), "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=folder)


def _copied(folder: Path, files: Sequence[Path]) -> None:
    for file in files:
        shutil.copy(file, folder)


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not installed")
    return found


def _release(name: str, how: str) -> str:
    return _do(_tool(name), how)


def _do(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable((done.stderr or done.stdout).strip().splitlines()[-1][:300] if (done.stderr or done.stdout).strip() else f"{command[0]} failed")
    return done.stdout
