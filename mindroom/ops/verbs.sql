-- name: retry_event
-- A parked event is owed again, with a clean slate of attempts.
UPDATE journal_pending q SET parked_at = NULL, attempts = 0, failures = 0
FROM principals p WHERE q.principal = p.principal AND q.event_id = $1 AND q.parked_at IS NOT NULL RETURNING p.name
