"""What Prometheus is told of the protection."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ProtectionMetrics:
    """The metrics of one gateway's protection; called in the event loop.

    Args:
        registry: Of the gateway.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.filter_matches = Counter(
            "chattts_gateway_filter_matches",
            "Places in texts that a list of the content filter names, by list and action.",
            ["list", "action"],
            registry=registry,
        )
        self.reload_failures = Counter(
            "chattts_gateway_reload_failures",
            "Changed files that could not be read, so that the former content stayed in force.",
            ["file"],
            registry=registry,
        )
        self.redis_up = Gauge(
            "chattts_gateway_redis_up",
            "1 while Redis answers, 0 while limits are counted by this process; 1 without Redis.",
            registry=registry,
        )
        self.redis_up.set(1)
        self.redis_failures = Counter(
            "chattts_gateway_redis_failures",
            "Calls of Redis that failed or took too long.",
            registry=registry,
        )
