"""The reference of the command line and of the settings is what the code says, and commands named anywhere in the documents exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from taskmill import config
from taskmill.cli import program

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    found = importlib.util.spec_from_file_location("write_docs", ROOT / "tools" / "write_docs.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["docs/reference/cli.md", "docs/reference/settings.md", "docs/reference/surfaces.md"])
def test_the_reference_is_current(writer: ModuleType, page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == writer.WRITERS[page](""), "python tools/write_docs.py writes it anew"


def test_every_command_and_every_setting_is_there() -> None:
    commands = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert all(f"## taskmill {name}\n" in commands for name in program.COMMANDS)
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in settings for name, _, _ in config.reference())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_verbs_named_in_the_documents_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = " \n ".join([*re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL), *re.findall(r"`([^`\n]+)`", text)])
    top = program.program()
    context = click.Context(top)
    for noun, verb in set(re.findall(r"\btaskmill ([a-z]+) ([a-z]+)\b", code)):
        group = top.get_command(context, noun) if noun in program.COMMANDS else None
        if isinstance(group, click.Group):
            assert group.get_command(click.Context(group), verb) is not None, f"taskmill {noun} {verb}"
