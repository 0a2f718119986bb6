"""The dashboard and the alerts that are shipped: every metric, label and value they name exists, and each alert fires when it should."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from taskmill.cli.program import program
from taskmill.clock import SECOND
from taskmill.engine import Ending
from taskmill.task import State
from taskmill.telemetry import METRICS, Metric
from taskmill.telemetry.samples import Samples
from tests.conftest import GIVEN
from tests.servers.absence import skip
from tests.servers.programs import FOLDERS, Absent, promtool

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
TESTS = DEPLOY / "prometheus" / "alerts_test.yml"
DASHBOARD = DEPLOY / "grafana" / "taskmill.json"

SERIES = {name: metric for metric in METRICS for name in ([f"{metric.name}_{end}" for end in ("bucket", "sum", "count")] if metric.bounds else [metric.name])}
AMBIENT = {"instance", "job"}
"""Labels that Prometheus itself gives."""
SELECTOR = re.compile(r"\b(taskqueue_\w+|workers_total)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
WORDS: dict[str, set[str]] = {"status of taskqueue_tasks_completed_total": {*Ending}, "state of taskqueue_queue_depth": {*State}}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def targets() -> list[tuple[str, str]]:
    return [(target["expr"], target["legendFormat"]) for panel in panels() for target in panel.get("targets", ())]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [expr for expr, _ in targets()]


def selectors(expr: str) -> Iterator[tuple[str, Metric, list[tuple[str, str, str]]]]:
    for name, inner in SELECTOR.findall(expr):
        assert name in SERIES, f"there is no {name}"
        yield name, SERIES[name], MATCHER.findall(inner)


def labels_of(name: str) -> set[str]:
    return set(SERIES[name].labels) | AMBIENT | ({"le"} if name.endswith("_bucket") else set())


# Names


@pytest.mark.parametrize("expr", expressions())
def test_metrics_and_labels_exist(expr: str) -> None:
    found = list(selectors(expr))
    assert found
    for name, _, matchers in found:
        assert {label for label, _, _ in matchers} <= labels_of(name)
        for grouped in GROUPED.findall(expr):
            assert set(grouped.split(", ")) <= labels_of(name)


@pytest.mark.parametrize("expr", expressions())
def test_values_of_labels_exist(expr: str) -> None:
    for _, metric, matchers in selectors(expr):
        for label, _, value in matchers:
            if label == "le":
                assert value in {repr(bound / SECOND) for bound in metric.bounds}
            words = WORDS.get(f"{label} of {metric.name}")
            assert words is None or set(value.split("|")) <= words


@pytest.mark.parametrize(("expr", "legend"), targets())
def test_legends_name_labels_that_are_left(expr: str, legend: str) -> None:
    grouped = GROUPED.match(expr[expr.find("by (") :]) if "by (" in expr else None
    left = set() if grouped is None else set(grouped[1].split(", "))
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= left


def test_every_metric_is_shown() -> None:
    shown = {metric.name for expr, _ in targets() for _, metric, _ in selectors(expr)}
    assert {metric.name for metric in METRICS} - shown == {"taskqueue_registered_workers"}, "it is workers_total under its other name"


# The dashboard


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    for one, other in combinations([panel["gridPos"] for panel in panels()], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels())


def test_the_dashboard_asks_for_its_data_source() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "job"]
    assert {panel["datasource"]["uid"] for panel in panels() if panel["type"] != "row"} == {"${datasource}"}


# The alerts


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_alert_is_tested() -> None:
    assert [test["name"] for test in yaml.safe_load(TESTS.read_text())["tests"]] == [rule["alert"] for rule in rules()]


def test_commands_that_are_named_exist() -> None:
    top = program()
    named = re.findall(r"taskmill ([a-z]+)(?: ([a-z]+))?", " ".join(rule["annotations"]["description"] for rule in rules()))
    assert named
    for command, inner in named:
        found = top.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None, command
        if hasattr(found, "commands") and inner:
            assert inner in found.commands


@pytest.mark.parametrize("arguments", [("check", "rules", ALERTS.name), ("test", "rules", TESTS.name)], ids=["check", "test"])
def test_promtool_agrees(arguments: tuple[str, ...], pytestconfig: pytest.Config) -> None:
    try:
        tool = promtool(pytestconfig.stash[GIVEN].get(FOLDERS))
    except Absent as absent:
        skip(absent)
    done = subprocess.run([tool, *arguments], cwd=ALERTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_the_metrics_well_made(pytestconfig: pytest.Config) -> None:
    """All but one: a gauge whose name ends as a counter's, which dashboards of before ask for."""
    try:
        tool = promtool(pytestconfig.stash[GIVEN].get(FOLDERS))
    except Absent as absent:
        skip(absent)
    samples = Samples()
    for metric in METRICS:
        labels = tuple("x" for _ in metric.labels)
        if metric.kind == "counter":
            samples.count(metric.name, labels)
        elif metric.kind == "gauge":
            samples.gauge(metric.name, labels, 1)
        else:
            samples.histogram(metric.name, labels).add(1)
    done = subprocess.run([tool, "check", "metrics"], input=samples.text(), capture_output=True, check=False)
    complaints = (done.stdout + done.stderr).decode().splitlines()
    assert complaints == ['workers_total non-counter metrics should not have "_total" suffix']
