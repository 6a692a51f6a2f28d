-- name: instance
-- Which installation this database is, for whoever compares it with a data folder.
SELECT instance_id, created_at FROM instance

-- name: principals
-- One row per hosted identity: who serves it, how far its sync is trusted, what is owed.
SELECT p.name AS principal, p.user_id,
       b.owner AS process, proc.host, proc.pid,
       coalesce(b.owner IS NOT NULL AND b.expires_at >= mindroom_now(), false) AS served,
       nullif(b.expires_at, '-infinity') AS lease_expires_at,
       extract(epoch FROM mindroom_now() - proc.beat_at)::float8 AS beat_seconds, f.fence,
       coalesce(c.trust, 'cold') AS trust, c.reason AS trust_reason, c.since AS trust_since,
       (SELECT count(*) FROM room_history_recovery g WHERE g.principal = p.principal AND g.state = 'repairable') AS open_gaps,
       (SELECT count(*) FROM room_history_recovery g WHERE g.principal = p.principal AND g.state = 'truncated') AS truncated_gaps,
       q.pending, extract(epoch FROM mindroom_now() - q.oldest)::float8 AS oldest_seconds,
       (SELECT count(*) FROM delivery_outbox o WHERE o.principal = p.principal AND o.state IN ('queued', 'claimed')) AS outbox_owed,
       p.unhealthy_reason
FROM principals p
LEFT JOIN principal_fence f USING (principal)
LEFT JOIN principal_beat b USING (principal)
LEFT JOIN processes proc ON proc.process_id = b.owner
LEFT JOIN sync_checkpoints c USING (principal)
CROSS JOIN LATERAL (
    SELECT count(*) AS pending, min(j.admitted_at) AS oldest FROM journal_pending j WHERE j.principal = p.principal
) q
ORDER BY p.name

-- name: journal
-- The newest events heard, of every state; never a message body.
SELECT receipt, principal_name AS principal, event_id, room_id, thread_id, sender, kind, class, state, outcome, turn_id,
       settled_at, attempts, next_attempt_at, last_error, extract(epoch FROM age)::float8 AS age_seconds
FROM journal_events WHERE $1::text IS NULL OR principal_name = $1 ORDER BY receipt DESC LIMIT $2

-- name: journal_pending
-- The newest of the few events still owed an outcome, found without walking all that were ever heard.
SELECT receipt, principal_name AS principal, event_id, room_id, thread_id, sender, kind, class, state, outcome, turn_id,
       settled_at, attempts, next_attempt_at, last_error, extract(epoch FROM age)::float8 AS age_seconds
FROM journal_events WHERE receipt IN (SELECT receipt FROM journal_pending WHERE parked_at IS NULL) AND ($1::text IS NULL OR principal_name = $1)
ORDER BY receipt DESC LIMIT $2

-- name: journal_parked
-- The newest of those that rest until somebody has them tried again.
SELECT receipt, principal_name AS principal, event_id, room_id, thread_id, sender, kind, class, state, outcome, turn_id,
       settled_at, attempts, next_attempt_at, last_error, extract(epoch FROM age)::float8 AS age_seconds
FROM journal_events WHERE receipt IN (SELECT receipt FROM journal_pending WHERE parked_at IS NOT NULL)
  AND ($1::text IS NULL OR principal_name = $1)
ORDER BY receipt DESC LIMIT $2

-- name: journal_settled
-- The newest events whose outcome is known; NULL is context only.
SELECT receipt, principal_name AS principal, event_id, room_id, thread_id, sender, kind, class, state, outcome, turn_id,
       settled_at, attempts, next_attempt_at, last_error, extract(epoch FROM age)::float8 AS age_seconds
FROM journal_events WHERE state = 'settled' AND ($1::text IS NULL OR principal_name = $1) ORDER BY receipt DESC LIMIT $2

-- name: outbox
-- The newest thousand deliveries in a state, or those owed and failed; never their content.
SELECT o.delivery_id, o.stage, p.name AS principal, o.purpose, o.state, o.room_id, o.thread_id, o.turn_id, o.txn_id,
       o.queued_at, o.claimed_at, o.last_attempt_at, o.next_attempt_at, o.attempts, o.last_error, o.acked_event_id
FROM delivery_outbox o JOIN principals p USING (principal)
WHERE (o.state = $1 OR ($1::text IS NULL AND o.state IN ('queued', 'claimed', 'failed')))
  AND ($2::text IS NULL OR p.name = $2)
ORDER BY o.queued_at DESC, o.delivery_id, o.stage LIMIT 1000
