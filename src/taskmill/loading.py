"""Finding the App that a command line names.

    app.py              the one App of a file
    app.py:app          this one of several
    shop.tasks          the one App of a module
    shop.tasks:app      likewise

What keeps a file from being used is said in one line, with the place in it: `taskmill worker` prints that line, not our traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import zlib
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from taskmill.app import App
from taskmill.errors import AppError, TaskmillError

__all__ = ["load"]


_OURS = Path(__file__).parent


def load(target: str) -> App:
    """The App of a target; AppError says why there is none."""
    where, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if not where or (":" in target and not name):
        raise _error(f"{target!r:.200} names no app", "file.py, file.py:app, package.module or package.module:app")
    module = _import_file(Path(where)) if _is_file(where) else _import_module(where)
    return _named(module, name, where) if name else _only(module, where)


def _is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where or Path(where).is_file()


# Importing


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        hint = f"is it {near}?" if (near := _nearest(path)) else "name a Python file that exists; `taskmill init` writes one to start from"
        raise _error(f"there is no file {path}", hint, code="no_such_file")
    full = path.resolve()
    package, folder = _package_of(full)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if package:
        return _run(".".join((*package, full.stem)), str(path))
    return _import_alone(full, str(path))


def _nearest(path: Path) -> str | None:
    folder = path.parent
    names = [each.name for each in folder.glob("*.py")] if folder.is_dir() else []
    found = get_close_matches(path.name, names, 1)
    return str(folder / found[0]) if found else None


def _package_of(path: Path) -> tuple[tuple[str, ...], Path]:
    """The packages that a file lies in, outermost first, and the folder that holds them: its relative imports then work."""
    names: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    return tuple(names), folder


def _import_alone(path: Path, shown: str) -> ModuleType:
    """A file by itself, under its own name, so that what it imports finds it again; a name that a library has is made another."""
    name = path.stem
    there = sys.modules.get(name)
    if there is not None and getattr(there, "__file__", None) == str(path):
        return there
    if there is not None or not name.isidentifier() or name in sys.stdlib_module_names:
        name = f"taskmill_app_{zlib.crc32(str(path).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _error(f"{shown} is no Python file", "its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _broken(shown, error) from error
    return module


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise _error(f"{name!r:.200} is neither a file nor a module", "file.py, file.py:app, package.module or package.module:app")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return _run(name, name)


def _run(name: str, shown: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            file = f"; as a file, write {name.replace('.', '/')}.py"
            raise _error(
                f"there is no module {error.name!r}", f"it is looked for in {Path.cwd()} and among what is installed{file}", code="no_such_module"
            ) from error
        raise _broken(shown, error) from error
    except BaseException as error:
        raise _broken(shown, error) from error


def _broken(shown: str, error: BaseException) -> AppError:
    """It does not import: what was raised, and the last place in the user's own files."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    place = _place(error)
    message = f"{shown} does not import{f' ({place})' if place else ''}: {_told(error)}"
    return _error(message[:500], error.hint if isinstance(error, TaskmillError) else _remedy(error), code="does_not_import")


def _told(error: BaseException) -> str:
    """The first line of what was raised."""
    if isinstance(error, TaskmillError):
        return f"{error.field}: {error.message}" if error.field else error.message
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _remedy(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"install {error.name}, or start this in the environment that has it"
    if isinstance(error, SystemExit):
        return 'the file ends the program; put what only a script does under `if __name__ == "__main__":`'
    return "fix the file; `python` shows the whole traceback"


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith("<") and _OURS not in Path(frame.filename).parents:
            return f"{_short(frame.filename)}, line {frame.lineno}"
    return ""


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


# Choosing


def _apps(module: ModuleType) -> dict[str, App]:
    """The Apps that a module has, each under its first name."""
    found: dict[str, App] = {}
    for name, value in vars(module).items():
        if isinstance(value, App) and value not in found.values():
            found[name] = value
    return found


def _only(module: ModuleType, where: str) -> App:
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise _error(f"{where} has no App", "it needs one at its top level: app = App()", code="no_app")
    raise _error(f"{where} has {len(apps)} Apps: {', '.join(apps)}", f"say which: {where}:{'app' if 'app' in apps else next(iter(apps))}", code="several_apps")


def _named(module: ModuleType, name: str, where: str) -> App:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    apps = _apps(module)
    hint = f"it has {', '.join(f'{where}:{each}' for each in apps)}" if apps else "it needs one at its top level: app = App()"
    raise _error(f"{where} has no App {name!r:.80}" if found is None else f"{where}:{name} is of type {type(found).__name__}, not an App", hint, code="no_app")


def _error(message: str, hint: str | None, code: str = "invalid_app") -> AppError:
    return AppError(message, code=code, field=None, hint=hint)
