"""Traces with OpenTelemetry: what a request submits, and what a worker makes of it elsewhere, in one trace.

python examples/tracing.py

It needs `opentelemetry-sdk`. Where spans go is the program's own affair: here they are only kept in memory.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from running import run

from taskmill import App, Context

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)  # in the program that submits, and in each worker process: both import this file

tracer = trace.get_tracer("shop")
app = App()


@app.task(queue="mail")
async def confirm(ctx: Context, order: int) -> str:
    """Its spans, and the tasks that it submits, go on with the trace of whoever submitted it."""
    with tracer.start_as_current_span("render"):
        text = f"order {order} is confirmed"
    await ctx.submit(remind, order)
    return f"{text}; trace {current_trace()}"


@app.task(queue="mail")
def remind(order: int) -> str:
    return current_trace()


def current_trace() -> str:
    return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)


async def main() -> None:
    async with app:
        with tracer.start_as_current_span("POST /orders"):
            here = current_trace()
            handle = await confirm.submit(7)
        text, _, there = (await handle.result(timeout="30s")).partition("; trace ")
        print(text)
        print("the handler ran in the same trace:", there == here)
        [child] = [task for task in (await app.operations.list()).tasks if task.type == "remind"]
        print("so did the task that it submitted:", await app.handle(child.id).result(timeout="30s") == here)
        print("spans of this process:", ", ".join(span.name for span in spans.get_finished_spans()))
        print("the task carries:", ", ".join((await handle.task()).headers))


if __name__ == "__main__":
    run(__file__, main)
