-- The spine: three ledgers (heard, did, said) and control. No write path exists without lease and fence.

-- ---- clock ---------------------------------------------------------------------------------------------------------
CREATE TABLE clock_control (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT clock_control_one_row CHECK (singleton),
    test_offset interval NOT NULL DEFAULT interval '0'
);
COMMENT ON TABLE clock_control IS 'One row: how far tests have moved mindroom_now(). Zero in production.';
INSERT INTO clock_control DEFAULT VALUES;

CREATE FUNCTION mindroom_now() RETURNS timestamptz LANGUAGE sql STABLE
    AS $$ SELECT statement_timestamp() + (SELECT test_offset FROM clock_control) $$;
COMMENT ON FUNCTION mindroom_now() IS 'The only clock of leases, back-off, retention and expiry.';

-- ---- control -------------------------------------------------------------------------------------------------------
CREATE TABLE instance (
    singleton boolean PRIMARY KEY DEFAULT true CONSTRAINT instance_one_row CHECK (singleton),
    instance_id uuid NOT NULL,
    key_check bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT mindroom_now()
);
COMMENT ON TABLE instance IS 'Identity of this installation; key_check opens only with the instance key.';

CREATE TABLE processes (
    process_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    host text NOT NULL,
    pid integer NOT NULL,
    boot_id text NOT NULL,
    data_folder text NOT NULL,
    version text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT mindroom_now(),
    beat_at timestamptz NOT NULL DEFAULT mindroom_now(),
    stopped_at timestamptz
);
COMMENT ON TABLE processes IS 'Every runtime process that ever served, with its last heartbeat.';

CREATE TABLE principals (
    principal integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL CONSTRAINT principals_name_key UNIQUE,
    kind text NOT NULL CONSTRAINT principals_kind CHECK (kind IN ('agent')),
    user_id text COLLATE "C" NOT NULL CONSTRAINT principals_user_id_key UNIQUE,
    device_id text COLLATE "C",
    password_sealed bytea,
    access_token_sealed bytea,
    unhealthy_reason text,
    created_at timestamptz NOT NULL DEFAULT mindroom_now()
);
COMMENT ON TABLE principals IS 'Hosted Matrix identities. Credentials are sealed with the instance key.';

CREATE TABLE principal_fence (
    principal integer PRIMARY KEY REFERENCES principals,
    fence bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE principal_fence IS 'Grows with each lease take-over; every write transaction locks its row FOR SHARE.';

CREATE TABLE principal_beat (
    principal integer PRIMARY KEY REFERENCES principals,
    owner bigint REFERENCES processes,
    expires_at timestamptz NOT NULL DEFAULT '-infinity',
    resigned boolean NOT NULL DEFAULT true
);
COMMENT ON TABLE principal_beat IS 'The lease: who serves the principal until when.';

-- Hot tables carry no foreign keys: the fence guard of every write transaction proves the principal, and receipts are
-- never deleted. A check per row would cost a tenth of bulk admission.
-- ---- heard ---------------------------------------------------------------------------------------------------------
CREATE TABLE sync_checkpoints (
    principal integer PRIMARY KEY REFERENCES principals,
    token text,
    trust text NOT NULL CONSTRAINT sync_checkpoints_trust CHECK (trust IN ('cold', 'pending', 'certified', 'uncertain')),
    reason text NOT NULL,
    since timestamptz NOT NULL DEFAULT mindroom_now(),
    certified_at timestamptz
);
COMMENT ON TABLE sync_checkpoints IS 'Where each principal''s sync stands; moves only together with the rows it covers (A1).';

CREATE SEQUENCE journal_receipt_number;
CREATE TABLE journal_receipts (
    receipt bigint PRIMARY KEY DEFAULT nextval('journal_receipt_number'),
    principal integer NOT NULL,
    epoch integer NOT NULL,
    origin_ts bigint NOT NULL,
    base bigint NOT NULL,
    page bigint NOT NULL,
    idx integer NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    room_id text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    sender text COLLATE "C" NOT NULL,
    kind text NOT NULL CONSTRAINT journal_receipts_kind CHECK (kind IN ('message', 'edit', 'media', 'reaction',
        'room_lifecycle', 'redaction', 'encrypted', 'unreadable')),
    class text NOT NULL CONSTRAINT journal_receipts_class CHECK (class IN ('live', 'recovered', 'history')),
    CONSTRAINT journal_receipts_event_key UNIQUE (principal, event_id)
);
ALTER SEQUENCE journal_receipt_number OWNED BY journal_receipts.receipt;
COMMENT ON TABLE journal_receipts IS 'Insert-only identity of every event a principal was shown: the dedupe proof (A2).';

CREATE TABLE journal_pending (
    receipt bigint PRIMARY KEY,
    principal integer NOT NULL,
    epoch integer NOT NULL,
    origin_ts bigint NOT NULL,
    base bigint NOT NULL,
    page bigint NOT NULL,
    idx integer NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    room_id text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    sender text COLLATE "C" NOT NULL,
    kind text NOT NULL CONSTRAINT journal_pending_kind CHECK (kind IN ('message', 'media')),
    class text NOT NULL CONSTRAINT journal_pending_class CHECK (class IN ('live', 'recovered')),
    source jsonb NOT NULL,
    admitted_at timestamptz NOT NULL DEFAULT mindroom_now(),
    failures integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    last_error text,
    parked_at timestamptz,
    parked_by text,
    parked_as text CONSTRAINT journal_pending_parked_as CHECK (parked_as IN ('unknown', 'permanent', 'corrupt')),
    CONSTRAINT journal_pending_parked CHECK (parked_at IS NULL OR (parked_by IS NOT NULL AND parked_as IS NOT NULL))
);
CREATE UNIQUE INDEX journal_pending_event ON journal_pending (principal, event_id);
CREATE INDEX journal_pending_order ON journal_pending (principal, base, page, idx, receipt);
COMMENT ON TABLE journal_pending IS 'Work owed: small and hot, a row leaves at settlement.';

CREATE TABLE journal_settlements (
    receipt bigint PRIMARY KEY,
    outcome text NOT NULL,
    turn_id uuid,
    settled_at timestamptz NOT NULL DEFAULT mindroom_now()
);
COMMENT ON TABLE journal_settlements IS 'Insert-only: how each source ended.';

CREATE TABLE answered_marks (
    principal integer NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (principal, event_id)
);
COMMENT ON TABLE answered_marks IS 'Sources that a FINAL of ours names; consulted before anything becomes pending (A6).';

CREATE TABLE visible_messages (
    principal integer NOT NULL,
    room_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    sender text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,
    origin_ts bigint NOT NULL,
    base bigint NOT NULL,
    page bigint NOT NULL,
    idx integer NOT NULL,
    content jsonb,
    relates_to jsonb,
    revision_ts bigint NOT NULL,
    revision_id text COLLATE "C" NOT NULL,
    turn_id uuid,
    PRIMARY KEY (principal, room_id, event_id)
);
CREATE INDEX visible_messages_conversation ON visible_messages (principal, room_id, thread_id, base, page, idx);
CREATE INDEX visible_messages_revision ON visible_messages (principal, room_id, revision_id) WHERE revision_id <> event_id;
CREATE INDEX visible_messages_withheld ON visible_messages (principal) WHERE content IS NULL AND revision_id <> event_id;
COMMENT ON TABLE visible_messages IS 'Projection: the latest visible revision of each message. content NULL: an answer of ours that has no final text yet, or, when the revision is an edit, one that was redacted: the text before it is owed.';

CREATE TABLE unresolved_edits (
    principal integer NOT NULL,
    room_id text COLLATE "C" NOT NULL,
    target_id text COLLATE "C" NOT NULL,
    sender text COLLATE "C" NOT NULL,
    content jsonb,
    revision_ts bigint NOT NULL,
    revision_id text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,
    PRIMARY KEY (principal, room_id, target_id, sender)
);
COMMENT ON TABLE unresolved_edits IS 'The newest edit per sender of an original that has not been seen yet; content NULL once it was redacted.';

CREATE TABLE redaction_tombstones (
    principal integer NOT NULL,
    room_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    redacted_at timestamptz NOT NULL DEFAULT mindroom_now(),
    PRIMARY KEY (principal, room_id, event_id)
);
COMMENT ON TABLE redaction_tombstones IS 'Events whose text must never be installed again (A4).';

CREATE TABLE room_membership (
    principal integer NOT NULL REFERENCES principals,
    room_id text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,
    membership text NOT NULL CONSTRAINT room_membership_membership CHECK (membership IN ('join', 'invite', 'leave', 'ban')),
    inviter text COLLATE "C",
    is_direct boolean NOT NULL DEFAULT false,
    invite_attempts integer NOT NULL DEFAULT 0,
    invite_next_attempt_at timestamptz,
    invite_last_error text,
    joined_count integer,
    invited_count integer,
    joined_by text COLLATE "C",
    PRIMARY KEY (principal, room_id)
);
CREATE INDEX room_membership_invites ON room_membership (principal) WHERE membership = 'invite';
COMMENT ON TABLE room_membership IS 'Our own membership per room with its generation (epoch); invites wait here for the join worker (A9).';

CREATE TABLE room_state (
    principal integer NOT NULL REFERENCES principals,
    room_id text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    state_key text COLLATE "C" NOT NULL,
    sender text COLLATE "C" NOT NULL,
    content jsonb NOT NULL,
    PRIMARY KEY (principal, room_id, type, state_key)
);
COMMENT ON TABLE room_state IS 'What a crash must not forget about a room: power levels, encryption, names, members (A13).';

CREATE TABLE room_history_recovery (
    principal integer NOT NULL REFERENCES principals,
    room_id text COLLATE "C" NOT NULL,
    to_token text COLLATE "C" NOT NULL,
    from_token text NOT NULL,
    walk integer NOT NULL DEFAULT 1 CONSTRAINT room_history_recovery_walk CHECK (walk IN (1, 2)),
    cursor text,
    page bigint NOT NULL DEFAULT 0,
    events integer NOT NULL DEFAULT 0,
    anchor_base bigint,
    anchor_page bigint,
    anchor_idx integer,
    floor bigint NOT NULL,
    epoch integer NOT NULL,
    late_before_ms bigint,
    state text NOT NULL DEFAULT 'repairable'
        CONSTRAINT room_history_recovery_state CHECK (state IN ('repairable', 'repaired', 'truncated')),
    attempts integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    refusals integer NOT NULL DEFAULT 0,
    refused_at timestamptz,
    last_error text,
    opened_at timestamptz NOT NULL DEFAULT mindroom_now(),
    closed_at timestamptz,
    PRIMARY KEY (principal, room_id, to_token)
);
CREATE INDEX room_history_recovery_open ON room_history_recovery (principal) WHERE state = 'repairable';
COMMENT ON TABLE room_history_recovery IS 'Gaps: intervals that a limited sync skipped, and how far each is walked (B2).';

CREATE TABLE conversation_hydration (
    principal integer NOT NULL REFERENCES principals,
    room_id text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,
    state text NOT NULL DEFAULT 'partial'
        CONSTRAINT conversation_hydration_state CHECK (state IN ('partial', 'complete')),
    cursor text,
    page bigint NOT NULL DEFAULT 0,
    passed bigint,
    attempts integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    last_error text,
    PRIMARY KEY (principal, room_id, thread_id)
);
COMMENT ON TABLE conversation_hydration IS 'How far the history of a conversation was read for prompts, and under which epoch (A12).';

-- ---- did -----------------------------------------------------------------------------------------------------------
CREATE TABLE turns (
    turn_id uuid PRIMARY KEY,
    principal integer NOT NULL REFERENCES principals,
    room_id text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    reply_to text COLLATE "C" NOT NULL,
    requester text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,
    kind text NOT NULL CONSTRAINT turns_kind CHECK (kind IN ('message')),
    state text NOT NULL DEFAULT 'open' CONSTRAINT turns_state CHECK (state IN ('open', 'closed')),
    outcome text CONSTRAINT turns_outcome CHECK (outcome IN ('answered', 'failed', 'redacted', 'departed',
        'parked')),
    reason text NOT NULL,
    generation integer NOT NULL DEFAULT 1,
    fence bigint NOT NULL,
    resumes integer NOT NULL DEFAULT 0,
    config_generation text NOT NULL,
    model text NOT NULL,
    input_tokens bigint,
    output_tokens bigint,
    opened_at timestamptz NOT NULL DEFAULT mindroom_now(),
    first_text_at timestamptz,
    closed_at timestamptz,
    CONSTRAINT turns_closed CHECK ((state = 'closed') = (outcome IS NOT NULL) AND (state = 'closed') = (closed_at IS NOT NULL))
);
CREATE INDEX turns_open ON turns (principal) WHERE state = 'open';
CREATE INDEX turns_conversation ON turns (principal, room_id, thread_id);
COMMENT ON TABLE turns IS 'One piece of work for a requester. Delivered state lives in the outbox alone.';

CREATE TABLE turn_sources (
    turn_id uuid NOT NULL,
    ordinal integer NOT NULL,
    principal integer NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    receipt bigint NOT NULL,
    base bigint NOT NULL,
    page bigint NOT NULL,
    idx integer NOT NULL,
    role text NOT NULL DEFAULT 'source' CONSTRAINT turn_sources_role CHECK (role IN ('source', 'parked')),
    PRIMARY KEY (turn_id, ordinal)
);
CREATE UNIQUE INDEX turn_sources_event ON turn_sources (principal, event_id) WHERE role = 'source';
COMMENT ON TABLE turn_sources IS 'Which events a turn answers, in order; the last is its anchor. Grouping survives a crash (D2).';

CREATE TABLE turn_steps (
    turn_id uuid NOT NULL REFERENCES turns,
    generation integer NOT NULL,
    step integer NOT NULL,
    canonical_text text NOT NULL,
    replayable_text text NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT mindroom_now(),
    PRIMARY KEY (turn_id, generation, step)
);
COMMENT ON TABLE turn_steps IS 'Append-only facts: each completed model step (D4).';

-- ---- said ----------------------------------------------------------------------------------------------------------
CREATE TABLE delivery_outbox (
    delivery_id uuid NOT NULL,
    stage text NOT NULL CONSTRAINT delivery_outbox_stage CHECK (stage IN ('initial', 'final')),
    principal integer NOT NULL REFERENCES principals,
    turn_id uuid REFERENCES turns,
    generation integer NOT NULL,
    purpose text NOT NULL CONSTRAINT delivery_outbox_purpose CHECK (purpose IN ('answer', 'notice', 'withdrawal', 'adopted')),
    room_id text COLLATE "C" NOT NULL,
    thread_id text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,
    content jsonb,
    wire jsonb,
    notify text[] NOT NULL DEFAULT '{}',
    edit_target text COLLATE "C",
    txn_id text COLLATE "C" NOT NULL,
    device_id text COLLATE "C",
    claim_token text,
    not_before timestamptz NOT NULL DEFAULT mindroom_now(),
    queued_at timestamptz NOT NULL DEFAULT mindroom_now(),
    attempts integer NOT NULL DEFAULT 0,
    claimed_at timestamptz,
    last_attempt_at timestamptz,
    next_attempt_at timestamptz,
    last_error text,
    state text NOT NULL DEFAULT 'queued'
        CONSTRAINT delivery_outbox_state CHECK (state IN ('queued', 'claimed', 'acked', 'retired', 'failed')),
    acked_event_id text COLLATE "C",
    acked_at timestamptz,
    PRIMARY KEY (delivery_id, stage),
    CONSTRAINT delivery_outbox_acked CHECK (state <> 'acked' OR acked_event_id IS NOT NULL),
    CONSTRAINT delivery_outbox_claimed CHECK (state <> 'claimed' OR (wire IS NOT NULL AND device_id IS NOT NULL))
);
CREATE INDEX delivery_outbox_owed ON delivery_outbox (principal, room_id, not_before) WHERE state IN ('queued', 'claimed');
CREATE INDEX delivery_outbox_turn ON delivery_outbox (turn_id);
CREATE INDEX delivery_outbox_event ON delivery_outbox (principal, acked_event_id) WHERE acked_event_id IS NOT NULL;
CREATE UNIQUE INDEX delivery_outbox_txn ON delivery_outbox (principal, txn_id);
COMMENT ON TABLE delivery_outbox IS 'Everything visible that we say: one row per delivery and stage (E1, E9).';

-- ---- operator views ------------------------------------------------------------------------------------------------
CREATE VIEW journal_events AS
SELECT r.receipt, r.principal, p.name AS principal_name, r.event_id, r.room_id, r.thread_id, r.sender, r.kind, r.class, r.epoch,
       r.origin_ts, r.base, r.page, r.idx,
       CASE WHEN q.receipt IS NULL THEN 'settled' WHEN q.parked_at IS NOT NULL THEN 'parked' ELSE 'pending' END AS state,
       s.outcome, s.turn_id, s.settled_at,
       coalesce(q.attempts, 0) AS attempts, q.next_attempt_at, q.last_error, mindroom_now() - q.admitted_at AS age
FROM journal_receipts r
JOIN principals p USING (principal)
LEFT JOIN journal_pending q ON q.receipt = r.receipt
LEFT JOIN journal_settlements s ON s.receipt = r.receipt;
COMMENT ON VIEW journal_events IS 'Every event heard and what became of it; settled with outcome NULL means context only.';
