"""What Prometheus is told of one gateway; each has a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from chattts_client import ChatTTSClientError

_TTFA_BUCKETS_S = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)


class GatewayMetrics:
    """The metrics of a gateway; called in the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "chattts_gateway_requests",
            "Requests by path and status; a path that does not exist is `other`.",
            ["path", "status"],
            registry=self.registry,
        )
        self.refusals = Counter(
            "chattts_gateway_refusals",
            "Requests that were answered with an error, by its code.",
            ["code"],
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "chattts_gateway_requests_in_flight",
            "Requests that are being answered.",
            registry=self.registry,
        )
        self.websockets_open = Gauge(
            "chattts_gateway_websockets_open",
            "WebSockets that were let in and are open.",
            registry=self.registry,
        )
        self.time_to_first_audio_s = Histogram(
            "chattts_gateway_time_to_first_audio_seconds",
            "From the arrival of a request until Triton's first chunk is there.",
            buckets=_TTFA_BUCKETS_S,
            registry=self.registry,
        )
        self.audio_s = Counter(
            "chattts_gateway_audio_seconds",
            "Audio that came from Triton.",
            registry=self.registry,
        )
        self.upstream_errors = Counter(
            "chattts_gateway_upstream_errors",
            "Errors of calls of Triton, by their type; one that another Triton made up for counts.",
            ["type"],
            registry=self.registry,
        )
        self.broken_streams = Counter(
            "chattts_gateway_broken_streams",
            "Answers that broke off after their first byte.",
            registry=self.registry,
        )
        self.disconnects = Counter(
            "chattts_gateway_disconnects",
            "Requests whose client went away before the end of the answer.",
            registry=self.registry,
        )
        self.upstreams_up = Gauge(
            "chattts_gateway_upstreams_up",
            "Tritons that are not known to be down.",
            registry=self.registry,
        )

    def count_upstream_error(self, error: ChatTTSClientError) -> None:
        """Count an error of a call of Triton."""
        self.upstream_errors.labels(error.error_type).inc()
