"""Tracing: set up when an OTLP endpoint is configured, free otherwise.

Invariant: nothing here is on the critical path; without an endpoint the API's no-op tracer stays in place and the
SDK is not even imported.
"""

from opentelemetry import trace


def configure(*, service: str, replica: str, version: str, endpoint: str | None) -> None:
    """Export spans over OTLP/HTTP to `endpoint` in batches; a collector that is down loses spans, never work."""
    if endpoint is None:
        return
    # Imported here because the exporter costs 0.2 s of start-up that nobody without a collector should pay.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 see above
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 see above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 see above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 see above

    resource = Resource.create(
        {"service.name": f"perdure-{service}", "service.instance.id": replica, "service.version": version}
    )
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
    )
    trace.set_tracer_provider(provider)
