"""Exporters, the dashboard and the monitoring page have the metrics of the table `METRICS`, with the values of the run."""

from __future__ import annotations

import ast
import json
import logging
import re
import socket
import sys
import urllib.request
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from windowing.errors import ConfigError
from windowing.execution.metrics import (
    METRICS,
    PREFIX,
    Metric,
    MetricKind,
    RunMetrics,
    SlowestInput,
    TaskMetrics,
    samples,
)
from windowing.monitoring import PrometheusCollector, export_to_opentelemetry, serve_prometheus
from windowing.spark import BatchMetrics, MetricsListener

ROOT = Path(__file__).parents[1]


def exported(metric: Metric) -> str:
    """Return the name in Prometheus."""
    return f"{PREFIX}{metric.name}{'_total' if metric.kind is MetricKind.COUNTER else ''}"


EXPORTED = {exported(metric) for metric in METRICS}
NAME = re.compile(r"\bwindowing_[a-z_]+\b")


def run():
    tens = TaskMetrics("tens", 0, {"default": 3}, executed=9, acked=8, late={"late": 1}, pending=1, execute_ms=1500.0)
    tens.watermark_ms, tens.watermark_lag_ms = 25_000, 6_000
    tens.slowest = SlowestInput("clicks", 3, 22_000)
    split = TaskMetrics('sp"lit\n', 1, {"default": 9}, executed=5, slowest=SlowestInput("orders", None, None))
    phases = {"addBatch": 250.0}
    return RunMetrics(name="words", at_ms=31_000, tasks=(tens, split), batch=7, phases=phases, ended="")


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize(
    ("export", "package", "extra"),
    [
        (serve_prometheus, "prometheus_client", "prometheus"),
        (export_to_opentelemetry, "opentelemetry.metrics", "opentelemetry"),
    ],
)
def test_an_exporter_without_its_package_names_the_extra_that_installs_it(monkeypatch, export, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{export.__name__} needs .*pip install 'windowing\[{extra}\]'"):
        export(run)


def test_prometheus_exports_each_metric_with_its_labels_and_units():
    port = free_port()
    close = serve_prometheus(run, port=port)
    try:
        text = scraped(port)
    finally:
        close()
    assert 'windowing_executed_total{component="tens",task="0",topology="words"} 9.0' in text
    assert 'windowing_late_total{component="tens",reason="late",task="0",topology="words"} 1.0' in text
    assert 'windowing_execute_seconds_total{component="tens",task="0",topology="words"} 1.5' in text
    assert 'windowing_watermark_lag_seconds{component="tens",task="0",topology="words"} 6.0' in text
    slowest = (
        'windowing_slowest_input_lag_seconds{component="tens",source="3",stream="clicks",task="0",topology="words"}'
    )
    assert f"{slowest} 9.0" in text
    assert 'source="",stream="orders",task="1",topology="words"} 31.0' in text
    assert 'windowing_active{topology="words"} 1.0' in text
    assert 'windowing_batch_phase_seconds{phase="addBatch",topology="words"} 0.25' in text
    assert 'component="sp\\"lit\\n"' in text
    assert 'windowing_pending{component="sp' not in text  # the value is unknown
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == EXPORTED


def test_the_prometheus_server_listens_on_loopback_only_and_can_be_closed():
    port = free_port()
    close = serve_prometheus(run, port=port)
    with pytest.raises(ConfigError, match=r"give another port="):
        serve_prometheus(run, port=port)
    with socket.socket() as other:  # the port is free on the other addresses of this machine
        other.bind(("127.0.0.2", port))
    close()
    with pytest.raises(OSError, match="refused"):
        scraped(port)


@pytest.mark.parametrize("port", [-1, 70_000, "x"])
def test_the_prometheus_server_refuses_a_port_that_is_none_in_one_sentence(port):
    with pytest.raises(ConfigError, match=rf"port {port!r} of 127.0.0.1 cannot be served: .*give another port="):
        serve_prometheus(run, port=port)


def test_opentelemetry_exports_the_same_values():
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    source = Mock(side_effect=run)
    export_to_opentelemetry(source, provider=provider)
    exported = [
        metric
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]
    provider.shutdown()
    assert {
        (metric.name, tuple(point.attributes.values())): point.value
        for metric in exported
        for point in metric.data.data_points
    } == {(f"windowing_{s.metric.name}", s.labels): s.value for s in samples(run())}
    kinds = {metric.name: (metric.unit, type(metric.data).__name__) for metric in exported}
    assert kinds["windowing_executed"] == ("{tuples}", "Sum")
    assert kinds["windowing_watermark_lag_seconds"] == ("s", "Gauge")
    assert source.call_count == 1, "all of a collection are of one moment"


def test_a_reader_of_opentelemetry_may_ask_for_some_metrics_in_any_order():
    from opentelemetry.metrics import CallbackOptions

    callbacks = {}
    meter = SimpleNamespace(
        create_observable_counter=lambda name, **given: callbacks.update({name: given["callbacks"][0]}),
        create_observable_gauge=lambda name, **given: callbacks.update({name: given["callbacks"][0]}),
    )
    source = Mock(side_effect=run)
    export_to_opentelemetry(source, provider=Mock(get_meter=Mock(return_value=meter)))
    asked = [callbacks["windowing_windows_fired"], callbacks["windowing_executed"]]
    for collections in (1, 2, 3):
        for callback in asked:
            assert list(callback(CallbackOptions()))
        assert source.call_count == collections
    assert list(asked[1](CallbackOptions()))
    assert source.call_count == 4


def test_a_failing_source_is_logged_and_the_others_are_exported(caplog):
    def broken():
        raise RuntimeError("the JVM is gone")

    with caplog.at_level(logging.WARNING, "windowing.monitoring"):
        families = {family.name: family for family in PrometheusCollector(broken, run).collect()}
    assert len(families["windowing_executed"].samples) == 2
    assert "the JVM is gone" in caplog.text


@pytest.mark.parametrize("given", [(), (run(),)])
def test_an_invalid_source_is_refused(given):
    with pytest.raises(ConfigError, match=r"query\.metrics"):
        PrometheusCollector(*given)


def test_the_dashboard_uses_exactly_the_exported_metrics():
    text = (ROOT / "docs" / "operate" / "grafana.json").read_text(encoding="utf-8")
    board = json.loads(text)
    asked = {name for panel in board["panels"] for target in panel["targets"] for name in NAME.findall(target["expr"])}
    assert asked == EXPORTED
    labels = {label for metric in METRICS for label in metric.labels}
    grouped = {name for by in re.findall(r"by \(([a-z, ]+)\)", text) for name in by.split(", ")}
    assert grouped <= labels
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def metrics_table() -> str:
    """Return METRICS as a Markdown table, as in docs/operate/monitor.md."""
    lines = ["| name | kind | unit | labels | what | in Storm's UI |", "|---|---|---|---|---|---|"]
    for metric in METRICS:
        cells = (
            f"`{exported(metric)}`",
            metric.kind,
            metric.unit,
            ", ".join(metric.labels),
            metric.meaning,
            metric.storm,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_monitoring_page_has_the_table_and_only_exported_metrics():
    page = (ROOT / "docs" / "operate" / "monitor.md").read_text(encoding="utf-8")
    assert metrics_table() in page
    assert set(NAME.findall(page)) - {"windowing_"} <= EXPORTED
    listed = re.search(r"`MetricsListener` gives .*?:\n([a-z_,\s]+)\.", page)
    assert listed is not None
    assert set(re.findall(r"\w+", listed[1])) == {field.name for field in fields(BatchMetrics)}


def test_each_package_has_one_logger_and_nothing_is_printed():
    """Except in the command line and the simulator, which are programs."""
    loggers, printing = {}, []
    for path in (ROOT / "windowing").rglob("*.py"):
        package = path.relative_to(ROOT / "windowing").parts[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            if name == "logging.getLogger":
                loggers.setdefault(package, set()).add(ast.literal_eval(call.args[0]))
            elif name == "print" and package != "cli" and path.parent.name != "simulator":
                printing.append(str(path))
    assert loggers == {
        "local": {"windowing"},
        "queues": {"windowing.queues"},
        "stores": {"windowing.stores"},
        "spark": {"windowing.spark"},
        "monitoring": {"windowing.monitoring"},
    }
    assert not printing


@pytest.mark.parametrize("wrong", [lambda: None, 5])
def test_a_callback_that_cannot_be_called_with_metrics_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"MetricsListener calls a function with \(metrics\), got .*, which "):
        MetricsListener(wrong)
