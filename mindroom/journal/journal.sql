-- name: hear
-- A batch in one statement: receipts, pending rows, settlements, originals nobody has referred to, the checkpoint (A1, A2, A8).
WITH input AS (
    SELECT nextval('journal_receipt_number') AS receipt, i.*
    FROM (SELECT * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
                               $9::int[], $10::bigint[], $11::bigint[], $12::int[], $13::jsonb[], $14::text[],
                               $15::bool[], $16::jsonb[], $17::jsonb[], $18::uuid[])
          WITH ORDINALITY AS t(event_id, room_id, thread_id, kind, class, sender, origin_ts,
                               epoch, base, page, idx, source, outcome,
                               is_plain, content, relates_to, turn_id, position)
          ORDER BY position) i
), judged AS (
    SELECT i.*, coalesce(i.base, i.receipt) AS order_base,
           i.is_plain AND t.event_id IS NULL AND w.target_id IS NULL AS is_shown,
           CASE WHEN i.source IS NULL THEN i.outcome
                WHEN m.event_id IS NOT NULL THEN 'answered'
                WHEN t.event_id IS NOT NULL THEN 'redacted' END AS settled_as
    FROM input i
    LEFT JOIN LATERAL (SELECT event_id FROM answered_marks
                       WHERE i.source IS NOT NULL AND principal = $1 AND event_id = i.event_id OFFSET 0) m ON true
    LEFT JOIN LATERAL (SELECT event_id FROM redaction_tombstones
                       WHERE principal = $1 AND room_id = i.room_id AND event_id = i.event_id OFFSET 0) t ON true
    LEFT JOIN LATERAL (SELECT target_id FROM unresolved_edits
                       WHERE i.is_plain AND principal = $1 AND room_id = i.room_id AND target_id = i.event_id
                       LIMIT 1) w ON true
    LEFT JOIN LATERAL (SELECT receipt FROM journal_receipts
                       WHERE principal = $1 AND event_id = i.event_id OFFSET 0) known ON true
    WHERE known.receipt IS NULL
), fresh AS (
    INSERT INTO journal_receipts (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id,
                                  sender, kind, class)
    SELECT receipt, $1, epoch, origin_ts, order_base, page, idx, event_id, room_id, thread_id, sender, kind, class
    FROM judged
), owed AS (
    INSERT INTO journal_pending (receipt, principal, epoch, origin_ts, base, page, idx, event_id, room_id, thread_id,
                                 sender, kind, class, source)
    SELECT receipt, $1, epoch, origin_ts, order_base, page, idx, event_id, room_id, thread_id, sender, kind, class, source
    FROM judged WHERE source IS NOT NULL AND settled_as IS NULL
), settled AS (
    INSERT INTO journal_settlements (receipt, outcome) SELECT receipt, settled_as FROM judged WHERE settled_as IS NOT NULL
), shown AS (
    INSERT INTO visible_messages (principal, room_id, event_id, thread_id, sender, epoch, origin_ts, base, page, idx,
                                  content, relates_to, revision_ts, revision_id, turn_id)
    SELECT $1, room_id, event_id, thread_id, sender, epoch, origin_ts, order_base, page, idx,
           coalesce(content, source -> 'content'), relates_to, origin_ts, event_id, turn_id
    FROM judged WHERE is_shown
    ON CONFLICT (principal, room_id, event_id)
    DO UPDATE SET base = EXCLUDED.base, page = EXCLUDED.page, idx = EXCLUDED.idx
), moved AS (
    INSERT INTO sync_checkpoints (principal, token, trust, reason, certified_at)
    SELECT $1, $19, $20, $21, CASE WHEN $20 = 'certified' THEN mindroom_now() END WHERE $20::text IS NOT NULL
    ON CONFLICT (principal) DO UPDATE SET token = EXCLUDED.token, trust = EXCLUDED.trust, reason = EXCLUDED.reason,
        since = CASE WHEN sync_checkpoints.trust = EXCLUDED.trust THEN sync_checkpoints.since ELSE mindroom_now() END,
        certified_at = coalesce(EXCLUDED.certified_at, sync_checkpoints.certified_at)
    RETURNING (extract(epoch FROM certified_at) * 1000)::bigint AS certified_ms
)
SELECT receipt, event_id, order_base AS base, page, idx, source IS NOT NULL AND settled_as IS NULL AS is_pending, is_shown,
       NULL::bigint AS certified_ms
FROM judged
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, certified_ms FROM moved

-- name: read_projection
-- What is stored about the events that a batch touches; OFFSET 0 keeps each look-up a look-up whatever statistics say.
WITH touched AS (SELECT * FROM unnest($2::text[], $3::text[]) AS t(room_id, event_id)),
     redacted AS (SELECT * FROM unnest($4::text[], $5::text[]) AS r(room_id, event_id))
SELECT 'shown' AS what, v.room_id, v.event_id, v.thread_id, v.sender, v.epoch, v.origin_ts, v.content, v.relates_to,
       v.revision_ts, v.revision_id, v.turn_id
FROM touched t CROSS JOIN LATERAL (
    SELECT * FROM visible_messages WHERE principal = $1 AND room_id = t.room_id AND event_id = t.event_id OFFSET 0) v
UNION ALL
SELECT 'shown', v.room_id, v.event_id, v.thread_id, v.sender, v.epoch, v.origin_ts, v.content, v.relates_to,
       v.revision_ts, v.revision_id, v.turn_id
FROM redacted r CROSS JOIN LATERAL (
    SELECT * FROM visible_messages WHERE principal = $1 AND room_id = r.room_id AND revision_id = r.event_id
                                     AND revision_id <> event_id OFFSET 0) v
UNION ALL
SELECT 'waiting', u.room_id, u.target_id, '', u.sender, u.epoch, 0, u.content, NULL, u.revision_ts, u.revision_id, NULL
FROM touched t CROSS JOIN LATERAL (
    SELECT * FROM unresolved_edits WHERE principal = $1 AND room_id = t.room_id AND target_id = t.event_id OFFSET 0) u
UNION ALL
SELECT 'waiting', u.room_id, u.target_id, '', u.sender, u.epoch, 0, u.content, NULL, u.revision_ts, u.revision_id, NULL
FROM redacted r CROSS JOIN LATERAL (
    SELECT * FROM unresolved_edits WHERE principal = $1 AND room_id = r.room_id AND revision_id = r.event_id OFFSET 0) u
UNION ALL
SELECT 'tombstone', d.room_id, d.event_id, '', '', 0, 0, NULL, NULL, 0, '', NULL
FROM touched t CROSS JOIN LATERAL (
    SELECT * FROM redaction_tombstones WHERE principal = $1 AND room_id = t.room_id AND event_id = t.event_id OFFSET 0) d

-- name: write_shown
-- Installs the latest visible revisions.
INSERT INTO visible_messages (principal, room_id, event_id, thread_id, sender, epoch, origin_ts, base, page, idx, content,
                              relates_to, revision_ts, revision_id, turn_id)
SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::int[], $7::bigint[], $8::bigint[],
                         $9::bigint[], $10::int[], $11::jsonb[], $12::jsonb[], $13::bigint[], $14::text[], $15::uuid[])
ON CONFLICT (principal, room_id, event_id)
DO UPDATE SET content = EXCLUDED.content, revision_ts = EXCLUDED.revision_ts, revision_id = EXCLUDED.revision_id

-- name: place_shown
-- Messages that history brought before their receipt take the receipt's place (A12).
UPDATE visible_messages v SET base = k.base, page = k.page, idx = k.idx
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::int[]) AS k(room_id, event_id, base, page, idx)
WHERE v.principal = $1 AND v.room_id = k.room_id AND v.event_id = k.event_id

-- name: withdraw_shown
-- Removes redacted messages from the projection.
DELETE FROM visible_messages WHERE principal = $1 AND room_id = ANY($2::text[]) AND event_id = ANY($3::text[])

-- name: write_waiting_edits
-- Keeps the newest edit per sender of an original that has not come yet.
INSERT INTO unresolved_edits (principal, room_id, target_id, sender, content, revision_ts, revision_id, epoch)
SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::jsonb[], $6::bigint[], $7::text[], $8::int[])
ON CONFLICT (principal, room_id, target_id, sender)
DO UPDATE SET content = EXCLUDED.content, revision_ts = EXCLUDED.revision_ts, revision_id = EXCLUDED.revision_id,
              epoch = EXCLUDED.epoch

-- name: drop_waiting_edits
-- Edits that found their original, or whose text must not stay.
DELETE FROM unresolved_edits u USING unnest($2::text[], $3::text[], $4::text[]) AS t(room_id, target_id, sender)
WHERE u.principal = $1 AND u.room_id = t.room_id AND u.target_id = t.target_id AND u.sender = t.sender

-- name: bury
-- Tombstones of redacted events (A4).
INSERT INTO redaction_tombstones (principal, room_id, event_id)
SELECT $1, * FROM unnest($2::text[], $3::text[]) ON CONFLICT DO NOTHING

-- name: said_by
-- What is stored of people in a room, up to a base when their ban was found in a gap; what is ours is in the outbox (A4).
WITH people AS (SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[]) AS p(room_id, sender, until))
SELECT v.room_id, v.event_id FROM people p
JOIN visible_messages v ON v.principal = $1 AND v.room_id = p.room_id AND v.sender = p.sender
WHERE p.until IS NULL OR v.base <= p.until
UNION
SELECT u.room_id, u.revision_id FROM people p
JOIN unresolved_edits u ON u.principal = $1 AND u.room_id = p.room_id AND u.sender = p.sender WHERE p.until IS NULL
UNION
SELECT o.room_id, o.acked_event_id FROM people p
JOIN principals me ON me.principal = $1 AND me.user_id = p.sender
JOIN delivery_outbox o ON o.principal = $1 AND o.room_id = p.room_id
WHERE p.until IS NULL AND o.acked_event_id IS NOT NULL

-- name: withheld
-- Messages whose visible edit was redacted: what they said before is owed (A4).
SELECT room_id, event_id FROM visible_messages
WHERE principal = $1 AND content IS NULL AND revision_id <> event_id ORDER BY room_id, event_id LIMIT $2

-- name: mark_answered
-- Sources that our own FINALs name are answered for ever, pending or not (A6); returns what was owed.
WITH named AS (
    SELECT * FROM unnest($2::text[], $3::uuid[]) AS t(event_id, turn_id)
), marks AS (
    INSERT INTO answered_marks (principal, event_id) SELECT $1, event_id FROM named ON CONFLICT DO NOTHING
), gone AS (
    DELETE FROM journal_pending WHERE principal = $1 AND event_id = ANY($2::text[]) RETURNING receipt, event_id
), settled AS (
    INSERT INTO journal_settlements (receipt, outcome, turn_id)
    SELECT g.receipt, 'answered', n.turn_id FROM gone g JOIN named n USING (event_id)
    ON CONFLICT DO NOTHING
)
SELECT event_id FROM gone

-- name: settle_events
-- Takes sources off the pending list by event id, and room where one is given; returns what was owed.
WITH gone AS (
    DELETE FROM journal_pending q WHERE q.principal = $1 AND q.event_id = ANY($2::text[])
      AND ($5::text[] IS NULL OR (q.room_id, q.event_id) IN (SELECT * FROM unnest($5::text[], $2::text[])))
    RETURNING q.receipt, q.event_id
), settled AS (
    INSERT INTO journal_settlements (receipt, outcome, turn_id) SELECT receipt, $3, $4 FROM gone ON CONFLICT DO NOTHING
)
SELECT receipt, event_id FROM gone

-- name: settle_ignored
-- Many verdicts of silence in one commit.
WITH gone AS (
    DELETE FROM journal_pending WHERE principal = $1 AND receipt = ANY($2::bigint[]) RETURNING receipt
)
INSERT INTO journal_settlements (receipt, outcome)
SELECT g.receipt, v.outcome
FROM gone g JOIN unnest($2::bigint[], $3::text[]) AS v(receipt, outcome) USING (receipt)
ON CONFLICT DO NOTHING

-- name: settle_departed
-- What was owed in rooms we have left (F2); returns the event ids.
WITH left_rooms AS (
    SELECT * FROM unnest($2::text[], $3::int[]) AS t(room_id, epoch)
), gone AS (
    DELETE FROM journal_pending q USING left_rooms l
    WHERE q.principal = $1 AND q.room_id = l.room_id AND q.epoch <= l.epoch RETURNING q.receipt, q.event_id
), settled AS (
    INSERT INTO journal_settlements (receipt, outcome) SELECT receipt, 'departed' FROM gone ON CONFLICT DO NOTHING
)
SELECT receipt, event_id FROM gone

-- name: forget_rooms
-- The projection, hydration, gaps and state of rooms we have left (F2).
WITH left_rooms AS (
    SELECT * FROM unnest($2::text[]) AS t(room_id)
), messages AS (
    DELETE FROM visible_messages v USING left_rooms l WHERE v.principal = $1 AND v.room_id = l.room_id
), edits AS (
    DELETE FROM unresolved_edits u USING left_rooms l WHERE u.principal = $1 AND u.room_id = l.room_id
), gaps AS (
    DELETE FROM room_history_recovery g USING left_rooms l WHERE g.principal = $1 AND g.room_id = l.room_id
), hydration AS (
    DELETE FROM conversation_hydration h USING left_rooms l WHERE h.principal = $1 AND h.room_id = l.room_id
)
DELETE FROM room_state s USING left_rooms l WHERE s.principal = $1 AND s.room_id = l.room_id

-- name: lock_pending
-- open_turn and hand_off hold their sources; a missing one refuses the transition (D3).
SELECT event_id FROM journal_pending WHERE principal = $1 AND event_id = ANY($2::text[]) AND parked_at IS NULL
ORDER BY event_id FOR UPDATE

-- name: record_failure
-- Back-off of a source lives on its row; a dependency error does not count as an attempt (C2).
UPDATE journal_pending SET failures = failures + 1, attempts = attempts + $3, last_error = $4,
       next_attempt_at = mindroom_now() + make_interval(secs => $5)
WHERE principal = $1 AND event_id = ANY($2::text[])

-- name: park
-- These rest until somebody, or a newer version, has them tried again (C2).
UPDATE journal_pending SET parked_at = mindroom_now(), parked_by = $3, parked_as = $4, last_error = $5,
       failures = failures + 1, attempts = attempts + 1, next_attempt_at = NULL
WHERE principal = $1 AND event_id = ANY($2::text[]) AND parked_at IS NULL RETURNING event_id

-- name: parked_by
-- Which versions parked what an unknown error stopped.
SELECT DISTINCT parked_by FROM journal_pending
WHERE principal = $1 AND parked_at IS NOT NULL AND parked_as = 'unknown'

-- name: retry_parked
-- A newer version tries once more what an unknown error stopped (C2).
UPDATE journal_pending SET parked_at = NULL, attempts = $3
WHERE principal = $1 AND parked_at IS NOT NULL AND parked_as = 'unknown' AND parked_by = ANY($2::text[])

-- name: pending_page
-- The feeder's page in order of work, from a key on; the planner must see the 500, or it sorts all that is owed each time.
SELECT q.receipt, q.base, q.page, q.idx, q.event_id, q.room_id, q.thread_id, q.sender, q.kind, q.class, q.epoch,
       q.origin_ts, q.source, q.failures, q.attempts, q.parked_by IS NOT NULL AS was_parked, t.turn_id AS open_turn
FROM (SELECT * FROM journal_pending
      WHERE principal = $1 AND parked_at IS NULL
        AND (base, page, idx, receipt) > ($2::bigint, $3::bigint, $4::int, $5::bigint)
        AND (next_attempt_at IS NULL OR next_attempt_at <= mindroom_now())
        AND room_id <> ALL($6::text[])
      ORDER BY base, page, idx, receipt LIMIT 500) q
LEFT JOIN turn_sources t ON t.principal = q.principal AND t.event_id = q.event_id AND t.role = 'source'
ORDER BY q.base, q.page, q.idx, q.receipt LIMIT $7

-- name: pending_summary
-- How much is owed and how old it is.
SELECT count(*) FILTER (WHERE parked_at IS NULL) AS pending, count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked,
       coalesce(extract(epoch FROM mindroom_now() - min(admitted_at) FILTER (WHERE parked_at IS NULL)), 0)::float8
           AS oldest_seconds,
       extract(epoch FROM min(next_attempt_at) FILTER (WHERE next_attempt_at > mindroom_now()) - mindroom_now())::float8
           AS next_attempt_seconds
FROM journal_pending WHERE principal = $1

-- name: write_memberships
-- Our standing in rooms; a new invite starts with a clean slate of attempts.
INSERT INTO room_membership (principal, room_id, epoch, membership, inviter, is_direct, joined_count, invited_count,
                             joined_by)
SELECT $1, * FROM unnest($2::text[], $3::int[], $4::text[], $5::text[], $6::bool[], $7::int[], $8::int[], $9::text[])
ON CONFLICT (principal, room_id) DO UPDATE SET
    epoch = EXCLUDED.epoch, membership = EXCLUDED.membership, inviter = EXCLUDED.inviter, is_direct = EXCLUDED.is_direct,
    joined_count = EXCLUDED.joined_count, invited_count = EXCLUDED.invited_count, joined_by = EXCLUDED.joined_by,
    invite_attempts = 0, invite_next_attempt_at = NULL, invite_last_error = NULL

-- name: write_state
-- Current state of rooms (A13).
INSERT INTO room_state (principal, room_id, type, state_key, sender, content)
SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[])
ON CONFLICT (principal, room_id, type, state_key) DO UPDATE SET sender = EXCLUDED.sender, content = EXCLUDED.content

-- name: load_memberships
-- For the book of rooms at lease take.
SELECT room_id, epoch, membership, inviter, is_direct, joined_count, invited_count, joined_by
FROM room_membership WHERE principal = $1

-- name: load_state
-- For the book of rooms at lease take.
SELECT room_id, type, state_key, sender, content FROM room_state WHERE principal = $1

-- name: open_invites
-- Invitations that wait for a decision, and when that may be tried.
SELECT room_id, inviter, invite_attempts,
       coalesce(greatest(extract(epoch FROM invite_next_attempt_at - mindroom_now()), 0), 0)::float8 AS due_in_seconds
FROM room_membership WHERE principal = $1 AND membership = 'invite'

-- name: room_owes
-- Whether a room is owed an answer, or may be once its gap is walked.
SELECT EXISTS (SELECT 1 FROM journal_pending WHERE principal = $1 AND room_id = $2)
    OR EXISTS (SELECT 1 FROM room_history_recovery WHERE principal = $1 AND room_id = $2 AND state = 'repairable') AS owes

-- name: invite_failed
-- A join that did not work is tried again later (A9).
UPDATE room_membership SET invite_attempts = invite_attempts + 1, invite_last_error = $3,
       invite_next_attempt_at = mindroom_now() + make_interval(secs => $4)
WHERE principal = $1 AND room_id = $2 AND membership = 'invite'

-- name: invite_over
-- An invite we declined or that is gone for good; only a new invite revives the room.
UPDATE room_membership SET membership = 'leave', invite_last_error = $3
WHERE principal = $1 AND room_id = $2 AND membership = 'invite'

-- name: load_checkpoint
-- Where the sync of this principal stands.
SELECT token, (extract(epoch FROM certified_at) * 1000)::bigint AS certified_ms FROM sync_checkpoints WHERE principal = $1

-- name: move_checkpoint
-- The token moves in the commit of the rows it covers (A1).
INSERT INTO sync_checkpoints (principal, token, trust, reason, certified_at)
VALUES ($1, $2, $3, $4, CASE WHEN $3 = 'certified' THEN mindroom_now() END)
ON CONFLICT (principal) DO UPDATE SET token = EXCLUDED.token, trust = EXCLUDED.trust, reason = EXCLUDED.reason,
    since = CASE WHEN sync_checkpoints.trust = EXCLUDED.trust THEN sync_checkpoints.since ELSE mindroom_now() END,
    certified_at = coalesce(EXCLUDED.certified_at, sync_checkpoints.certified_at)
RETURNING (extract(epoch FROM certified_at) * 1000)::bigint AS certified_ms

-- name: open_gaps
-- Gaps that this response revealed, with the newest receipt before it as floor (B2); what was complete no longer is.
-- One without a token has no first walk, and is walked anew (B4).
WITH withdrawn AS (
    DELETE FROM conversation_hydration WHERE principal = $1 AND room_id = ANY($2::text[])
)
INSERT INTO room_history_recovery (principal, room_id, to_token, from_token, floor, epoch, late_before_ms, walk)
SELECT $1, g.room_id, g.to_token, g.from_token, $6, g.epoch, g.late_before_ms, CASE WHEN g.to_token = '' THEN 2 ELSE 1 END
FROM unnest($2::text[], $3::text[], $4::text[], $5::int[], $7::bigint[])
    AS g(room_id, to_token, from_token, epoch, late_before_ms)
ON CONFLICT (principal, room_id, to_token) DO UPDATE SET
    from_token = EXCLUDED.from_token, cursor = NULL, page = room_history_recovery.page + 1, epoch = EXCLUDED.epoch,
    floor = CASE WHEN room_history_recovery.state = 'repairable' THEN room_history_recovery.floor ELSE EXCLUDED.floor END,
    state = 'repairable', events = 0, anchor_base = NULL, anchor_page = NULL, anchor_idx = NULL,
    late_before_ms = EXCLUDED.late_before_ms, attempts = 0, next_attempt_at = NULL, refusals = 0, refused_at = NULL,
    last_error = NULL, opened_at = mindroom_now(), closed_at = NULL
WHERE room_history_recovery.to_token = ''

-- name: newest_receipt
-- The floor of gaps opened now: numbers drawn later are larger.
SELECT nextval('journal_receipt_number') AS floor

-- name: repairable_gaps
-- Open gaps, oldest first.
SELECT room_id, to_token, from_token, floor, epoch, late_before_ms, walk, cursor, page, events, attempts, refusals,
       CASE WHEN anchor_base IS NOT NULL THEN ARRAY[anchor_base, anchor_page, anchor_idx] END AS anchor,
       (extract(epoch FROM opened_at) * 1000)::bigint AS opened_ms,
       (next_attempt_at IS NULL OR next_attempt_at <= mindroom_now()) AS due,
       coalesce(extract(epoch FROM mindroom_now() - refused_at), 0)::float8 AS refused_seconds
FROM room_history_recovery WHERE principal = $1 AND state = 'repairable' ORDER BY opened_at, room_id

-- name: known_events
-- Events of a page that have a receipt; history without a settlement is of before our time (B2).
SELECT r.event_id, r.receipt, r.base, r.page, r.idx,
       r.class = 'history' AND NOT EXISTS (SELECT FROM journal_settlements s WHERE s.receipt = r.receipt) AS is_beginning
FROM journal_receipts r WHERE r.principal = $1 AND r.event_id = ANY($2::text[])

-- name: advance_gap
-- One page is read; compares epoch and page so that a repeated page, or one of an earlier stay, changes nothing.
WITH withdrawn AS (
    DELETE FROM conversation_hydration WHERE principal = $1 AND room_id = $2 AND $12 = 'truncated'
)
UPDATE room_history_recovery SET page = page + 1, cursor = $6, walk = $7, events = $8, anchor_base = $9,
       anchor_page = $10, anchor_idx = $11, state = $12, closed_at = CASE WHEN $12 <> 'repairable' THEN mindroom_now() END,
       attempts = 0, next_attempt_at = NULL, refusals = 0, refused_at = NULL, last_error = NULL
WHERE principal = $1 AND room_id = $2 AND to_token = $3 AND epoch = $4 AND page = $5 AND state = 'repairable'
RETURNING page

-- name: gap_failed
-- A page that could not be read is tried again later, or never (B3).
WITH withdrawn AS (
    DELETE FROM conversation_hydration WHERE principal = $1 AND room_id = $2 AND $9
)
UPDATE room_history_recovery SET attempts = attempts + 1, last_error = $6,
       next_attempt_at = mindroom_now() + make_interval(secs => $7), refusals = refusals + $8::bool::int,
       refused_at = CASE WHEN $8 THEN coalesce(refused_at, mindroom_now()) ELSE refused_at END,
       state = CASE WHEN $9 THEN 'truncated' ELSE state END, closed_at = CASE WHEN $9 THEN mindroom_now() END
WHERE principal = $1 AND room_id = $2 AND to_token = $3 AND epoch = $4 AND page = $5 AND state = 'repairable'
RETURNING page

-- name: conversation
-- A thread (its root and members) in order; newest $4 messages. The inner limit keeps it from reading all of them.
SELECT * FROM (
    (SELECT event_id, sender, thread_id, base, page, idx, origin_ts, content, relates_to, turn_id
     FROM visible_messages WHERE principal = $1 AND room_id = $2 AND thread_id = $3
     ORDER BY base DESC, page DESC, idx DESC LIMIT $4)
    UNION ALL
    SELECT event_id, sender, thread_id, base, page, idx, origin_ts, content, relates_to, turn_id
    FROM visible_messages WHERE principal = $1 AND room_id = $2 AND event_id = $3 AND thread_id <> $3
    ORDER BY base DESC, page DESC, idx DESC LIMIT $4
) newest ORDER BY base, page, idx

-- name: message
-- One message of a room by id, and whether the text before its redacted edit is still owed.
SELECT event_id, sender, thread_id, base, page, idx, origin_ts, content, relates_to, turn_id,
       content IS NULL AND revision_id <> event_id AS is_withheld
FROM visible_messages WHERE principal = $1 AND room_id = $2 AND event_id = $3

-- name: participants
-- Who has spoken in a conversation, the latest first.
SELECT sender FROM (
    SELECT sender, base, page, idx FROM visible_messages WHERE principal = $1 AND room_id = $2 AND thread_id = $3
    UNION ALL
    SELECT sender, base, page, idx FROM visible_messages WHERE principal = $1 AND room_id = $2 AND event_id = $3
) spoken GROUP BY sender ORDER BY max(ARRAY[base, page, idx]) DESC

-- name: hydration
-- How far a conversation was read and may be read now; one heard from its root on, without an open gap since, needs no reading.
SELECT m.epoch, coalesce(h.state = 'complete', false) AS is_complete, coalesce(h.page, 0) AS page, h.cursor, h.passed,
       coalesce(h.attempts, 0) AS attempts, coalesce(h.next_attempt_at <= mindroom_now(), true) AS is_due,
       c.token, (SELECT last_value FROM journal_receipt_number) AS newest, v.event_id IS NOT NULL AS has_root,
       EXISTS (SELECT FROM journal_receipts WHERE principal = $1 AND event_id = v.event_id AND epoch = v.epoch)
       AND NOT EXISTS (SELECT FROM room_history_recovery
                       WHERE principal = $1 AND room_id = $2 AND state <> 'repaired' AND floor >= v.base) AS is_rooted,
       CASE WHEN h.state = 'complete' THEN $4
            ELSE (SELECT count(*) FROM (SELECT FROM visible_messages
                                        WHERE principal = $1 AND room_id = $2 AND thread_id = $3 LIMIT $4) s) END AS messages
FROM room_membership m
LEFT JOIN conversation_hydration h ON h.principal = $1 AND h.room_id = $2 AND h.thread_id = $3
LEFT JOIN visible_messages v ON v.principal = $1 AND v.room_id = $2 AND v.event_id = $3
LEFT JOIN sync_checkpoints c ON c.principal = $1
WHERE m.principal = $1 AND m.room_id = $2 AND m.membership = 'join'

-- name: places
-- Where the messages of a page stand already, and the floors of gaps that are not repaired.
SELECT event_id, base, page, idx FROM visible_messages WHERE principal = $1 AND room_id = $2 AND event_id = ANY($3::text[])
UNION ALL
SELECT '', floor, 0, 0 FROM room_history_recovery WHERE principal = $1 AND room_id = $2 AND state <> 'repaired'

-- name: hydrate_chunk
-- One page is read; not when our stay ended, or when a gap appeared since ($5: the newest receipt when it was asked for).
INSERT INTO conversation_hydration AS h (principal, room_id, thread_id, epoch, state, page, cursor, passed, next_attempt_at)
SELECT $1, $2, $3, m.epoch, CASE WHEN $8::text IS NULL THEN 'complete' ELSE 'partial' END, $6::bigint + 1, $8, $7::bigint,
       CASE WHEN $9::float8 > 0 THEN mindroom_now() + make_interval(secs => $9) END
FROM room_membership m
WHERE m.principal = $1 AND m.room_id = $2 AND m.epoch = $4 AND m.membership = 'join'
  AND NOT EXISTS (SELECT FROM room_history_recovery WHERE principal = $1 AND room_id = $2 AND floor > $5)
  AND ($6 = 0 OR EXISTS (SELECT FROM conversation_hydration WHERE principal = $1 AND room_id = $2 AND thread_id = $3))
ON CONFLICT (principal, room_id, thread_id)
DO UPDATE SET state = EXCLUDED.state, page = EXCLUDED.page, cursor = EXCLUDED.cursor, passed = EXCLUDED.passed,
              attempts = 0, next_attempt_at = EXCLUDED.next_attempt_at, last_error = NULL
WHERE h.page = $6 AND h.epoch = $4
RETURNING page

-- name: hydrate_failed
-- A page could not be read; until it is tried again answers go on with what is known.
INSERT INTO conversation_hydration AS h (principal, room_id, thread_id, epoch, attempts, last_error, next_attempt_at)
SELECT $1, $2, $3, m.epoch, 1, $5, mindroom_now() + make_interval(secs => $6)
FROM room_membership m WHERE m.principal = $1 AND m.room_id = $2 AND m.epoch = $4 AND m.membership = 'join'
ON CONFLICT (principal, room_id, thread_id)
DO UPDATE SET attempts = h.attempts + 1, last_error = EXCLUDED.last_error, next_attempt_at = EXCLUDED.next_attempt_at
