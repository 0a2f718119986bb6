"""The worker in TypeScript: compiled where a test wants it, never in the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.programs import npm

__all__ = ["FILES", "SOURCE", "built"]

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "workers" / "typescript"
FILES = ("package.json", "package-lock.json", "tsconfig.json", "worker.ts", "kit.ts")


def built(folder: Path, folders: str | None = None) -> tuple[str, ...]:
    """The command that runs it."""
    program = npm(folders)
    env = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    for name in FILES:
        shutil.copy(SOURCE / name, folder)
    for arguments in (("ci", "--no-audit", "--no-fund", "--ignore-scripts"), ("run", "build")):
        ran = subprocess.run([program, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert ran.returncode == 0, f"npm {' '.join(arguments)}: {ran.stdout[-2_000:]}{ran.stderr[-2_000:]}"
    return str(program.parent / "node"), str(folder / "build" / "kit.js")
