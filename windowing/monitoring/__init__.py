"""Monitoring: metrics of a run for Prometheus and OpenTelemetry, and a live page of it.

A *source* is a function without arguments that returns RunMetrics, such as `query.metrics` or `ClusterMetrics(cluster).now`. Names,
kinds and units are those of the table in docs/operate/monitor.md, the same in one process and on Spark.
"""

from typing import TYPE_CHECKING

from windowing.execution.metrics import Metric, MetricKind, RunMetrics, Sample, TaskMetrics, samples
from windowing.local.metrics import ClusterMetrics
from windowing.monitoring.exporters import PrometheusCollector, export_to_opentelemetry, serve_prometheus
from windowing.monitoring.page import LivePage, serve_page
from windowing.optional import getattr_of

__all__ = [
    "ClusterMetrics",
    "LivePage",
    "Metric",
    "MetricKind",
    "PrometheusCollector",
    "RunMetrics",
    "Sample",
    "TaskMetrics",
    "export_to_opentelemetry",
    "samples",
    "serve_page",
    "serve_prometheus",
]

if not TYPE_CHECKING:
    __getattr__ = getattr_of(__name__)
