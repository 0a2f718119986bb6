"""The page of the client is a program: it is run against a server, beside a worker that has its tasks; its numbers are those of the code."""

from __future__ import annotations

import ast
import asyncio
import sys
from importlib import util
from pathlib import Path

import pytest

from taskmill.client import http, operations, waiting
from tests.docs.test_blocks import PATIENCE, awaits, blocks
from tests.docs.test_docs import ROOT, text
from tests.surfaces.serving import serving
from tests.surfaces.workers import program

PAGE = ROOT / "docs" / "guides" / "client.md"
WORKER = """
from taskmill import App
from page_client import tasks

app = App()
app.include(tasks)
"""


async def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks(PAGE, "python")
    declared = "\n\n".join(block for block in code if not awaits(block))
    (tmp_path / "page_client.py").write_text(declared.replace("client.include(tasks)", ""), encoding="utf-8")
    (tmp_path / "app.py").write_text(WORKER, encoding="utf-8")
    store = f"sqlite:///{tmp_path}/taskmill.db"
    with serving(store, tmp_path) as server, program("worker", "app.py", folder=tmp_path, url=store):
        monkeypatch.setenv("TASKMILL_SERVER", server.url)
        (tmp_path / "page_caller.py").write_text(declared, encoding="utf-8")
        found = util.spec_from_file_location("page_caller", tmp_path / "page_caller.py")
        assert found is not None
        assert found.loader is not None
        module = util.module_from_spec(found)
        monkeypatch.setitem(sys.modules, "page_caller", module)
        found.loader.exec_module(module)
        for block in (block for block in code if awaits(block)):
            await asyncio.wait_for(eval(compile(block, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), vars(module)), PATIENCE)


def test_its_numbers_are_those_of_the_code() -> None:
    page = text(PAGE)
    assert f"one request of up to {operations.BATCH} tasks" in page
    assert operations.AT_ONCE == 4
    assert "Up to four requests are under way at once" in page
    assert f"the first {waiting.ALONE} waits have a request each" in page
    assert f"doubles from {http.FIRST_PAUSE * 1000:.0f} ms to {http.LONGEST_PAUSE:.0f} s" in page
