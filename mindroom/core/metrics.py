"""Every metric, defined once, with closed label sets: principal, kind, class, outcome, reason, stage, errcode, name.

Never a room, a user or a text as a label. An unknown errcode becomes `other`.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_KNOWN_ERRCODES = frozenset(
    {
        "ok",
        "network",
        "M_FORBIDDEN",
        "M_UNKNOWN_TOKEN",
        "M_LIMIT_EXCEEDED",
        "M_NOT_FOUND",
        "M_UNKNOWN",
        "M_BAD_JSON",
        "M_TOO_LARGE",
        "M_USER_IN_USE",
        "M_ROOM_IN_USE",
        "M_UNRECOGNIZED",
        "not_json",
        "server",
    }
)
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_HUMAN = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


def errcode_label(errcode: str) -> str:
    """An errcode as a closed label."""
    return errcode if errcode in _KNOWN_ERRCODES else "other"


class Metrics:
    """One registry and its instruments; created by `app.compose`, passed down as a value."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        p = "mindroom"

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace=p, registry=r)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace=p, registry=r)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _FAST) -> Histogram:
            return Histogram(name, text, labels, namespace=p, registry=r, buckets=buckets)

        self.sync_last_success_timestamp = gauge(
            "sync_last_success_timestamp", "Unix time of the last admitted sync response.", "principal"
        )
        self.sync_failures = counter("sync_failures", "Failed sync requests.", "errcode")
        self.sync_limited = counter("sync_limited", "Limited timelines.", "outcome")
        self.checkpoint_trust = gauge(
            "checkpoint_trust", "1 for the state of the checkpoint and its reason.", "principal", "state", "reason"
        )
        self.checkpoint_trust_since_timestamp = gauge(
            "checkpoint_trust_since_timestamp", "Unix time at which that state began.", "principal"
        )
        self.admit_seconds = histogram("admit_seconds", "Classify and commit of one sync response.")
        self.admitted_events = counter("admitted_events", "Events given a receipt.", "kind", "class")
        self.duplicates = counter("duplicates", "Events shown again after their receipt.")
        self.pending_events = gauge("pending_events", "Sources that are owed an outcome.", "principal")
        self.parked_events = gauge(
            "parked_events", "Sources that rest until somebody has them tried again.", "principal"
        )
        self.pending_oldest_seconds = gauge("pending_oldest_seconds", "Age of the oldest pending source.", "principal")
        self.hydrations = counter("hydrations", "Reads of what was said before we heard it.", "outcome")
        self.dispatch_seconds = histogram("dispatch_seconds", "Admission to verdict.")
        self.lane_depth = gauge("lane_depth", "Sources waiting in lanes.", "principal")
        self.verdicts = counter("verdicts", "Policy verdicts.", "action", "reason")
        self.turn_seconds = histogram("turn_seconds", "Opening to closing of a turn.", "outcome", buckets=_HUMAN)
        self.model_seconds = histogram("model_seconds", "One model attempt.", buckets=_HUMAN)
        self.model_tokens = counter("model_tokens", "Tokens as the provider counts them.", "direction")
        self.model_failures = counter("model_failures", "Failed model attempts.", "kind")
        self.listener_failures = counter("listener_failures", "Failed notify listeners.", "name")
        self.edits_per_answer = histogram(
            "edits_per_answer", "Progress edits sent per answer.", buckets=(0, 1, 2, 5, 10, 20, 40, 60)
        )
        self.outbox_unacked = gauge("outbox_unacked", "Queued or claimed deliveries.", "principal")
        self.outbox_oldest_seconds = gauge(
            "outbox_oldest_seconds", "Age of the oldest unacknowledged delivery.", "principal"
        )
        self.sends = counter("sends", "Send attempts.", "errcode")
        self.sends_refused = gauge(
            "sends_refused", "1 while the homeserver refuses all that the account sends.", "principal"
        )
        self.rate_limited_seconds = counter("rate_limited_seconds", "Seconds of pause asked for by the homeserver.")
        self.deliveries_adopted = counter("deliveries_adopted", "Deliveries acknowledged by their own echo.")
        self.homeserver_seconds = histogram("homeserver_seconds", "One homeserver request.", "name")
        self.homeserver_failures = counter("homeserver_failures", "Failed homeserver requests.", "name", "errcode")
        self.lease_held = gauge("lease_held", "1 while this process serves the principal.", "principal")
        self.lease_lost = counter("lease_lost", "Leases lost.", "cause")
        self.fence_rejected = counter("fence_rejected", "Write transactions refused by the fence.")
        self.db_transaction_seconds = histogram("db_transaction_seconds", "Named transactions.", "name")
        self.db_pool_wait_seconds = histogram("db_pool_wait_seconds", "Waiting for a pooled connection.")
        self.db_retries = counter("db_retries", "Transactions run again.", "name")
        self.sweep_found = counter("sweep_found", "Work that only the sweep noticed; above zero is a defect.", "kind")
        self.event_loop_lag_seconds = gauge("event_loop_lag_seconds", "How late a timer of the event loop fired.")
        self.build_info = gauge("build_info", "Always 1.", "version", "schema")
