"""The schema as SQLAlchemy tables; a test proves that they and the revisions build the same catalog.

Comments, views, functions and sequence ownership are SQL in the revisions and not repeated here. Creating these tables
needs the function `mindroom_now()` first, because defaults call it.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, JSONB
from sqlalchemy.sql.elements import TextClause

metadata = MetaData()

NOW = text("mindroom_now()")
ZERO = text("0")


def _id(name: str, *, nullable: bool = False) -> Column[Any]:
    """A text whose order and equality are those of its bytes, whatever the database's locale."""
    return Column(name, Text(collation="C"), nullable=nullable)


def _text(name: str, *, nullable: bool = False, default: TextClause | None = None) -> Column[Any]:
    return Column(name, Text, nullable=nullable, server_default=default)


def _int(name: str, *, nullable: bool = False, default: TextClause | None = None) -> Column[Any]:
    return Column(name, Integer, nullable=nullable, server_default=default, autoincrement=False)


def _big(name: str, *, nullable: bool = False, default: TextClause | None = None) -> Column[Any]:
    return Column(name, BigInteger, nullable=nullable, server_default=default, autoincrement=False)


def _time(name: str, *, nullable: bool = False, default: TextClause | None = None) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def _jsonb(name: str, *, nullable: bool = False) -> Column[Any]:
    return Column(name, JSONB, nullable=nullable)


def _principal(*, references: bool = True) -> Column[Any]:
    keys = [ForeignKey("principals.principal")] if references else []
    return Column("principal", Integer, *keys, nullable=False, autoincrement=False)


def _turn_id(*, references: bool = False, nullable: bool = False) -> Column[Any]:
    keys = [ForeignKey("turns.turn_id")] if references else []
    return Column("turn_id", Uuid, *keys, nullable=nullable)


def _order_key() -> tuple[Column[Any], ...]:
    return _big("base"), _big("page"), _int("idx")


def _one_of(table: str, column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{table}_{column}")


def _one_row(table: str) -> tuple[Column[Any], CheckConstraint]:
    column: Column[Any] = Column("singleton", Boolean, primary_key=True, server_default=text("true"))
    return column, CheckConstraint("singleton", name=f"{table}_one_row")


# ---- clock and control ----------------------------------------------------------------------------------------------
Table(
    "clock_control",
    metadata,
    *_one_row("clock_control"),
    Column("test_offset", INTERVAL, nullable=False, server_default=text("interval '0'")),
)
Table(
    "instance",
    metadata,
    *_one_row("instance"),
    Column("instance_id", Uuid, nullable=False),
    Column("key_check", LargeBinary, nullable=False),
    _time("created_at", default=NOW),
)
Table(
    "processes",
    metadata,
    Column("process_id", BigInteger, Identity(always=True), primary_key=True),
    _text("host"),
    _int("pid"),
    _text("boot_id"),
    _text("data_folder"),
    _text("version"),
    _time("started_at", default=NOW),
    _time("beat_at", default=NOW),
    _time("stopped_at", nullable=True),
)
Table(
    "principals",
    metadata,
    Column("principal", Integer, Identity(always=True), primary_key=True),
    _id("name"),
    _text("kind"),
    _id("user_id"),
    _id("device_id", nullable=True),
    Column("password_sealed", LargeBinary),
    Column("access_token_sealed", LargeBinary),
    _text("unhealthy_reason", nullable=True),
    _time("created_at", default=NOW),
    UniqueConstraint("name", name="principals_name_key"),
    UniqueConstraint("user_id", name="principals_user_id_key"),
    _one_of("principals", "kind", "agent"),
)
Table(
    "principal_fence",
    metadata,
    _principal(),
    _big("fence", default=ZERO),
    PrimaryKeyConstraint("principal"),
)
Table(
    "principal_beat",
    metadata,
    _principal(),
    Column("owner", BigInteger, ForeignKey("processes.process_id")),
    _time("expires_at", default=text("'-infinity'")),
    Column("resigned", Boolean, nullable=False, server_default=text("true")),
    PrimaryKeyConstraint("principal"),
)

# ---- heard ----------------------------------------------------------------------------------------------------------
Table(
    "sync_checkpoints",
    metadata,
    _principal(),
    _text("token", nullable=True),
    _text("trust"),
    _text("reason"),
    _time("since", default=NOW),
    _time("certified_at", nullable=True),
    PrimaryKeyConstraint("principal"),
    _one_of("sync_checkpoints", "trust", "cold", "pending", "certified", "uncertain"),
)

RECEIPT_NUMBER: Sequence = Sequence("journal_receipt_number", metadata=metadata)


def _event_columns() -> tuple[Column[Any], ...]:
    return (
        _principal(references=False),
        _int("epoch"),
        _big("origin_ts"),
        *_order_key(),
        _id("event_id"),
        _id("room_id"),
        _id("thread_id"),
        _id("sender"),
        _text("kind"),
        _text("class"),
    )


Table(
    "journal_receipts",
    metadata,
    _big("receipt", default=text("nextval('journal_receipt_number')")),
    *_event_columns(),
    PrimaryKeyConstraint("receipt"),
    UniqueConstraint("principal", "event_id", name="journal_receipts_event_key"),
    _one_of(
        "journal_receipts",
        "kind",
        *("message", "edit", "media", "reaction", "room_lifecycle", "redaction", "encrypted", "unreadable"),
    ),
    _one_of("journal_receipts", "class", "live", "recovered", "history"),
)
Table(
    "journal_pending",
    metadata,
    _big("receipt"),
    *_event_columns(),
    _jsonb("source"),
    _time("admitted_at", default=NOW),
    _int("failures", default=ZERO),
    _int("attempts", default=ZERO),
    _time("next_attempt_at", nullable=True),
    _text("last_error", nullable=True),
    _time("parked_at", nullable=True),
    _text("parked_by", nullable=True),
    _text("parked_as", nullable=True),
    PrimaryKeyConstraint("receipt"),
    _one_of("journal_pending", "parked_as", "unknown", "permanent", "corrupt"),
    CheckConstraint(
        "parked_at IS NULL OR (parked_by IS NOT NULL AND parked_as IS NOT NULL)", name="journal_pending_parked"
    ),
    _one_of("journal_pending", "kind", "message", "media"),
    _one_of("journal_pending", "class", "live", "recovered"),
    Index("journal_pending_event", "principal", "event_id", unique=True),
    Index("journal_pending_order", "principal", "base", "page", "idx", "receipt"),
)
Table(
    "journal_settlements",
    metadata,
    _big("receipt"),
    _text("outcome"),
    _turn_id(nullable=True),
    _time("settled_at", default=NOW),
    PrimaryKeyConstraint("receipt"),
)
Table(
    "answered_marks",
    metadata,
    _principal(references=False),
    _id("event_id"),
    PrimaryKeyConstraint("principal", "event_id"),
)
Table(
    "visible_messages",
    metadata,
    _principal(references=False),
    _id("room_id"),
    _id("event_id"),
    _id("thread_id"),
    _id("sender"),
    _int("epoch"),
    _big("origin_ts"),
    *_order_key(),
    _jsonb("content", nullable=True),
    _jsonb("relates_to", nullable=True),
    _big("revision_ts"),
    _id("revision_id"),
    _turn_id(nullable=True),
    PrimaryKeyConstraint("principal", "room_id", "event_id"),
    Index("visible_messages_conversation", "principal", "room_id", "thread_id", "base", "page", "idx"),
    Index(
        "visible_messages_revision",
        *("principal", "room_id", "revision_id"),
        postgresql_where=text("revision_id <> event_id"),
    ),
    Index(
        "visible_messages_withheld",
        "principal",
        postgresql_where=text("content IS NULL AND revision_id <> event_id"),
    ),
)
Table(
    "unresolved_edits",
    metadata,
    _principal(references=False),
    _id("room_id"),
    _id("target_id"),
    _id("sender"),
    _jsonb("content", nullable=True),
    _big("revision_ts"),
    _id("revision_id"),
    _int("epoch"),
    PrimaryKeyConstraint("principal", "room_id", "target_id", "sender"),
)
Table(
    "redaction_tombstones",
    metadata,
    _principal(references=False),
    _id("room_id"),
    _id("event_id"),
    _time("redacted_at", default=NOW),
    PrimaryKeyConstraint("principal", "room_id", "event_id"),
)
Table(
    "room_membership",
    metadata,
    _principal(),
    _id("room_id"),
    _int("epoch"),
    _text("membership"),
    _id("inviter", nullable=True),
    Column("is_direct", Boolean, nullable=False, server_default=text("false")),
    _int("invite_attempts", default=ZERO),
    _time("invite_next_attempt_at", nullable=True),
    _text("invite_last_error", nullable=True),
    _int("joined_count", nullable=True),
    _int("invited_count", nullable=True),
    _id("joined_by", nullable=True),
    PrimaryKeyConstraint("principal", "room_id"),
    _one_of("room_membership", "membership", "join", "invite", "leave", "ban"),
    Index("room_membership_invites", "principal", postgresql_where=text("membership = 'invite'")),
)
Table(
    "room_state",
    metadata,
    _principal(),
    _id("room_id"),
    _id("type"),
    _id("state_key"),
    _id("sender"),
    _jsonb("content"),
    PrimaryKeyConstraint("principal", "room_id", "type", "state_key"),
)
Table(
    "room_history_recovery",
    metadata,
    _principal(),
    _id("room_id"),
    _id("to_token"),
    _text("from_token"),
    _int("walk", default=text("1")),
    _text("cursor", nullable=True),
    _big("page", default=ZERO),
    _int("events", default=ZERO),
    _big("anchor_base", nullable=True),
    _big("anchor_page", nullable=True),
    _int("anchor_idx", nullable=True),
    _big("floor"),
    _int("epoch"),
    _big("late_before_ms", nullable=True),
    _text("state", default=text("'repairable'")),
    _int("attempts", default=ZERO),
    _time("next_attempt_at", nullable=True),
    _int("refusals", default=ZERO),
    _time("refused_at", nullable=True),
    _text("last_error", nullable=True),
    _time("opened_at", default=NOW),
    _time("closed_at", nullable=True),
    PrimaryKeyConstraint("principal", "room_id", "to_token"),
    _one_of("room_history_recovery", "state", "repairable", "repaired", "truncated"),
    CheckConstraint("walk IN (1, 2)", name="room_history_recovery_walk"),
    Index("room_history_recovery_open", "principal", postgresql_where=text("state = 'repairable'")),
)
Table(
    "conversation_hydration",
    metadata,
    _principal(),
    _id("room_id"),
    _id("thread_id"),
    _int("epoch"),
    _text("state", default=text("'partial'")),
    _text("cursor", nullable=True),
    _big("page", default=ZERO),
    _big("passed", nullable=True),
    _int("attempts", default=ZERO),
    _time("next_attempt_at", nullable=True),
    _text("last_error", nullable=True),
    PrimaryKeyConstraint("principal", "room_id", "thread_id"),
    _one_of("conversation_hydration", "state", "partial", "complete"),
)

# ---- did ------------------------------------------------------------------------------------------------------------
Table(
    "turns",
    metadata,
    _turn_id(),
    _principal(),
    _id("room_id"),
    _id("thread_id"),
    _id("reply_to"),
    _id("requester"),
    _int("epoch"),
    _text("kind"),
    _text("state", default=text("'open'")),
    _text("outcome", nullable=True),
    _text("reason"),
    _int("generation", default=text("1")),
    _big("fence"),
    _int("resumes", default=ZERO),
    _text("config_generation"),
    _text("model"),
    _big("input_tokens", nullable=True),
    _big("output_tokens", nullable=True),
    _time("opened_at", default=NOW),
    _time("first_text_at", nullable=True),
    _time("closed_at", nullable=True),
    PrimaryKeyConstraint("turn_id"),
    _one_of("turns", "kind", "message"),
    _one_of("turns", "state", "open", "closed"),
    _one_of("turns", "outcome", "answered", "failed", "redacted", "departed", "parked"),
    CheckConstraint(
        "(state = 'closed') = (outcome IS NOT NULL) AND (state = 'closed') = (closed_at IS NOT NULL)",
        name="turns_closed",
    ),
    Index("turns_open", "principal", postgresql_where=text("state = 'open'")),
    Index("turns_conversation", "principal", "room_id", "thread_id"),
)
Table(
    "turn_sources",
    metadata,
    _turn_id(),
    _int("ordinal"),
    _principal(references=False),
    _id("event_id"),
    _big("receipt"),
    *_order_key(),
    _text("role", default=text("'source'")),
    PrimaryKeyConstraint("turn_id", "ordinal"),
    _one_of("turn_sources", "role", "source", "parked"),
    Index("turn_sources_event", "principal", "event_id", unique=True, postgresql_where=text("role = 'source'")),
)
Table(
    "turn_steps",
    metadata,
    _turn_id(references=True),
    _int("generation"),
    _int("step"),
    _text("canonical_text"),
    _text("replayable_text"),
    _big("input_tokens"),
    _big("output_tokens"),
    _time("created_at", default=NOW),
    PrimaryKeyConstraint("turn_id", "generation", "step"),
)

# ---- said -----------------------------------------------------------------------------------------------------------
Table(
    "delivery_outbox",
    metadata,
    Column("delivery_id", Uuid, nullable=False),
    _text("stage"),
    _principal(),
    _turn_id(references=True, nullable=True),
    _int("generation"),
    _text("purpose"),
    _id("room_id"),
    _id("thread_id"),
    _int("epoch"),
    _jsonb("content", nullable=True),
    _jsonb("wire", nullable=True),
    Column("notify", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    _id("edit_target", nullable=True),
    _id("txn_id"),
    _id("device_id", nullable=True),
    _text("claim_token", nullable=True),
    _time("not_before", default=NOW),
    _time("queued_at", default=NOW),
    _int("attempts", default=ZERO),
    _time("claimed_at", nullable=True),
    _time("last_attempt_at", nullable=True),
    _time("next_attempt_at", nullable=True),
    _text("last_error", nullable=True),
    _text("state", default=text("'queued'")),
    _id("acked_event_id", nullable=True),
    _time("acked_at", nullable=True),
    PrimaryKeyConstraint("delivery_id", "stage"),
    _one_of("delivery_outbox", "stage", "initial", "final"),
    _one_of("delivery_outbox", "purpose", "answer", "notice", "withdrawal", "adopted"),
    _one_of("delivery_outbox", "state", "queued", "claimed", "acked", "retired", "failed"),
    CheckConstraint("state <> 'acked' OR acked_event_id IS NOT NULL", name="delivery_outbox_acked"),
    CheckConstraint(
        "state <> 'claimed' OR (wire IS NOT NULL AND device_id IS NOT NULL)", name="delivery_outbox_claimed"
    ),
    Index(
        "delivery_outbox_owed",
        *("principal", "room_id", "not_before"),
        postgresql_where=text("state IN ('queued', 'claimed')"),
    ),
    Index("delivery_outbox_turn", "turn_id"),
    Index(
        "delivery_outbox_event",
        *("principal", "acked_event_id"),
        postgresql_where=text("acked_event_id IS NOT NULL"),
    ),
    Index("delivery_outbox_txn", "principal", "txn_id", unique=True),
)
