"""The page of the metrics is held to the table in the code."""

from __future__ import annotations

import re

from taskmill.telemetry import METRICS, MOST_NAMES, OTHERS
from tests.docs.test_docs import ROOT, code_words, section, table, text
from tools.write_docs import with_metrics

PAGE = ROOT / "docs" / "guides" / "metrics.md"


def test_every_metric_is_in_the_table_as_it_is() -> None:
    rows = [(code_words(row[:1])[0], row[1], tuple(code_words(row[2:3])), row[3]) for row in table(PAGE, "All metrics")]
    assert rows == [(metric.name, metric.kind, metric.labels, metric.meaning) for metric in METRICS], "python tools/write_docs.py writes it anew"


def test_the_table_is_as_it_would_be_written() -> None:
    assert with_metrics(text(PAGE)) == text(PAGE)


def test_no_metric_is_named_that_does_not_exist() -> None:
    assert set(re.findall(r"taskqueue_\w+", text(PAGE))) == {metric.name for metric in METRICS if metric.name.startswith("taskqueue_")}


def test_labels_in_the_examples_exist() -> None:
    for labels, name in re.findall(r"by \(([\w, ]+)\) \(?(?:\w+\()?(taskqueue_\w+)", text(PAGE)):
        metric = next(metric for metric in METRICS if metric.name == name)
        assert set(labels.split(", ")) <= {*metric.labels, "instance"}
    assert "by (" in section(PAGE, "Worth an alert")


def test_the_bound_of_names_is_the_code_s_own() -> None:
    assert f"the first {MOST_NAMES:,} it meets" in text(PAGE)
    assert f"`{OTHERS}`" in text(PAGE)
