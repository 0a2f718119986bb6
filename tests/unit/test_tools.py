"""The checks of `tools/` refuse what they are there to refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def lengths(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, TOOLS / "check_lengths.py", *arguments], capture_output=True, text=True, check=False)


def function_of(lines: int) -> str:
    return "def long():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(("name", "text", "code"), [
    ("a.py", function_of(80), 0),
    ("a.py", function_of(81), 1),
    ("a.py", "@print\nasync " + function_of(80), 1),
    ("a.py", "class A:\n    def f(self):\n" + "        x = 1\n" * 80, 1),
    ("a.py", "x = 1\n" * 800, 0),
    ("a.py", "x = 1\n" * 801, 1),
    ("a.sql", "select 1;\n" * 801, 1),
    ("a.lua", "return 1\n" * 801, 1),
    ("a.txt", "free\n" * 801, 0),
])  # fmt: skip
def test_lengths(tmp_path: Path, name: str, text: str, code: int) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert lengths(tmp_path).returncode == code


def test_lengths_names_the_place_and_soft_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n" + function_of(50), encoding="utf-8")
    soft = lengths(tmp_path, "--soft")
    assert (soft.returncode, "a.py:2: long has 50 lines, at most 40" in soft.stdout) == (0, True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "check_tracked.py").write_bytes((TOOLS / "check_tracked.py").read_bytes())
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def tracked(clone: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:word@wheels.example.net/simple")
    (clone / "file.md").write_text(f"first\n{text}\n", encoding="utf-8")
    (clone / "picture").write_bytes(b"\xff\xfe\x00")
    subprocess.run(["git", "add", "."], cwd=clone, check=True)
    return subprocess.run([sys.executable, clone / "tools" / "check_tracked.py"], capture_output=True, text=True, check=False)


# Written with a gap, or this file would be refused itself.
REFUSED = ["https://py~pi.org/simple", "files.python~hosted.org", "/home~/ann/x", "(/root~/x", "http://wheels.example.net/x", "{clone}/x"]


@pytest.mark.parametrize("text", REFUSED)
def test_a_registry_or_a_machine_s_path_is_refused(clone: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    done = tracked(clone, text.replace("~", "").format(clone=clone), monkeypatch)
    assert done.returncode == 1
    assert done.stdout.startswith("file.md:2: ")
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("text", ["https://example.org/home/ann/", "src/root/x", "python -m pip", "/tmp/taskmill.db", "~/taskmill.db"])
def test_other_text_passes(clone: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    assert tracked(clone, text, monkeypatch).returncode == 0
