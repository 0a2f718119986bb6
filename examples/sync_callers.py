"""Callers without an event loop: every awaitable verb has a blocking twin behind `.sync`.

python examples/sync_callers.py
"""

from __future__ import annotations

from running import run

from taskmill import App, Context, TaskmillError

app = App()


@app.task
def thumbnail(ctx: Context, name: str) -> str:
    """A plain function runs in a thread; its context has a `.sync` too."""
    ctx.sync.progress(0.5, "half way")
    ctx.sync.checkpoint("scaled", name)
    return f"{name}.small"


def main() -> None:
    """As in a Django view or a script."""
    handle = thumbnail.sync.submit("cat.png")
    print("result:", handle.result(timeout="30s"))
    print("status:", handle.status())
    handles = app.sync.submit_many(thumbnail.call(f"{number}.png") for number in range(3))
    print("many:", [each.result(timeout="30s") for each in handles])
    print("with options:", thumbnail.options(priority="high").sync.submit("dog.png").result(timeout="30s"))
    try:
        thumbnail.submit("fox.png").close()
    except TaskmillError as error:
        print("without .sync:", error)
    app.sync.close()


if __name__ == "__main__":
    run(__file__, main)
