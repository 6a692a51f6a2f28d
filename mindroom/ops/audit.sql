-- name: open_turn_without_source
-- D3: an open turn has a pending source that is not parked.
SELECT t.principal, t.turn_id::text AS subject FROM turns t
WHERE t.state = 'open' AND NOT EXISTS (
    SELECT 1 FROM turn_sources s JOIN journal_pending p USING (receipt)
    WHERE s.turn_id = t.turn_id AND s.role = 'source' AND p.parked_at IS NULL)

-- name: source_settled_and_pending
-- D3: a source is settled or owed, never both.
SELECT p.principal, p.event_id AS subject FROM journal_pending p JOIN journal_settlements s USING (receipt)

-- name: answer_owed_for_a_pending_source
-- D3: an answer that is owed or said has no pending source.
SELECT p.principal, p.event_id AS subject
FROM delivery_outbox o
JOIN turns t ON t.turn_id = o.turn_id AND t.generation = o.generation AND t.state = 'closed' AND t.outcome = 'answered'
JOIN turn_sources s ON s.turn_id = o.turn_id AND s.role = 'source'
JOIN journal_pending p ON p.receipt = s.receipt
WHERE o.stage = 'final' AND o.state <> 'retired'

-- name: answered_without_answer
-- D3: an answered source has a FINAL that is owed, said, or failed with its reason, or was named by one in the room.
SELECT r.principal, r.event_id AS subject
FROM journal_settlements s
JOIN journal_receipts r USING (receipt)
WHERE s.outcome = 'answered' AND NOT EXISTS (
    SELECT 1 FROM delivery_outbox o WHERE o.turn_id = s.turn_id AND o.stage = 'final')
  AND NOT EXISTS (SELECT 1 FROM answered_marks m WHERE m.principal = r.principal AND m.event_id = r.event_id)

-- name: receipt_missing
-- A2: whatever is owed or settled has a receipt.
SELECT p.principal, p.event_id AS subject FROM journal_pending p
WHERE NOT EXISTS (SELECT 1 FROM journal_receipts r WHERE r.receipt = p.receipt AND r.event_id = p.event_id)
UNION ALL
SELECT NULL, s.receipt::text FROM journal_settlements s
WHERE NOT EXISTS (SELECT 1 FROM journal_receipts r WHERE r.receipt = s.receipt)

-- name: history_is_work
-- A3: history starts nothing.
SELECT p.principal, p.event_id AS subject FROM journal_pending p JOIN journal_receipts r USING (receipt)
WHERE r.class = 'history'

-- name: order_differs
-- C1: a source stands at the same place in the journal, among the owed and in its turn.
SELECT r.principal, r.event_id AS subject
FROM journal_receipts r
JOIN (SELECT receipt, base, page, idx FROM journal_pending
      UNION ALL SELECT receipt, base, page, idx FROM turn_sources) c USING (receipt)
WHERE (c.base, c.page, c.idx) <> (r.base, r.page, r.idx)

-- name: answered_mark_is_pending
-- A6: a source that a FINAL of ours names is owed nothing.
SELECT p.principal, p.event_id AS subject FROM journal_pending p JOIN answered_marks m USING (principal, event_id)

-- name: batch_too_large
-- A6: a turn answers at most 100 sources.
SELECT principal, turn_id::text AS subject FROM turn_sources GROUP BY principal, turn_id HAVING count(*) > 100

-- name: certified_without_token
-- A1, B1: a certified checkpoint has a token.
SELECT principal, trust AS subject FROM sync_checkpoints WHERE trust = 'certified' AND token IS NULL

-- name: row_of_an_ended_stay
-- A5, F2: nothing of an ended epoch is owed, shown or walked.
SELECT m.principal, m.room_id || ' ' || c.what AS subject
FROM room_membership m
JOIN (SELECT DISTINCT principal, room_id, epoch, 'pending' AS what FROM journal_pending
      UNION SELECT DISTINCT principal, room_id, epoch, 'shown' FROM visible_messages
      UNION SELECT principal, room_id, epoch, 'gap' FROM room_history_recovery WHERE state = 'repairable'
      UNION SELECT principal, room_id, epoch, 'hydration' FROM conversation_hydration
      UNION SELECT principal, room_id, epoch, 'turn' FROM turns WHERE state = 'open'
      UNION SELECT principal, room_id, epoch, 'delivery' FROM delivery_outbox WHERE state IN ('queued', 'claimed')) c
    USING (principal, room_id)
WHERE c.epoch < m.epoch

-- name: redacted_text
-- A4, I2: no row holds a text that was redacted.
SELECT t.principal, t.event_id AS subject
FROM redaction_tombstones t
WHERE EXISTS (SELECT 1 FROM visible_messages v WHERE v.principal = t.principal AND v.room_id = t.room_id
              AND v.content IS NOT NULL AND (v.event_id = t.event_id OR v.revision_id = t.event_id))
   OR EXISTS (SELECT 1 FROM journal_pending p WHERE p.principal = t.principal AND p.event_id = t.event_id)
   OR EXISTS (SELECT 1 FROM unresolved_edits e WHERE e.principal = t.principal AND e.room_id = t.room_id
              AND (e.target_id = t.event_id OR (e.revision_id = t.event_id AND e.content IS NOT NULL)))
   OR EXISTS (SELECT 1 FROM delivery_outbox o WHERE o.principal = t.principal AND o.room_id = t.room_id
              AND o.acked_event_id = t.event_id AND (o.content IS NOT NULL OR o.wire IS NOT NULL))
   OR EXISTS (SELECT 1 FROM turn_sources s JOIN turns u USING (turn_id) JOIN turn_steps x USING (turn_id)
              WHERE s.principal = t.principal AND s.event_id = t.event_id AND u.room_id = t.room_id
                AND (x.canonical_text <> '' OR x.replayable_text <> ''))

-- name: one_event_for_two_deliveries
-- E2: one event is one stage of one delivery.
SELECT principal, acked_event_id AS subject FROM delivery_outbox WHERE acked_event_id IS NOT NULL
GROUP BY principal, acked_event_id HAVING count(*) > 1

-- name: final_overtook_initial
-- E3: a FINAL waits for its claimed INITIAL, and an INITIAL nobody claimed is dropped.
SELECT f.principal, f.delivery_id::text AS subject
FROM delivery_outbox f JOIN delivery_outbox i ON i.delivery_id = f.delivery_id AND i.stage = 'initial'
WHERE f.stage = 'final' AND f.purpose <> 'adopted'
  AND ((f.state IN ('claimed', 'acked') AND i.state = 'claimed') OR (f.state <> 'retired' AND i.state = 'queued'))

-- name: placeholder_left
-- D9: a visible placeholder of a turn that has ended has its FINAL, unless it is redacted or we left the room.
SELECT i.principal, i.delivery_id::text AS subject
FROM delivery_outbox i
JOIN turns t ON t.turn_id = i.turn_id AND t.state = 'closed' AND t.outcome <> 'departed'
LEFT JOIN room_membership m ON m.principal = i.principal AND m.room_id = i.room_id
WHERE i.stage = 'initial' AND i.state IN ('claimed', 'acked') AND i.epoch >= coalesce(m.epoch, 0)
  AND NOT EXISTS (SELECT 1 FROM delivery_outbox f WHERE f.delivery_id = i.delivery_id AND f.stage = 'final')
  AND NOT EXISTS (SELECT 1 FROM redaction_tombstones d WHERE d.principal = i.principal AND d.room_id = i.room_id
                  AND d.event_id = i.acked_event_id)

-- name: transaction_id_differs
-- E1: the transaction id names stage and delivery.
SELECT principal, txn_id AS subject FROM delivery_outbox WHERE txn_id <> stage || '.' || delivery_id::text

-- name: lease_of_an_ended_process
-- H1: a process that has ended holds no lease.
SELECT b.principal, b.owner::text AS subject FROM principal_beat b JOIN processes p ON p.process_id = b.owner
WHERE p.stopped_at IS NOT NULL AND b.expires_at > mindroom_now()

-- name: clock_was_moved
-- J1: only tests move the clock.
SELECT NULL::int AS principal, test_offset::text AS subject FROM clock_control WHERE test_offset <> interval '0'
