"""`GET /api/metrics` for collectors and `GET /api/metrics/view` for people: the same numbers.

Invariant: with secrets configured both are for operators, because the numbers are those of all tenants.
"""

from collections.abc import Iterator
from html import escape

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from services.gateway.measures import Distribution, Gauges, Measures
from services.gateway.metrictable import LOG, METRICS, Metric

_HEADERS = {"Cache-Control": "no-store"}
# The page needs nothing but itself, whatever a label says.
_PAGE_HEADERS = _HEADERS | {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:1.5rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;"
    "border-bottom:1px solid color-mix(in srgb,CanvasText 18%,Canvas)}td:last-child{text-align:right;white-space:nowrap}"
    "code{font:13px/1.45 ui-monospace,monospace;overflow-wrap:anywhere}h3{margin-bottom:0}p{margin-top:0}"
)


class MetricsApi:
    """Both forms of the metrics."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    async def text(self, _request: Request, _who: str) -> Response:
        """The exposition format of Prometheus."""
        registry = CollectorRegistry()
        registry.register(_Collected(await self._gauges.take()))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4, headers=_HEADERS)

    async def view(self, _request: Request, _who: str) -> Response:
        """A page that explains every metric and shows its values."""
        page = "".join(_page(await self._gauges.take()))
        return Response(page, media_type="text/html", headers=_PAGE_HEADERS)


class _Collected(Collector):
    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def collect(self) -> Iterator[Family]:
        for metrics in METRICS.values():
            for metric in metrics:
                yield _family(metric, self._measures)


def _family(metric: Metric, measures: Measures) -> Family:
    numbers = measures.numbers.get(metric.name, {})
    match metric.kind:
        case "counter":
            # The library appends `_total` again.
            family = CounterMetricFamily(
                metric.name.removesuffix("_total"), metric.help, labels=metric.labels
            )
            for labels, number in sorted(numbers.items()):
                family.add_metric(labels, number)
        case "gauge":
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, number in sorted(numbers.items()):
                family.add_metric(labels, number)
        case "histogram":
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, distribution in sorted(measures.distributions.get(metric.name, {}).items()):
                family.add_metric(labels, _cumulative(distribution), distribution.sum)
    return family


def _cumulative(distribution: Distribution) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    total = 0.0
    for bound, number in distribution.buckets:
        total += number
        found.append((bound, total))
    return found


def _page(measures: Measures) -> Iterator[str]:
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Perdure metrics</title><style>{_STYLE}</style>'
    yield '<body><h1>Metrics</h1><p>The numbers of <a href="/api/metrics">/api/metrics</a>, explained.</p>'
    for group, metrics in METRICS.items():
        yield f"<h2>{group}</h2>"
        if group == LOG:
            yield "<p>Of the whole deployment, and the same at every gateway: do not add up gateways.</p>"
        for metric in metrics:
            yield f"<h3><code>{metric.name}</code></h3><p>{escape(metric.help)}</p><table>"
            yield from _rows(metric, measures)
            yield "</table>"
    yield "</body></html>"


def _rows(metric: Metric, measures: Measures) -> Iterator[str]:
    shown: dict[tuple[str, ...], str] = {
        labels: f"{number:,.15g}" for labels, number in measures.numbers.get(metric.name, {}).items()
    }
    for labels, distribution in measures.distributions.get(metric.name, {}).items():
        number = sum(count for _, count in distribution.buckets)
        mean_s = distribution.sum / number if number else 0.0
        shown[labels] = f"{number:,.0f} in all, {mean_s:.3g} s on average"
    for labels, text in sorted(shown.items()):
        named = ", ".join(f"{name}={label}" for name, label in zip(metric.labels, labels, strict=True))
        yield f"<tr><td><code>{escape(named)}</code></td><td>{escape(text)}</td></tr>"
    if not shown:
        yield "<tr><td>none yet</td><td></td></tr>"
