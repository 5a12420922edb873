"""Exporters of metrics to Prometheus and OpenTelemetry. Metrics are computed on each read and not cached.

Extras: `windowing[prometheus]`, `windowing[opentelemetry]`; each is imported on first use. Only `serve_prometheus` starts a thread.
A source that raises is logged and left out of that answer: a failing metric must not end a query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from windowing.errors import ConfigError, describe_error, quote
from windowing.execution.metrics import METRICS, PREFIX, Metric, MetricKind, RunMetrics, Sample, samples
from windowing.optional import with_extra

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

Source = Callable[[], RunMetrics]
_log = logging.getLogger("windowing.monitoring")


def _sampled(sources: Iterable[Source]) -> Iterator[Sample]:
    for source in sources:
        try:
            found = list(samples(source()))
        except Exception as problem:
            _log.warning("the metrics of %s cannot be had: %s", quote(source), describe_error(problem))
            continue
        yield from found


def _require_sources(sources: tuple[Source, ...], call: str) -> None:
    for source in sources:
        if not callable(source):
            raise ConfigError(
                f"{call} takes functions that return RunMetrics, got {quote(source)}; give query.metrics, or "
                "ClusterMetrics(cluster).now, without calling it"
            )
    if not sources:
        raise ConfigError(f"{call} was given nothing to export; give query.metrics, or ClusterMetrics(cluster).now")


class PrometheusCollector:
    """A collector of prometheus_client for the metrics of these runs.

    `REGISTRY.register(PrometheusCollector(query.metrics))` adds them to the metrics that your process already serves. Two runs need
    two names. Raises ConfigError for an argument that is not callable. Cost of a scrape: O(tasks) for each run.
    """

    def __init__(self, *sources: Source) -> None:
        _require_sources(sources, "PrometheusCollector")
        self._sources = sources

    def collect(self) -> Iterator[Any]:
        """Yield one metric family for each metric. prometheus_client calls it on each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {MetricKind.COUNTER: CounterMetricFamily, MetricKind.GAUGE: GaugeMetricFamily}
        found: dict[str, list[Sample]] = {}
        for sample in _sampled(self._sources):
            found.setdefault(sample.metric.name, []).append(sample)
        for metric in METRICS:
            family: Any = kinds[metric.kind](f"{PREFIX}{metric.name}", _help(metric), labels=list(metric.labels))
            for _, labels, value in found.get(metric.name, ()):
                family.add_metric(labels, value)
            yield family


def serve_prometheus(*sources: Source, port: int = 9464) -> Callable[[], None]:
    """Serve the metrics on http://127.0.0.1:<port>/metrics; return a function that stops the server. Raises ConfigError.

    Needs the extra `prometheus`. The server listens on loopback only: on a cluster, run a Prometheus agent on the same machine.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as problem:
        raise with_extra(problem, "serve_prometheus") from problem
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(*sources))  # type: ignore[arg-type, unused-ignore]  # by its method, not its class
    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except (OSError, OverflowError, TypeError) as problem:
        raise ConfigError(
            f"port {quote(port)} of 127.0.0.1 cannot be served: {describe_error(problem)}; give another port="
        ) from problem

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close


def export_to_opentelemetry(*sources: Source, provider: MeterProvider | None = None) -> None:
    """Create an observable instrument for each metric, which an OpenTelemetry reader reads at its own interval. Raises ConfigError.

    provider: the global one by default. Needs the extra `opentelemetry`, and an exporter of its SDK. Names are those of Prometheus
    without `_total`; labels are attributes.
    """
    try:
        from opentelemetry.metrics import Observation, get_meter
    except ModuleNotFoundError as problem:
        raise with_extra(problem, "export_to_opentelemetry") from problem
    _require_sources(sources, "export_to_opentelemetry")
    meter = get_meter("windowing", meter_provider=provider)
    taken: list[Sample] = []
    asked: set[str] = set()

    def callback_of(metric: Metric) -> Callable[[Any], Iterable[Observation]]:
        def observe(_: Any) -> Iterable[Observation]:
            if not asked or metric.name in asked:  # asked for again: a new collection, whose numbers are of one moment
                taken[:] = _sampled(sources)
                asked.clear()
            asked.add(metric.name)
            return [
                Observation(sample.value, dict(zip(metric.labels, sample.labels, strict=True)))
                for sample in taken
                if sample.metric is metric
            ]

        return observe

    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind is MetricKind.COUNTER else meter.create_observable_gauge
        unit = "s" if metric.unit.startswith("seconds") else f"{{{metric.unit}}}"
        make(f"{PREFIX}{metric.name}", callbacks=[callback_of(metric)], unit=unit, description=_help(metric))


def _help(metric: Metric) -> str:
    return f"{metric.unit}: {metric.meaning}"
