"""Loading an app by its file or module, and what is said when that cannot be done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmill.errors import AppError
from taskmill.loading import load

APP = "from taskmill import App\napp = App('sqlite://:memory:')\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder of the test's own; what is imported in it is forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(target: str) -> AppError:
    with pytest.raises(AppError) as caught:
        load(target)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return caught.value


# What works


@pytest.mark.parametrize("target", ["shop_app.py", "./shop_app.py", "shop_app.py:app", "shop_app", "shop_app:app"])
def test_the_one_app_of_a_file_or_module(elsewhere: Path, target: str) -> None:
    write(elsewhere, "shop_app.py", APP)
    app = load(target)
    assert app.folder == elsewhere
    assert load(target) is app


def test_the_same_app_under_two_names_is_one(elsewhere: Path) -> None:
    write(elsewhere, "twice_app.py", APP + "celery = app\n")
    assert load("twice_app.py").types == {}


def test_one_of_several(elsewhere: Path) -> None:
    write(
        elsewhere, "several_app.py", APP + "other = App('sqlite://:memory:', name='other')\nclass Holder:\n    inner = App('sqlite://:memory:', name='inner')\n"
    )
    assert load("several_app.py:other").settings.name == "other"
    assert load("several_app.py:Holder.inner").settings.name == "inner"


def test_a_file_beside_modules_that_import_it(elsewhere: Path) -> None:
    write(elsewhere, "main_app.py", APP + "import main_mail\n")
    write(elsewhere, "main_mail.py", "from main_app import app\n@app.task\ndef send() -> None: ...\n")
    assert list(load("main_app.py").types) == ["send"]


def test_a_file_inside_of_a_package(elsewhere: Path) -> None:
    write(elsewhere, "shop_package/__init__.py", "")
    write(elsewhere, "shop_package/inner/__init__.py", "")
    write(elsewhere, "shop_package/inner/main.py", APP + "from ..names import NAME\n")
    write(elsewhere, "shop_package/names.py", "NAME = 1\n")
    app = load("shop_package/inner/main.py")
    assert load("shop_package.inner.main") is app
    assert "shop_package.inner.main" in sys.modules


@pytest.mark.parametrize("name", ["json.py", "my-app.py", "taskmill.py"])
def test_a_file_with_the_name_of_a_library(elsewhere: Path, name: str) -> None:
    import json

    write(elsewhere, name, APP)
    assert load(name).folder == elsewhere
    assert sys.modules["json"] is json


# What does not


def test_no_such_file(elsewhere: Path) -> None:
    write(elsewhere, "shop.py", APP)
    assert str(refused("shpo.py")) == "there is no file shpo.py (is it shop.py?)"
    assert refused("nowhere/at/all.py").code == "no_such_file"
    assert refused(str(elsewhere / "none.py")).code == "no_such_file"


def test_no_such_module() -> None:
    error = refused("no_such_package.tasks")
    assert error.code == "no_such_module"
    assert error.message == "there is no module 'no_such_package'"
    assert "no_such_package/tasks.py" in (error.hint or "")


@pytest.mark.parametrize("target", ["", ":", "app.py:", ":app", "two words", "app.py:app:app"])
def test_what_names_nothing(target: str) -> None:
    refused(target)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n\n1 / 0\n", "broken.py does not import (broken.py, line 3): ZeroDivisionError: division by zero"),
        ("def f(:\n    pass\n", "broken.py does not import (broken.py, line 1): SyntaxError: invalid syntax"),
        ("import of_nobody\n", "broken.py does not import (broken.py, line 1): ModuleNotFoundError: No module named 'of_nobody'"),
        ("raise ValueError('one\\ntwo')\n", "broken.py does not import (broken.py, line 1): ValueError: one"),
        ("raise SystemExit\n", "broken.py does not import (broken.py, line 1): SystemExit"),
        ("import sys\nsys.exit(3)\n", "broken.py does not import (broken.py, line 2): SystemExit: 3"),
        (APP + "@app.task(quue=1)\ndef f(): ...\n", "broken.py does not import (broken.py, line 3): quue: @app.task() has no such option"),
        (APP + "@app.task\ndef f(*a): ...\n", "broken.py does not import (broken.py, line 3): f(a): arguments are bound to their names, and *args has none"),
        ("raise ValueError\n", "broken.py does not import (broken.py, line 1): ValueError"),
        ("\0", "broken.py does not import"),
    ],
    ids=["error", "syntax", "import", "lines", "exit", "sys-exit", "option", "handler", "bare", "nul"],
)
def test_a_file_that_does_not_import(elsewhere: Path, text: str, said: str) -> None:
    write(elsewhere, "broken.py", text)
    error = refused("broken.py")
    assert error.code == "does_not_import"
    assert error.message == said or (text == "\0" and error.message.startswith(said))
    assert "broken" not in sys.modules


def test_the_place_is_in_the_users_own_file(elsewhere: Path) -> None:
    write(elsewhere, "outer_app.py", "import inner_part\n")
    write(elsewhere, "inner_part.py", "import json\n\njson.loads('{')\n")
    assert "JSONDecodeError" in refused("outer_app.py").message


def test_a_module_that_does_not_import(elsewhere: Path) -> None:
    write(elsewhere, "broken_module.py", "import of_nobody_either\n")
    error = refused("broken_module")
    assert error.message == "broken_module does not import (broken_module.py, line 1): ModuleNotFoundError: No module named 'of_nobody_either'"
    assert error.hint == "install of_nobody_either, or start this in the environment that has it"


def test_a_remedy_of_our_own_is_the_hint(elsewhere: Path) -> None:
    write(elsewhere, "hinted.py", APP + "@app.task(quue='mail')\ndef f(): ...\n")
    assert refused("hinted.py").hint == "did you mean queue?"


def test_no_app(elsewhere: Path) -> None:
    write(elsewhere, "empty.py", "x = 1\n")
    assert str(refused("empty.py")) == "empty.py has no App (it needs one at its top level: app = App())"
    assert refused("empty.py:app").message == "empty.py has no App 'app'"
    assert refused("empty.py:x").message == "empty.py:x is of type int, not an App"


def test_two_apps(elsewhere: Path) -> None:
    write(elsewhere, "pair.py", APP + "other = App('sqlite://:memory:')\n")
    assert str(refused("pair.py")) == "pair.py has 2 Apps: app, other (say which: pair.py:app)"
    assert refused("pair.py:nobody").hint == "it has pair.py:app, pair.py:other"


def test_a_keyboard_interrupt_is_none_of_our_errors(elsewhere: Path) -> None:
    write(elsewhere, "interrupted.py", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load("interrupted.py")
