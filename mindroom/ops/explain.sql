-- name: heard
-- Each principal that was shown the event, and what became of it there.
SELECT p.name AS principal, e.room_id, e.thread_id, e.sender, e.kind, e.class, e.state, e.outcome, e.turn_id,
       e.settled_at, e.attempts, e.next_attempt_at, e.last_error, extract(epoch FROM e.age)::float8 AS age_seconds,
       EXISTS (SELECT 1 FROM redaction_tombstones t WHERE t.principal = p.principal AND t.room_id = e.room_id
               AND t.event_id = e.event_id) AS redacted,
       EXISTS (SELECT 1 FROM room_history_recovery g WHERE g.principal = p.principal AND g.room_id = e.room_id
               AND g.state = 'repairable') AS gap_open
FROM principals p JOIN journal_events e ON e.principal = p.principal AND e.event_id = $1
ORDER BY p.name

-- name: turns
-- Turns that answer the event, that said it, or whose id begins or, as in a reference, ends like this.
SELECT p.name AS principal, t.turn_id, t.room_id, t.thread_id, t.requester, t.state, t.outcome, t.reason, t.generation,
       t.model, t.input_tokens, t.output_tokens, t.opened_at, t.closed_at,
       extract(epoch FROM t.closed_at - t.opened_at)::float8 AS seconds,
       (SELECT array_agg(s.event_id ORDER BY s.ordinal) FROM turn_sources s WHERE s.turn_id = t.turn_id) AS sources,
       (SELECT count(*) FROM turn_steps s WHERE s.turn_id = t.turn_id) AS steps
FROM turns t JOIN principals p USING (principal)
WHERE t.turn_id IN (
    SELECT s.turn_id FROM principals q JOIN turn_sources s ON s.principal = q.principal AND s.event_id = $1
    UNION SELECT o.turn_id FROM delivery_outbox o WHERE o.acked_event_id = $1
    UNION SELECT o.turn_id FROM delivery_outbox o WHERE $2 AND o.delivery_id::text LIKE $1 || '%'
    UNION SELECT u.turn_id FROM turns u WHERE $2 AND (u.turn_id::text LIKE lower($1) || '%'
           OR right(replace(u.turn_id::text, '-', ''), 10) = lower($1)))
ORDER BY t.opened_at, t.turn_id

-- name: deliveries
-- What those turns said, and what was said without a turn under this id.
SELECT p.name AS principal, o.turn_id, o.delivery_id, o.stage, o.purpose, o.state, o.attempts, o.queued_at,
       o.claimed_at, o.acked_at, o.acked_event_id, o.next_attempt_at, o.last_error
FROM delivery_outbox o JOIN principals p USING (principal)
WHERE o.turn_id = ANY($3::uuid[]) OR o.acked_event_id = $1 OR ($2 AND o.delivery_id::text LIKE $1 || '%')
ORDER BY o.queued_at, o.stage DESC
