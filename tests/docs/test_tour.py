"""What `make run` shows is true: every sample ends as it should, the commands it names work, and it ends cleanly however it is ended."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "examples" / "tour")]
ENDLESS = {"tail"}
TAKE_TERMINAL = "import fcntl, os, subprocess, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "


@contextmanager
def tour(folder: Path, *arguments: str, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The tour in a process, ended when the test is."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TASKMILL_")} | {"TMPDIR": str(folder), "TERM": "xterm"}
    with subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=environment, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: subprocess.Popen[bytes], wanted: str) -> list[str]:
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(line.decode().rstrip())
        if wanted in found[-1]:
            return found
    raise AssertionError(f"{wanted!r} was not said, but: {found}")


def test_every_sample_ends_as_it_should(tmp_path: Path) -> None:
    with tour(tmp_path, "--once", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=60)
    said = out.decode().splitlines()
    assert (process.returncode, err) == (0, b"")
    summary = dict(line.split(": ") for line in said if re.fullmatch(r"\w+: \d+ \w+", line))
    assert re.fullmatch(r"\d+ completed", summary.pop("heartbeat"))
    assert summary == {
        "book": "1 completed",
        "chapter": "4 completed",
        "charge": "1 completed",
        "count_primes": "1 completed",
        "encode_video": "1 cancelled",
        "refund": "1 dead",
        "send_sms": "8 completed",
        "welcome": "3 completed",
    }
    assert sum(" retrying " in line and " charge " in line for line in said) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("curl")
def test_the_commands_it_shows_work_and_sigterm_ends_it(tmp_path: Path) -> None:
    with tour(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        said = lines_until(process, "dead       refund")
        commands = [shlex.split(line) for line in said if line.startswith("  ") and " --url " in line]
        assert len(commands) >= 8
        for command in commands:
            if not ENDLESS & set(command):
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=30, check=False)
                assert done.returncode == 0, (command, done.stderr)
        requests = [shlex.split(line) for line in said if line.startswith("  curl ")]
        assert len(requests) >= 3
        for request in requests:
            if not request[-1].endswith("/events"):
                done = subprocess.run([*request, "--fail"], cwd=tmp_path, capture_output=True, timeout=30, check=False)
                assert done.returncode == 0, (request, done.stdout)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")
    assert out.decode().splitlines()[-1] == "The tour is over; its store is removed."
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    with tour(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lines_until(process, "Try in another terminal")
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []


def test_with_its_streams_closed_from_the_start(tmp_path: Path) -> None:
    command = f"{shlex.join([*COMMAND, '--once'])} <&- >&-"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "inside-another-program"])
def test_ctrl_c_on_a_terminal(tmp_path: Path, wrapped: bool) -> None:
    """Live in place, and ended by a key; whoever started it, as `make` does, is not interrupted with it."""
    ours, theirs = os.openpty()
    inside = [sys.executable, "-c", TAKE_TERMINAL + ("sys.exit(subprocess.run(sys.argv[1:]).returncode)" if wrapped else "os.execv(sys.argv[1], sys.argv[1:])")]
    with subprocess.Popen(
        [*inside, *COMMAND],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "100", "LINES": "50"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        try:
            os.close(theirs)
            _read_until(ours, rb"refund .*1")
            os.write(ours, b"\x03")
            seen = _read_until(ours, b"The tour is over")
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
            os.close(ours)
    assert b"Traceback" not in seen
    assert b"\x1b[?25h" in seen, "the cursor is shown again"
    assert list(tmp_path.iterdir()) == []


def _read_until(fd: int, pattern: bytes) -> bytes:
    seen = b""
    while not re.search(pattern, seen):
        seen += os.read(fd, 65_536)
    return seen


@pytest.mark.parametrize(("arguments", "code"), [(["--for", "soon"], 2), (["--help"], 0), (["--store", "/nowhere/tour.db", "--once"], 1)])
def test_other_arguments(tmp_path: Path, arguments: list[str], code: int) -> None:
    with tour(tmp_path, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert b"Traceback" not in err


def test_a_store_that_is_named_is_kept(tmp_path: Path) -> None:
    with tour(tmp_path, "--for", "500ms", "--store", "shop.db", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")
    assert "The store is kept: shop.db" in out.decode()
    assert (tmp_path / "shop.db").is_file()
