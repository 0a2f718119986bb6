"""What type checkers say about code that uses Taskmill, line by line: mypy --strict and pyright in strict mode must agree with the case files.

A case file is a program. A line that must be an error says so, with the rule of each checker:

    send_welcome.submit("42")  # error: mypy[arg-type] pyright[reportArgumentType]

Every other line must be free of complaints; types of expressions are pinned by `assert_type`, which is an error where the type differs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = sorted((Path(__file__).parent / "typing_cases").glob("*.py"))

Complaints = dict[int, set[str]]

MARK = re.compile(r"# error: (.*)$")
RULES = re.compile(r"(mypy|pyright)\[([\w,-]+)\]")
MYPY_LINE = re.compile(r"[^:]+:(\d+): error: .*\[([\w-]+)\]$")


def expected(case: Path, checker: str) -> Complaints:
    found: Complaints = {}
    for number, line in enumerate(case.read_text().splitlines(), 1):
        if mark := MARK.search(line):
            rules = dict(RULES.findall(mark[1]))
            if checker in rules:
                found[number] = set(rules[checker].split(","))
    return found


def mypy(case: Path, _: Path) -> Complaints:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--show-error-codes", "--no-error-summary", str(case.relative_to(ROOT))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found: Complaints = {}
    for line in ran.stdout.splitlines():
        if complaint := MYPY_LINE.match(line):
            found.setdefault(int(complaint[1]), set()).add(complaint[2])
        else:
            assert ": note: " in line, line
    assert ran.returncode in {0, 1}, ran.stderr
    return found


def pyright(case: Path, folder: Path) -> Complaints:
    shutil.copy(case, folder / "case.py")  # pyright looks at files below its project only
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps({"include": ["case.py"], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict", "pythonVersion": "3.11"}))
    ran = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(project)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(ran.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, ran.stdout + ran.stderr
    found: Complaints = {}
    for complaint in report["generalDiagnostics"]:
        if complaint["severity"] == "error":
            found.setdefault(complaint["range"]["start"]["line"] + 1, set()).add(complaint.get("rule", "syntax"))
    return found


CHECKERS = {"mypy": mypy, "pyright": pyright}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_checkers_see_what_the_case_says(case: Path, checker: str, tmp_path: Path) -> None:
    assert CHECKERS[checker](case, tmp_path) == expected(case, checker)


def test_the_cases_expect_errors_of_both_checkers() -> None:
    for checker in CHECKERS:
        assert any(expected(case, checker) for case in CASES)
