"""The benchmark runs from its command line and says what it measured; how fast anything is, is no matter of a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "engine.py"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCH), *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("section", "measures"),
    [
        ("throughput", {"claim+finish by 500 / raw loop", "10 lanes / common lane", "1,000 lanes / common lane"}),
        ("edges", {"1,000 children of one parent / without edges", "1,000 wait for one: longest step"}),
        ("group_commit", {"single submits, 64 coroutines / one"}),
    ],
)
def test_a_section_gives_a_table_and_json(tmp_path: Path, section: str, measures: set[str]) -> None:
    file = tmp_path / "figures.json"
    done = bench("--quick", "--scale", "0.001", "--only", section, "--dir", str(tmp_path), "--json", str(file))
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text(encoding="utf-8"))
    judged = {figure["name"] for figure in document["figures"] if figure["target"] is not None}
    assert judged == measures
    assert all(figure["value"] > 0 for figure in document["figures"])
    assert all((figure["met"] is None) == (figure["target"] is None or not document["judged"]) for figure in document["figures"])
    assert all(figure["name"].split(" / ", 1)[0] in done.stdout for figure in document["figures"])
    assert "round 1 of 1" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def test_help_shows_an_example() -> None:
    done = bench("--help")
    assert done.returncode == 0
    assert "python bench/engine.py --quick" in done.stdout


@pytest.mark.parametrize("arguments", [("--only", "speed"), ("--rounds", "0"), ("--scale", "-1"), ("--dir", "no/such/directory")])
def test_what_it_cannot_do_is_refused(arguments: tuple[str, str]) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert arguments[1] in done.stderr
    assert "Traceback" not in done.stderr
