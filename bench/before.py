"""This tree beside an earlier commit of it: bulk submit, drain and the cost of a claim, each side in processes of its own, in turn.

A change that made something slower shows here whatever the machine is: both sides ran in the same minutes on the same disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIDE = Path(__file__).with_name("before_side.py")
TARGET = 0.97
"""What this tree must keep of the earlier one, of every measure."""

EPILOG = """
examples:
  python bench/before.py HEAD~1
  python bench/before.py e13cae5 --engine postgres --rounds 5
"""


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(ROOT))
    options = _parser().parse_args(arguments)
    from bench import stores
    from bench.temporary import folder

    with ExitStack() as stack:
        directory = stack.enter_context(folder(Path(options.dir)))
        sides = {"this": ROOT / "src", "before": _unpacked(options.commit, directory)}
        made = stack.enter_context(stores.made(options.engine, Path(options.dir)))
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for number in range(options.rounds):
            for name, source in list(sides.items())[:: 1 if number % 2 else -1]:
                with made.fresh() as url:
                    used = made.cpu()
                    figures = _run(source, url, options.tasks)
                    figures["processor"] = options.tasks / (figures.pop("own") + made.cpu() - used)
                    found[name].append(figures)
                    print(f"round {number + 1} of {options.rounds}, {name}: {_line(figures)}", file=sys.stderr, flush=True)
        _show(options, made.release, found)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/before.py", description=(__doc__ or "").split("\n\n")[0], epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--engine", default="sqlite", choices=("sqlite", "postgres", "redis"))
    parser.add_argument("--rounds", type=int, default=5, help="how often each side has its turn (default 5)")
    parser.add_argument("--tasks", type=int, default=50_000, help="tasks of one turn (default 50,000)")
    parser.add_argument("--dir", default=os.environ.get("BENCH_DIR", "."), help="a directory on a real disk for the stores (default $BENCH_DIR or here)")
    return parser


def _unpacked(commit: str, directory: Path) -> Path:
    """The package as that commit had it."""
    archive = directory / "before.tar"
    subprocess.run(["git", "-C", str(ROOT), "archive", "--output", str(archive), commit, "src"], check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "before", filter="data")
    return directory / "before" / "src"


def _run(source: Path, url: str, tasks: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, str(SIDE), url, str(tasks), str(source)], env=environment, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _line(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.0f}" for name, value in figures.items())


def _show(options: argparse.Namespace, release: str, found: dict[str, list[dict[str, float]]]) -> None:
    print(
        f"{release}: this tree beside {options.commit}, medians of {options.rounds} rounds in turn, {options.tasks:,} tasks each; all are rates, more is better"
    )
    for measure in found["this"][0]:
        this, before = (statistics.median(figures[measure] for figures in found[side]) for side in ("this", "before"))
        each = " ".join(f"{one[measure] / other[measure]:.2f}" for one, other in zip(found["this"], found["before"], strict=True))
        verdict = "met" if this / before >= TARGET else "MISSED"
        print(f"  {measure:10} {this / before:5.2f}  >= {TARGET}  {verdict:6}  this {this:,.0f}/s, before {before:,.0f}/s; rounds {each}")


if __name__ == "__main__":
    raise SystemExit(main())
