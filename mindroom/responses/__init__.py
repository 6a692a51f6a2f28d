"""From a decided turn to its answer: prompt, the one model loop, streaming edits, hand-over to the outbox."""
