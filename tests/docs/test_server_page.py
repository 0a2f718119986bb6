"""The guide of the server is typed as it stands there, against a real server, and says what it shows; the reference of REST is what the routes say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from taskmill.server.access import MOST_FAILURES, Scope
from taskmill.server.rest import ROUTES, STREAMS
from tests.docs.test_docs import ROOT, code_words, table, text
from tools.write_docs import rest_page

PAGE = ROOT / "docs" / "guides" / "server.md"
REFERENCE = ROOT / "docs" / "api" / "rest.md"
END = "--- end of a block ---"
CHANGING = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b(?:[0-9a-f]{12}|[0-9a-f]{16}|\w{64})\b|\d{4}-\d\d-\d\dT[\d:.]+Z")


def sessions() -> list[tuple[str, str | None]]:
    """Every shell block, and what it is said to print."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text(PAGE), re.MULTILINE | re.DOTALL)
    following = [*found[1:], ("", "")]
    return [(block, shown if kind in {"json", "text"} else None) for (language, block), (kind, shown) in zip(found, following, strict=True) if language == "sh"]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKMILL_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"}


def lines(printed: str) -> list[str]:
    return [CHANGING.sub("…", line) for line in printed.splitlines() if line]


@pytest.mark.usefixtures("curl")
def test_the_sessions_of_the_guide(tmp_path: Path) -> None:
    (start, said), *rest = sessions()
    assert start == "taskmill api\n"
    command = ["taskmill", "api", "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            first = next(line for line in server.stderr if line.startswith("taskmill "))
            http, grpc = re.findall(r"127\.0\.0\.1:(\d+)", first)
            assert first.replace(f":{http}", ":8080").replace(f":{grpc}", ":9090") == said
            printed = typed([block for block, _ in rest], http, tmp_path)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    assert server.returncode == 0
    for (block, shown), out in zip(rest, printed, strict=True):
        if shown is not None:
            assert lines(out) == lines(shown), block


def typed(blocks: list[str], port: str, folder: Path) -> list[str]:
    """What each block prints, all of them in one shell. Keys are revoked by the id that they have."""
    known = "taskmill key list | cut -f1 | head -n 1"
    script = "".join(f"{block}\necho\necho '{END}'\n" for block in blocks).replace(":8080/", f":{port}/").replace("revoke 3f9a0c1d2e4b", f"revoke $({known})")
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.split(f"{END}\n")[:-1]


def test_what_is_shown_as_json_is_json() -> None:
    shown = [block for _, block in sessions() if block is not None]
    assert len(shown) >= 10
    for block in shown[1:]:
        for line in block.splitlines():
            json.loads(line)


def test_every_scope_is_in_the_table() -> None:
    assert [code_words(row[:1])[0] for row in table(PAGE, "Keys")] == list(Scope)


def test_the_bounds_of_the_text_are_those_of_the_code() -> None:
    assert MOST_FAILURES == 20
    assert "After 20 wrong keys in a minute" in text(PAGE)


def test_paths_named_in_the_guide_exist() -> None:
    paths = {route.path for route in ROUTES} | {stream.path for stream in STREAMS}
    named = re.findall(r"`(?:GET |POST |PUT |DELETE )?(/(?:api/v1/)?[a-z]+(?:/[{}\w]+)?(?:\.json)?)(?:\?[^`]*)?`", text(PAGE))
    assert len(named) >= 8
    for path in named:
        assert path in paths, path


# The reference


def test_the_reference_is_what_the_routes_say() -> None:
    assert text(REFERENCE) == rest_page(), "python tools/write_docs.py writes it anew"


def test_every_route_is_in_the_reference() -> None:
    headings = re.findall(r"^## ([A-Z]+ /.+)$", text(REFERENCE), re.MULTILINE)
    assert sorted(headings) == sorted(f"{route.method} {route.path}" for route in (*ROUTES, *STREAMS))
