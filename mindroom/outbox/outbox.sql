-- name: queue
-- A thing to say. Repeating it changes nothing: the delivery id is derived from what it says.
INSERT INTO delivery_outbox (delivery_id, stage, principal, turn_id, generation, purpose, room_id, thread_id, epoch,
                             content, notify, txn_id, not_before)
VALUES ($2, $3, $1, $4, $5, $6, $7, $8, $9, $10, $11, $12, mindroom_now() + make_interval(secs => $13))
ON CONFLICT (delivery_id, stage) DO NOTHING

-- name: queue_claimed
-- hand_off claims its FINAL at once: the row is born with its frozen payload.
INSERT INTO delivery_outbox (delivery_id, stage, principal, turn_id, generation, purpose, room_id, thread_id, epoch,
                             content, notify, txn_id, state, wire, edit_target, device_id, attempts, claimed_at,
                             last_attempt_at, claim_token)
VALUES ($2, $3, $1, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'claimed', $13, $14, $15, 1, mindroom_now(), mindroom_now(),
        (SELECT token FROM sync_checkpoints WHERE principal = $1))

-- name: drop_initial
-- A FINAL exists: an INITIAL nobody claimed is never sent (E3). Returns how the INITIAL stands afterwards.
WITH dropped AS (
    UPDATE delivery_outbox SET state = 'retired'
    WHERE principal = $1 AND delivery_id = $2 AND stage = 'initial' AND state = 'queued' RETURNING delivery_id
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM dropped) THEN 'retired' ELSE o.state END AS state, o.acked_event_id
FROM delivery_outbox o WHERE o.principal = $1 AND o.delivery_id = $2 AND o.stage = 'initial'

-- name: load
-- One delivery with the fate of its INITIAL.
SELECT o.delivery_id, o.stage, o.turn_id, o.generation, o.purpose, o.room_id, o.thread_id, o.epoch, o.content, o.notify,
       o.wire, o.txn_id, o.device_id, o.attempts, o.state, o.acked_event_id, o.last_error, o.claim_token,
       i.state AS initial_state, coalesce(i.acked_event_id, CASE WHEN i.delivery_id IS NULL THEN o.edit_target END)
           AS initial_event_id,
       EXISTS (SELECT 1 FROM room_history_recovery g WHERE g.principal = o.principal AND g.room_id = o.room_id
                  AND g.state = 'truncated' AND g.opened_at >= o.claimed_at) AS in_truncated_gap,
       extract(epoch FROM mindroom_now() - o.queued_at)::float8 AS queued_seconds,
       coalesce(extract(epoch FROM mindroom_now() - o.claimed_at), 0)::float8 AS claimed_seconds,
       coalesce(extract(epoch FROM mindroom_now() - o.last_attempt_at), 0)::float8 AS attempted_seconds
FROM delivery_outbox o
LEFT JOIN delivery_outbox i ON i.delivery_id = o.delivery_id AND i.stage = 'initial' AND o.stage = 'final'
    AND i.room_id = o.room_id
WHERE o.principal = $1 AND o.delivery_id = $2 AND o.stage = $3

-- name: claim
-- Freezes the payload under the current epoch of a room we are in (E1, F2); the same claim once more is no refusal.
UPDATE delivery_outbox o SET state = 'claimed', wire = $4, edit_target = $5, device_id = $6, attempts = o.attempts + 1,
       claimed_at = mindroom_now(), last_attempt_at = mindroom_now(), last_error = NULL,
       claim_token = (SELECT token FROM sync_checkpoints WHERE principal = $1)
FROM room_membership m
WHERE o.principal = $1 AND o.delivery_id = $2 AND o.stage = $3
  AND (o.state = 'queued' OR (o.state = 'claimed' AND o.wire = $4 AND o.edit_target IS NOT DISTINCT FROM $5))
  AND m.principal = o.principal AND m.room_id = o.room_id AND m.epoch = o.epoch AND m.membership = 'join'
RETURNING o.delivery_id

-- name: reopen
-- The send never happened: the row may be claimed anew (E4), or waits with the reason given.
UPDATE delivery_outbox SET state = 'queued', wire = NULL, device_id = NULL, last_error = $4
WHERE principal = $1 AND delivery_id = $2 AND stage = $3 AND state = 'claimed'

-- name: note_attempt
-- The same payload goes out again, under the current epoch of a room we are in (E4, F2).
UPDATE delivery_outbox o SET attempts = o.attempts + 1, last_attempt_at = mindroom_now()
FROM room_membership m
WHERE o.principal = $1 AND o.delivery_id = $2 AND o.stage = $3 AND o.state = 'claimed'
  AND m.principal = o.principal AND m.room_id = o.room_id AND m.epoch = o.epoch AND m.membership = 'join'
RETURNING o.delivery_id

-- name: ack
-- The room has it. The first acknowledgement wins, in whatever state the row is (E1, E2).
UPDATE delivery_outbox SET state = 'acked', acked_event_id = $4, acked_at = mindroom_now(), last_error = NULL
WHERE principal = $1 AND delivery_id = $2 AND stage = $3 AND state <> 'acked' RETURNING delivery_id

-- name: retry_later
-- The outcome is unknown or the homeserver was not there: still claimed, the same payload later (E4).
UPDATE delivery_outbox SET last_error = $4, next_attempt_at = mindroom_now() + make_interval(secs => $5)
WHERE principal = $1 AND delivery_id = $2 AND stage = $3 AND state = 'claimed'

-- name: fail
-- It can never be said like this; the reason stays on the row.
UPDATE delivery_outbox SET state = 'failed', last_error = $4
WHERE principal = $1 AND delivery_id = $2 AND stage = $3 AND state IN ('queued', 'claimed') RETURNING delivery_id

-- name: retire
-- It need not be said any more.
UPDATE delivery_outbox SET state = 'retired', last_error = $4
WHERE principal = $1 AND delivery_id = $2 AND stage = $3 AND state IN ('queued', 'claimed') RETURNING delivery_id

-- name: retire_rooms
-- Nothing of an ended epoch is sent (F2).
UPDATE delivery_outbox o SET state = 'retired', last_error = 'departed'
FROM unnest($2::text[], $3::int[]) AS l(room_id, epoch)
WHERE o.principal = $1 AND o.room_id = l.room_id AND o.epoch <= l.epoch AND o.state IN ('queued', 'claimed')

-- name: echoes
-- Our own events prove what was said; a row that a restored database lacks is inserted acknowledged (A6).
INSERT INTO delivery_outbox (delivery_id, stage, principal, turn_id, generation, purpose, room_id, thread_id, epoch,
                             txn_id, state, acked_event_id, acked_at)
SELECT DISTINCT ON (e.delivery_id, e.stage)
       e.delivery_id, e.stage, $1, t.turn_id, e.generation, 'adopted', e.room_id, e.thread_id, e.epoch, e.txn_id,
       'acked', e.event_id, mindroom_now()
FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::int[], $6::text[], $7::text[], $8::int[], $9::text[], $10::text[])
     WITH ORDINALITY AS e(delivery_id, stage, turn_id, generation, room_id, thread_id, epoch, txn_id, event_id, position)
LEFT JOIN turns t ON t.turn_id = e.turn_id AND t.principal = $1
ORDER BY e.delivery_id, e.stage, e.position
ON CONFLICT (delivery_id, stage) DO UPDATE
    SET state = 'acked', acked_event_id = EXCLUDED.acked_event_id, acked_at = EXCLUDED.acked_at, last_error = NULL
    WHERE delivery_outbox.state <> 'acked' AND delivery_outbox.principal = EXCLUDED.principal
RETURNING delivery_id, stage, turn_id, acked_event_id

-- name: say_again
-- A progress edit newer than its FINAL hides it: the FINAL's text once more, keyed by that edit (E11).
INSERT INTO delivery_outbox (delivery_id, stage, principal, turn_id, generation, purpose, room_id, thread_id, epoch,
                             content, edit_target, txn_id)
SELECT p.again, 'final', $1, o.turn_id, o.generation, 'answer', o.room_id, o.thread_id, o.epoch,
       jsonb_set(o.content, '{io.mindroom.delivery,delivery}', to_jsonb(p.again::text)), o.edit_target, 'final.' || p.again
FROM unnest($2::uuid[], $3::uuid[], $4::bigint[], $5::text[]) AS p(again, delivery_id, timestamp_ms, event_id)
JOIN delivery_outbox o ON o.principal = $1 AND o.delivery_id = p.delivery_id AND o.stage = 'final' AND o.state = 'acked'
JOIN journal_receipts r ON r.principal = $1 AND r.event_id = o.acked_event_id
WHERE (p.timestamp_ms, p.event_id) > (r.origin_ts, r.event_id) AND o.edit_target IS NOT NULL AND o.content IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM redaction_tombstones t WHERE t.principal = $1 AND t.room_id = o.room_id
                     AND t.event_id IN (o.edit_target, o.acked_event_id, p.event_id))
ON CONFLICT (delivery_id, stage) DO NOTHING
RETURNING delivery_id, stage, room_id, thread_id, 0.0::float8 AS due_in_seconds

-- name: waiting_for_successor
-- What an upgraded room refused (F4); only an answer that nobody saw yet is worth saying elsewhere.
SELECT o.delivery_id, o.stage, o.content, o.purpose = 'answer' AND (o.edit_target IS NULL OR EXISTS (
    SELECT 1 FROM delivery_outbox i WHERE i.delivery_id = o.delivery_id AND i.stage = 'initial')) AS is_answer
FROM delivery_outbox o
WHERE o.principal = $1 AND o.room_id = $2 AND o.state = 'queued' AND o.stage = 'final' AND o.last_error = $3

-- name: carry
-- An answer moves to the successor, as a message of its own under our stay there (F4).
UPDATE delivery_outbox SET room_id = $5, thread_id = '', epoch = $6, content = $7, edit_target = NULL, last_error = NULL
WHERE principal = $1 AND delivery_id = $2 AND stage = $3 AND state = 'queued' AND room_id = $4
RETURNING delivery_id, stage, room_id, thread_id, 0.0::float8 AS due_in_seconds

-- name: room_owes
-- Whether anything is still to be said in a room.
SELECT EXISTS (SELECT 1 FROM delivery_outbox WHERE principal = $1 AND room_id = $2 AND state IN ('queued', 'claimed')) AS owes

-- name: owed
-- Everything queued or claimed, in the order in which it was queued.
SELECT delivery_id, stage, room_id, thread_id,
       extract(epoch FROM greatest(not_before, next_attempt_at) - mindroom_now())::float8 AS due_in_seconds
FROM delivery_outbox WHERE principal = $1 AND state IN ('queued', 'claimed')
ORDER BY queued_at, stage DESC

-- name: end_initials
-- Turns that ended without an answer: placeholders nobody claimed are dropped, those still to be seen are closed (D9).
WITH dropped AS (
    UPDATE delivery_outbox SET state = 'retired'
    WHERE principal = $1 AND turn_id = ANY($2::uuid[]) AND stage = 'initial' AND state = 'queued' RETURNING delivery_id
)
SELECT delivery_id, turn_id, generation, room_id, thread_id, epoch FROM delivery_outbox o
WHERE principal = $1 AND turn_id = ANY($2::uuid[]) AND stage = 'initial' AND state IN ('claimed', 'acked')
  AND NOT EXISTS (SELECT 1 FROM redaction_tombstones d
                  WHERE d.principal = $1 AND d.room_id = o.room_id AND d.event_id = o.acked_event_id)

-- name: forget
-- Our own words that were redacted: the rows keep ids and states, no text; what was not said yet is never said (I2).
WITH said AS (
    SELECT o.delivery_id, o.turn_id FROM unnest($2::text[], $3::text[]) AS g(room_id, event_id)
    JOIN delivery_outbox o ON o.principal = $1 AND o.acked_event_id = g.event_id AND o.room_id = g.room_id
)
UPDATE delivery_outbox o SET content = NULL, wire = NULL,
       last_error = CASE WHEN o.state IN ('queued', 'claimed') THEN 'redacted' ELSE o.last_error END,
       state = CASE WHEN o.state IN ('queued', 'claimed') THEN 'retired' ELSE o.state END
FROM said s WHERE o.principal = $1 AND (o.delivery_id = s.delivery_id OR o.turn_id = s.turn_id)
RETURNING o.turn_id

-- name: summary
-- How much is unsaid and how old it is.
SELECT count(*) AS owed, coalesce(extract(epoch FROM mindroom_now() - min(queued_at)), 0)::float8 AS oldest_seconds
FROM delivery_outbox WHERE principal = $1 AND state IN ('queued', 'claimed')

-- name: newest_acked
-- The last event of ours that the homeserver acknowledged in a room we are still in: has it gone back in time? (B4)
SELECT o.room_id, o.acked_event_id FROM delivery_outbox o
JOIN room_membership m ON m.principal = o.principal AND m.room_id = o.room_id AND m.membership = 'join' AND m.epoch = o.epoch
WHERE o.principal = $1 AND o.state = 'acked' ORDER BY o.acked_at DESC LIMIT 1
