"""A tracer provider for one test, and spans as another process wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

__all__ = ["WORKER", "Spans", "provided", "written"]

WORKER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

provider = TracerProvider()
spans = open("spans.jsonl", "a")
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(indent=None) + chr(10))))
trace.set_tracer_provider(provider)
"""
"""The first lines of an app whose workers write their spans to a file."""


class Spans:
    """What was recorded, by name."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self._exporter.get_finished_spans())

    @property
    def text(self) -> str:
        return "\n".join(span.to_json() for span in self._exporter.get_finished_spans())


@contextmanager
def provided(sampler: Sampler | None = None) -> Iterator[Spans]:
    """A provider as a program sets it up, once; here it is taken back, for the tests that come after."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler) if sampler is not None else TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before: Any = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    try:
        yield Spans(exporter)
    finally:
        trace._TRACER_PROVIDER = before


def written(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
