-- name: open_turn
-- A turn and its sources; a source that another turn holds refuses the whole (D2).
WITH opened AS (
    INSERT INTO turns (turn_id, principal, room_id, thread_id, reply_to, requester, epoch, kind, reason,
                       config_generation, model, fence)
    VALUES ($1, $2, $3, $4, $5, $6, $7, 'message', $8, $9, $10, $16)
    RETURNING turn_id
)
INSERT INTO turn_sources (turn_id, ordinal, principal, event_id, receipt, base, page, idx)
SELECT o.turn_id, s.ordinal, $2, s.event_id, s.receipt, s.base, s.page, s.idx
FROM opened o, unnest($11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::int[])
     WITH ORDINALITY AS s(event_id, receipt, base, page, idx, ordinal)

-- name: add_sources
-- What its requester wrote since joins an open turn (R19); a source that another turn holds refuses the whole.
INSERT INTO turn_sources (turn_id, ordinal, principal, event_id, receipt, base, page, idx)
SELECT t.turn_id, (SELECT max(ordinal) FROM turn_sources WHERE turn_id = $2) + s.ordinal, $1, s.event_id, s.receipt,
       s.base, s.page, s.idx
FROM turns t, unnest($3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::int[])
     WITH ORDINALITY AS s(event_id, receipt, base, page, idx, ordinal)
WHERE t.principal = $1 AND t.turn_id = $2 AND t.state = 'open'

-- name: append_step
-- A completed model step is a fact; repeating it changes nothing (D4).
INSERT INTO turn_steps (turn_id, generation, step, canonical_text, replayable_text, input_tokens, output_tokens)
SELECT t.turn_id, $3, $4, $5, $6, $7, $8 FROM turns t WHERE t.turn_id = $2 AND t.principal = $1
ON CONFLICT DO NOTHING

-- name: close_turn
-- Ends an open turn of this generation; no row means that it ended otherwise.
UPDATE turns SET state = 'closed', outcome = $4, closed_at = mindroom_now(), input_tokens = $5, output_tokens = $6,
       first_text_at = coalesce(first_text_at, mindroom_now() - make_interval(secs => $7))
WHERE principal = $1 AND turn_id = $2 AND generation = $3 AND state = 'open' RETURNING turn_id

-- name: close_answered
-- Turns whose FINAL was seen in the room: whatever the process believed, they are answered (A6).
UPDATE turns SET state = 'closed', outcome = 'answered', closed_at = mindroom_now()
WHERE principal = $1 AND turn_id = ANY($2::uuid[]) AND state = 'open' RETURNING turn_id

-- name: turns_losing
-- Open turns that held these sources: which of them have lost all, and which go on with the rest.
SELECT t.turn_id, t.generation, bool_and(q.receipt IS NULL) AS is_bare
FROM turns t
JOIN turn_sources mine ON mine.turn_id = t.turn_id AND mine.principal = $1 AND mine.event_id = ANY($2::text[])
JOIN turn_sources s ON s.turn_id = t.turn_id
LEFT JOIN journal_pending q ON q.receipt = s.receipt AND q.parked_at IS NULL
WHERE t.principal = $1 AND t.state = 'open'
GROUP BY t.turn_id, t.generation

-- name: end_turns
-- Ends open turns that have no source left.
UPDATE turns SET state = 'closed', outcome = $3, closed_at = mindroom_now()
WHERE principal = $1 AND turn_id = ANY($2::uuid[]) AND state = 'open'

-- name: give_up_sources
-- What a turn gave up may be the source of another one (C2).
UPDATE turn_sources SET role = 'parked' WHERE principal = $1 AND turn_id = ANY($2::uuid[])

-- name: resume_turn
-- A fence takes up an open turn of an earlier one; counted when that one crashed (D4).
UPDATE turns SET fence = $3, resumes = resumes + $4::int
WHERE principal = $1 AND turn_id = $2 AND fence < $3 AND state = 'open' RETURNING resumes

-- name: drop_sources
-- A turn goes on without some of its sources.
DELETE FROM turn_sources s USING turns t
WHERE t.turn_id = s.turn_id AND t.state = 'open' AND s.principal = $1
  AND s.turn_id = ANY($2::uuid[]) AND s.event_id = ANY($3::text[])

-- name: load_turn
-- A turn with its sources, in order.
SELECT t.turn_id, t.room_id, t.thread_id, t.reply_to, t.requester, t.epoch, t.state, t.outcome, t.reason, t.generation,
       t.model, t.fence, t.opened_at, s.event_id, s.receipt, s.base, s.page, s.idx
FROM turns t JOIN turn_sources s USING (turn_id)
WHERE t.principal = $1 AND t.turn_id = $2 ORDER BY s.ordinal

-- name: answered_by
-- Sources of open turns by the deliveries of their generation: a redacted FINAL names none itself (A6).
SELECT DISTINCT s.event_id, s.turn_id
FROM delivery_outbox o
JOIN turns t ON t.turn_id = o.turn_id AND t.generation = o.generation AND t.state = 'open'
JOIN turn_sources s ON s.turn_id = t.turn_id AND s.role = 'source'
WHERE o.principal = $1 AND o.delivery_id = ANY($2::uuid[])

-- name: open_sources
-- What open ones among these turns are to answer.
SELECT t.room_id, s.event_id FROM turns t JOIN turn_sources s USING (turn_id)
WHERE t.principal = $1 AND t.turn_id = ANY($2::uuid[]) AND t.state = 'open' AND s.role = 'source'

-- name: forget_steps
-- Steps of turns that answer redacted messages, and of the turns named: what was made of a text goes with it (I2).
UPDATE turn_steps SET canonical_text = '', replayable_text = ''
WHERE turn_id = ANY(ARRAY(
    SELECT t.turn_id FROM unnest($2::text[], $3::text[]) AS g(room_id, event_id)
    CROSS JOIN LATERAL (SELECT turn_id FROM turn_sources
                        WHERE principal = $1 AND event_id = g.event_id AND role = 'source' OFFSET 0) s
    JOIN turns t ON t.turn_id = s.turn_id AND t.room_id = g.room_id
    UNION SELECT unnest($4::uuid[])))

-- name: conversation_answers
-- Our own answers of a conversation at the place of their sources, as later prompts replay them; a forgotten one is
-- replayed as the room shows it.
SELECT t.turn_id, a.base, a.page, a.idx, s.replayable_text, t.closed_at
FROM turns t
JOIN LATERAL (SELECT base, page, idx FROM turn_sources WHERE turn_id = t.turn_id ORDER BY ordinal DESC LIMIT 1) a ON true
JOIN LATERAL (SELECT replayable_text FROM turn_steps WHERE turn_id = t.turn_id AND generation = t.generation
              ORDER BY step DESC LIMIT 1) s ON true
WHERE t.principal = $1 AND t.room_id = $2 AND t.thread_id = $3 AND t.state = 'closed' AND t.outcome = 'answered'
  AND s.replayable_text <> ''
ORDER BY t.opened_at DESC LIMIT $4
