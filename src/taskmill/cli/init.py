"""`taskmill init`: an app that runs, and its settings, to start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from taskmill.cli.options import example
from taskmill.config import FILE_NAME
from taskmill.errors import Conflict

__all__ = ["init"]

APP = '''"""Tasks of this project. `taskmill dev app.py` runs them."""

from __future__ import annotations

from taskmill import App, Context, Retry

app = App()  # the store is named in taskmill.toml


@app.task(retry=Retry.exponential(max_retries=5), timeout="30s")
async def greet(ctx: Context, name: str) -> str:
    """Submit it with: taskmill submit greet '{"name": "Ada"}' --wait"""
    await ctx.progress(0.5, "finding words")
    return f"Hello, {name}!"


@app.schedule("@every 1m", overlap="skip")
def heartbeat() -> None:
    """Fires every minute while a worker runs; taskmill schedule list shows when next."""
    print("still here")
'''

SETTINGS = """# Settings of this project; `taskmill config show --origin` shows all of them.
url = "sqlite:///taskmill.db"
concurrency = 10
"""

FILES = {"app.py": APP, FILE_NAME: SETTINGS}


@example("taskmill init", "taskmill init shop && cd shop && taskmill dev app.py")
@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("--force", is_flag=True, help="Write over files that are there.")
def init(folder: Path, force: bool) -> None:
    """Write an app to start from, and taskmill.toml.

    FOLDER is made when it is not there; the current one without it. Files that exist are left as they are, unless --force is given.
    """
    taken = [name for name in FILES if (folder / name).exists()]
    if taken and not force:
        raise Conflict(f"{' and '.join(taken)} in {folder.absolute()} would be written over", code="file_exists", hint="name another folder, or add --force")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
        click.echo(f"wrote {folder / name}")
    click.echo("Next:")
    if folder.absolute() != Path.cwd():
        click.echo(f"  cd {shlex.quote(str(folder))}")
    click.echo("  taskmill dev app.py                                 # runs it, and again when it changes")
    click.echo("""  taskmill submit greet '{"name": "Ada"}' --wait     # in another terminal""")
