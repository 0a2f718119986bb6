"""Long work: saying how far it is, and not doing again what was done.

python examples/progress.py
"""

from __future__ import annotations

from running import run

from taskmill import App, Context, Retry

app = App()


@app.task(retry=Retry.fixed("100ms"))
async def move_house(ctx: Context) -> list[str]:
    """Three steps. The first attempt breaks down after two of them; the second finds what they came to."""
    done: list[str] = []
    for number, step in enumerate(("pack", "drive", "unpack"), 1):
        if step in ctx.checkpoints:
            done.append(f"{step} was done in attempt {ctx.checkpoints[step]}")
            continue
        if step == "unpack" and ctx.attempt == 1:
            raise RuntimeError("the lift is broken")
        await ctx.checkpoint(step, ctx.attempt)
        await ctx.progress(number / 3, f"{step} is done")
        done.append(f"{step} is done in attempt {ctx.attempt}")
    return done


async def main() -> None:
    async with app:
        handle = await move_house.submit()
        for line in await handle.result(timeout="30s"):
            print(line)
        progress = await handle.progress()
        assert progress is not None
        print(f"progress: {progress.value:.0%}, {progress.message}")


if __name__ == "__main__":
    run(__file__, main)
