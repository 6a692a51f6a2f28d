-- What operators read beside the names: one sentence for every index and for each column whose name does not say it.

COMMENT ON TABLE alembic_version IS 'One row: the schema''s revision, compared by the runtime before it serves.';
COMMENT ON COLUMN alembic_version.version_num IS 'Name of the newest revision applied.';
COMMENT ON INDEX alembic_version_pkc IS 'One row per revision head; there is one head.';
COMMENT ON SEQUENCE journal_receipt_number IS 'Draws receipts; numbers of rolled-back admissions stay holes.';

-- ---- clock and control ---------------------------------------------------------------------------------------------
COMMENT ON COLUMN clock_control.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN clock_control.test_offset IS 'Added to the server''s clock by mindroom_now().';
COMMENT ON INDEX clock_control_pkey IS 'Keeps the table at one row.';

COMMENT ON COLUMN instance.singleton IS 'Always true: there is one row.';
COMMENT ON COLUMN instance.instance_id IS 'Drawn when the database was first used; data folders remember it.';
COMMENT ON COLUMN instance.key_check IS 'The instance id sealed with the instance key: proves a key before it seals anything.';
COMMENT ON INDEX instance_pkey IS 'Keeps the table at one row; of two first starts one wins.';

COMMENT ON COLUMN processes.process_id IS 'Never used again by another process, unlike pid.';
COMMENT ON COLUMN processes.boot_id IS 'Boot of the host''s kernel; with data_folder it names whose leases a restart may take at once.';
COMMENT ON COLUMN processes.data_folder IS 'Absolute path whose file lock the process held.';
COMMENT ON COLUMN processes.version IS 'Version of MindRoom that ran.';
COMMENT ON COLUMN processes.beat_at IS 'Last heartbeat.';
COMMENT ON COLUMN processes.stopped_at IS 'Set by an orderly stop; a killed process leaves it NULL.';
COMMENT ON INDEX processes_pkey IS 'Leases name their owner by it.';

COMMENT ON COLUMN principals.principal IS 'Number that every ledger uses for the principal.';
COMMENT ON COLUMN principals.name IS 'Key of the principal in the configuration.';
COMMENT ON COLUMN principals.user_id IS 'Matrix user id.';
COMMENT ON COLUMN principals.device_id IS 'Drawn before the account is registered, named again by every login (E12).';
COMMENT ON COLUMN principals.password_sealed IS 'Sealed with the instance key (I3).';
COMMENT ON COLUMN principals.access_token_sealed IS 'Sealed with the instance key (I3).';
COMMENT ON COLUMN principals.unhealthy_reason IS 'Why the principal cannot be served; NULL when it can.';
COMMENT ON INDEX principals_pkey IS 'Every ledger names a principal by this number.';
COMMENT ON INDEX principals_name_key IS 'One principal per name in the configuration.';
COMMENT ON INDEX principals_user_id_key IS 'One principal per Matrix user.';

COMMENT ON COLUMN principal_fence.fence IS 'The fence that writes must carry now.';
COMMENT ON INDEX principal_fence_pkey IS 'The row each write transaction locks.';

COMMENT ON COLUMN principal_beat.owner IS 'The process that holds the lease; NULL after it resigned.';
COMMENT ON COLUMN principal_beat.expires_at IS 'From then on another process may take the lease.';
COMMENT ON COLUMN principal_beat.resigned IS 'False while it is held; still false afterwards when its holder crashed (D4).';
COMMENT ON INDEX principal_beat_pkey IS 'One lease per principal.';

-- ---- heard ---------------------------------------------------------------------------------------------------------
COMMENT ON COLUMN sync_checkpoints.token IS 'Value of `since` for the next sync; NULL before the first one.';
COMMENT ON COLUMN sync_checkpoints.trust IS 'Whether everything before the token is known to be stored.';
COMMENT ON COLUMN sync_checkpoints.reason IS 'Why the trust state is what it is.';
COMMENT ON COLUMN sync_checkpoints.since IS 'When the trust state was entered.';
COMMENT ON COLUMN sync_checkpoints.certified_at IS 'When the token was last certified.';
COMMENT ON INDEX sync_checkpoints_pkey IS 'One checkpoint per principal.';

COMMENT ON COLUMN journal_receipts.receipt IS 'The principal''s number for the event: unique, rising, with holes.';
COMMENT ON COLUMN journal_receipts.epoch IS 'Membership generation in the room under which the event was shown.';
COMMENT ON COLUMN journal_receipts.origin_ts IS 'The homeserver''s time of the event in milliseconds; never used for order.';
COMMENT ON COLUMN journal_receipts.base IS 'First part of the order key: the receipt itself, or the floor of the gap it came from.';
COMMENT ON COLUMN journal_receipts.page IS 'Second part of the order key: 0 live, 2^31 - page for recovered events.';
COMMENT ON COLUMN journal_receipts.idx IS 'Third part of the order key: place in the recovered page, oldest first.';
COMMENT ON COLUMN journal_receipts.thread_id IS 'Thread root; empty text is the main timeline.';
COMMENT ON COLUMN journal_receipts.kind IS 'What sort of event it was.';
COMMENT ON COLUMN journal_receipts.class IS 'Live from sync, recovered from a gap, or history that asks for nothing.';
COMMENT ON INDEX journal_receipts_pkey IS 'Event of a receipt.';
COMMENT ON INDEX journal_receipts_event_key IS 'Dedupe proof: a principal hears an event once (A2).';

COMMENT ON COLUMN journal_pending.receipt IS 'Receipt of the event in journal_receipts.';
COMMENT ON COLUMN journal_pending.epoch IS 'Copied from the receipt.';
COMMENT ON COLUMN journal_pending.origin_ts IS 'Copied from the receipt: milliseconds of the homeserver.';
COMMENT ON COLUMN journal_pending.base IS 'First part of the order key.';
COMMENT ON COLUMN journal_pending.page IS 'Second part of the order key.';
COMMENT ON COLUMN journal_pending.idx IS 'Third part of the order key.';
COMMENT ON COLUMN journal_pending.thread_id IS 'Thread root; empty text is the main timeline.';
COMMENT ON COLUMN journal_pending.class IS 'Live from sync, or recovered from a gap.';
COMMENT ON COLUMN journal_pending.source IS 'The event as it was received and decrypted.';
COMMENT ON COLUMN journal_pending.failures IS 'How often handling it failed, for whatever reason; sets the back-off.';
COMMENT ON COLUMN journal_pending.attempts IS 'How often it failed for a reason of its own; enough of these park it (C2).';
COMMENT ON COLUMN journal_pending.next_attempt_at IS 'End of its back-off; NULL: at once.';
COMMENT ON COLUMN journal_pending.last_error IS 'Class and code of the last failure, never its text.';
COMMENT ON COLUMN journal_pending.parked_at IS 'Set while it rests: no process tries it again by itself (C2).';
COMMENT ON COLUMN journal_pending.parked_by IS 'Version of the program that parked it last.';
COMMENT ON COLUMN journal_pending.parked_as IS 'Class of the error: an unknown one is tried once more by a newer version.';
COMMENT ON INDEX journal_pending_pkey IS 'Settlement deletes by receipt.';
COMMENT ON INDEX journal_pending_event IS 'Edits and redactions find the pending event they change.';
COMMENT ON INDEX journal_pending_order IS 'The feeder reads owed work by order key.';

COMMENT ON COLUMN journal_settlements.receipt IS 'Receipt of the event in journal_receipts.';
COMMENT ON COLUMN journal_settlements.outcome IS 'answered, ignored.<reason>, superseded, redacted, departed …';
COMMENT ON COLUMN journal_settlements.turn_id IS 'The turn that took it, if one did.';
COMMENT ON INDEX journal_settlements_pkey IS 'A source is settled once.';

COMMENT ON COLUMN answered_marks.event_id IS 'The source that our FINAL names.';
COMMENT ON INDEX answered_marks_pkey IS 'Asked for each event before it becomes pending.';

COMMENT ON COLUMN visible_messages.event_id IS 'The original event, whatever revision is shown.';
COMMENT ON COLUMN visible_messages.thread_id IS 'Thread root; empty text is the main timeline.';
COMMENT ON COLUMN visible_messages.epoch IS 'Membership generation under which it was seen.';
COMMENT ON COLUMN visible_messages.origin_ts IS 'The homeserver''s time of the original in milliseconds.';
COMMENT ON COLUMN visible_messages.base IS 'First part of the order key; prompts are ordered by it.';
COMMENT ON COLUMN visible_messages.page IS 'Second part of the order key.';
COMMENT ON COLUMN visible_messages.idx IS 'Third part of the order key.';
COMMENT ON COLUMN visible_messages.content IS 'Content of the latest revision; NULL: an answer of ours without final text yet, or a redacted edit, whose text before is owed.';
COMMENT ON COLUMN visible_messages.relates_to IS 'The original''s relation: reply and thread.';
COMMENT ON COLUMN visible_messages.revision_ts IS 'The homeserver''s time of the revision shown, in milliseconds.';
COMMENT ON COLUMN visible_messages.revision_id IS 'Event id of the revision shown; the original''s own when never edited.';
COMMENT ON COLUMN visible_messages.turn_id IS 'The turn of which it is the answer, for messages of ours.';
COMMENT ON INDEX visible_messages_pkey IS 'Edits and redactions find their message.';
COMMENT ON INDEX visible_messages_conversation IS 'Prompts read a conversation by order key.';
COMMENT ON INDEX visible_messages_withheld IS 'Messages whose text before a redacted edit is owed.';
COMMENT ON INDEX visible_messages_revision IS 'A redacted edit finds the message whose shown revision it was.';

COMMENT ON COLUMN unresolved_edits.target_id IS 'The original that has not been seen.';
COMMENT ON COLUMN unresolved_edits.content IS 'New content that the edit asks for; NULL once it was redacted.';
COMMENT ON COLUMN unresolved_edits.revision_ts IS 'The homeserver''s time of the edit in milliseconds.';
COMMENT ON COLUMN unresolved_edits.revision_id IS 'Event id of the edit.';
COMMENT ON COLUMN unresolved_edits.epoch IS 'Membership generation under which the edit was seen.';
COMMENT ON INDEX unresolved_edits_pkey IS 'A late original finds its newest edit by the same sender.';

COMMENT ON COLUMN redaction_tombstones.event_id IS 'The redacted event.';
COMMENT ON INDEX redaction_tombstones_pkey IS 'Asked before any text is installed.';

COMMENT ON COLUMN room_membership.epoch IS 'Grows with each departure and rejoin; older work is void.';
COMMENT ON COLUMN room_membership.inviter IS 'Who invited us, while invited.';
COMMENT ON COLUMN room_membership.is_direct IS 'Whether the invite called the room a direct chat.';
COMMENT ON COLUMN room_membership.invite_attempts IS 'How often joining failed.';
COMMENT ON COLUMN room_membership.invite_next_attempt_at IS 'End of the join''s back-off; NULL: at once.';
COMMENT ON COLUMN room_membership.invite_last_error IS 'Class and code of the last failed join, never its text.';
COMMENT ON COLUMN room_membership.joined_count IS 'Joined members by the last room summary; NULL: not told yet.';
COMMENT ON COLUMN room_membership.invited_count IS 'Invited members by the last room summary; NULL: not told yet.';
COMMENT ON COLUMN room_membership.joined_by IS 'Our join that began this stay: shown again it is no new one; NULL: not seen.';
COMMENT ON INDEX room_membership_pkey IS 'One membership per principal and room.';
COMMENT ON INDEX room_membership_invites IS 'The join worker reads open invites.';

COMMENT ON COLUMN room_state.type IS 'Type of the state event.';
COMMENT ON COLUMN room_state.sender IS 'Who set it.';
COMMENT ON COLUMN room_state.content IS 'Its content now.';
COMMENT ON INDEX room_state_pkey IS 'One value per state key, as in the room.';

COMMENT ON COLUMN room_history_recovery.to_token IS 'Token the limited response was asked with: older end of the gap; empty when no token was usable and receipts before the floor end it (B4).';
COMMENT ON COLUMN room_history_recovery.from_token IS 'Where the timeline of the limited response began: newer end of the gap.';
COMMENT ON COLUMN room_history_recovery.to_token IS 'Where the limited response began: end of the gap.';
COMMENT ON COLUMN room_history_recovery.from_token IS 'Where the sync before it ended: start of the gap.';
COMMENT ON COLUMN room_history_recovery.walk IS '1: back to to_token; 2: without it, for holes in the homeserver''s own copy.';
COMMENT ON COLUMN room_history_recovery.cursor IS 'Where the walk goes on; NULL before its first page.';
COMMENT ON COLUMN room_history_recovery.page IS 'Pages read by both walks so far; with epoch the revision of the row.';
COMMENT ON COLUMN room_history_recovery.events IS 'Events seen in this walk.';
COMMENT ON COLUMN room_history_recovery.anchor_base IS 'First part of the order key of the oldest event of this walk; NULL before its first page.';
COMMENT ON COLUMN room_history_recovery.anchor_page IS 'Second part of that key.';
COMMENT ON COLUMN room_history_recovery.anchor_idx IS 'Third part of that key.';
COMMENT ON COLUMN room_history_recovery.floor IS 'Newest receipt before the limited response: base of recovered order keys.';
COMMENT ON COLUMN room_history_recovery.epoch IS 'Membership generation the gap belongs to.';
COMMENT ON COLUMN room_history_recovery.late_before_ms IS 'Events with an older Matrix time are late: 24 h before the sync that was certified last before the gap (A3).';
COMMENT ON COLUMN room_history_recovery.attempts IS 'How often a page failed since the last one that did not.';
COMMENT ON COLUMN room_history_recovery.next_attempt_at IS 'End of its back-off; NULL: at once.';
COMMENT ON COLUMN room_history_recovery.refusals IS 'How often the homeserver refused a page since the last one it gave.';
COMMENT ON COLUMN room_history_recovery.refused_at IS 'First of these refusals; NULL: none.';
COMMENT ON COLUMN room_history_recovery.last_error IS 'Class and code of the last failure, never its text.';
COMMENT ON INDEX room_history_recovery_pkey IS 'A limited response opens one gap a room, however often it is seen.';
COMMENT ON INDEX room_history_recovery_open IS 'The gap worker reads open gaps.';

COMMENT ON COLUMN conversation_hydration.epoch IS 'Membership generation under which it was read.';
COMMENT ON COLUMN conversation_hydration.state IS 'complete: nothing is left to read; a gap or a departure withdraws that by deleting the row.';
COMMENT ON COLUMN conversation_hydration.cursor IS 'Where reading goes on; NULL: at the newest message.';
COMMENT ON COLUMN conversation_hydration.page IS 'Pages read so far, since the newest message.';
COMMENT ON COLUMN conversation_hydration.passed IS 'Lowest base of the messages known before that were passed; unknown ones behind them are older.';
COMMENT ON COLUMN conversation_hydration.attempts IS 'How often reading failed since the last page.';
COMMENT ON COLUMN conversation_hydration.next_attempt_at IS 'Until then answers go on with what is known; NULL: read at once.';
COMMENT ON COLUMN conversation_hydration.last_error IS 'Class and code of the last failure, never its text.';
COMMENT ON INDEX conversation_hydration_pkey IS 'Asked before a prompt is built.';

-- ---- did -----------------------------------------------------------------------------------------------------------
COMMENT ON COLUMN turns.turn_id IS 'Time-ordered id given when the turn opens.';
COMMENT ON COLUMN turns.thread_id IS 'Thread root of the conversation; empty text is the main timeline.';
COMMENT ON COLUMN turns.reply_to IS 'The anchor: the event that the answer replies to.';
COMMENT ON COLUMN turns.requester IS 'To whom the turn belongs.';
COMMENT ON COLUMN turns.epoch IS 'Membership generation the turn belongs to.';
COMMENT ON COLUMN turns.outcome IS 'How the turn ended; NULL while open.';
COMMENT ON COLUMN turns.reason IS 'Why the principal decided to answer.';
COMMENT ON COLUMN turns.fence IS 'The fence that opened it or took it up last.';
COMMENT ON COLUMN turns.resumes IS 'Take-ups after a crash, without a step between; too many park its sources (D4).';
COMMENT ON COLUMN turns.generation IS 'Grows with an edit, a changed set of sources or an operator''s retry; a re-run after a crash keeps it.';
COMMENT ON COLUMN turns.config_generation IS 'Digest of the configuration in force.';
COMMENT ON COLUMN turns.model IS 'Name of the model in the configuration.';
COMMENT ON COLUMN turns.input_tokens IS 'Tokens read by the model over all steps.';
COMMENT ON COLUMN turns.output_tokens IS 'Tokens written by the model over all steps.';
COMMENT ON COLUMN turns.first_text_at IS 'When the model''s first text arrived.';
COMMENT ON INDEX turns_pkey IS 'Turn of an id.';
COMMENT ON INDEX turns_open IS 'Recovery reads open turns of a principal.';
COMMENT ON INDEX turns_conversation IS 'Turns of a conversation, for prompts and for operators.';

COMMENT ON COLUMN turn_sources.ordinal IS 'Place in the batch; the last is the anchor.';
COMMENT ON COLUMN turn_sources.receipt IS 'Receipt of the event in journal_receipts.';
COMMENT ON COLUMN turn_sources.base IS 'First part of the order key.';
COMMENT ON COLUMN turn_sources.page IS 'Second part of the order key.';
COMMENT ON COLUMN turn_sources.idx IS 'Third part of the order key.';
COMMENT ON INDEX turn_sources_pkey IS 'Sources of a turn in order.';
COMMENT ON COLUMN turn_sources.role IS 'source: the turn answers it; parked: the turn gave it up, and another may take it.';
COMMENT ON INDEX turn_sources_event IS 'An event belongs to one turn of a principal.';

COMMENT ON COLUMN turn_steps.step IS 'Number of the model step within the generation.';
COMMENT ON COLUMN turn_steps.canonical_text IS 'What the model said, before hooks; empty once a source or the answer was redacted.';
COMMENT ON COLUMN turn_steps.replayable_text IS 'What later prompts replay; empty once a source or the answer was redacted.';
COMMENT ON COLUMN turn_steps.input_tokens IS 'Tokens read in this step.';
COMMENT ON COLUMN turn_steps.output_tokens IS 'Tokens written in this step.';
COMMENT ON INDEX turn_steps_pkey IS 'A step is stored once and read back in order.';

-- ---- said ----------------------------------------------------------------------------------------------------------
COMMENT ON COLUMN delivery_outbox.delivery_id IS 'Derived from what is said, so that a re-run finds its own row.';
COMMENT ON COLUMN delivery_outbox.stage IS 'initial is the placeholder, final the last word.';
COMMENT ON COLUMN delivery_outbox.turn_id IS 'The turn that speaks; NULL for notices outside turns.';
COMMENT ON COLUMN delivery_outbox.generation IS 'Generation of the turn that speaks.';
COMMENT ON COLUMN delivery_outbox.purpose IS 'An answer, a notice of the runtime, the removal of a placeholder that no answer followed, or one found already said and adopted.';
COMMENT ON COLUMN delivery_outbox.thread_id IS 'Thread root; empty text is the main timeline.';
COMMENT ON COLUMN delivery_outbox.epoch IS 'Membership generation; after a departure the row is not sent (F2).';
COMMENT ON COLUMN delivery_outbox.content IS 'What to say; NULL once what was said is redacted.';
COMMENT ON COLUMN delivery_outbox.wire IS 'Exact payload, frozen when claimed; every attempt sends the same.';
COMMENT ON COLUMN delivery_outbox.notify IS 'Users that the message mentions, so that their clients tell them.';
COMMENT ON COLUMN delivery_outbox.edit_target IS 'Our event that this one edits; NULL: a new event.';
COMMENT ON COLUMN delivery_outbox.txn_id IS 'Matrix transaction id, the same for every attempt.';
COMMENT ON COLUMN delivery_outbox.device_id IS 'Device whose transaction scope the attempts use.';
COMMENT ON COLUMN delivery_outbox.claim_token IS 'Sync token at the claim: from there the room is read when sync could not show an echo (E4).';
COMMENT ON COLUMN delivery_outbox.not_before IS 'Earliest time of the first attempt.';
COMMENT ON COLUMN delivery_outbox.attempts IS 'Attempts so far.';
COMMENT ON COLUMN delivery_outbox.next_attempt_at IS 'End of its back-off; NULL: at once.';
COMMENT ON COLUMN delivery_outbox.last_error IS 'Class and code of the last failure, never its text.';
COMMENT ON COLUMN delivery_outbox.acked_event_id IS 'The event that the room sees.';
COMMENT ON INDEX delivery_outbox_pkey IS 'One row per delivery and stage: a repeated hand-off changes nothing.';
COMMENT ON INDEX delivery_outbox_owed IS 'The outbox worker reads what a room is still owed.';
COMMENT ON INDEX delivery_outbox_event IS 'A redaction finds what of ours it takes back.';
COMMENT ON INDEX delivery_outbox_turn IS 'What a turn said.';
COMMENT ON INDEX delivery_outbox_txn IS 'A transaction id is used once; echoes find their row.';
