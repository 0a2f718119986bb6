"""The benchmark of gRPC runs from its command line and says what it measured; how fast anything is, is no matter of a test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench" / "grpc_surface.py"


def test_it_gives_a_table_and_json(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, str(BENCH), "--quick", "--scale", "0.01", "--dir", str(tmp_path), "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text(encoding="utf-8"))["figures"]
    judged = {figure["name"] for figure in figures if figure["target"] is not None}
    assert judged == {"SubmitBatch(500), four callers / submit_many", "SubmitStream / submit_many"}
    assert all(figure["value"] > 0 for figure in figures)
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
