-- name: lock_fence
-- Take-over waits for open write transactions of the old owner, then shuts new ones out.
SELECT fence FROM principal_fence WHERE principal = $1 FOR UPDATE

-- name: lock_beat
-- Second in lock order: fence, then beat.
SELECT owner FROM principal_beat WHERE principal = $1 FOR UPDATE

-- name: take
-- Reads the expiry after the locks and takes a new fence when the lease is free, expired or ours.
WITH free AS (
    SELECT principal FROM principal_beat
    WHERE principal = $1 AND (owner IS NULL OR owner = $2 OR expires_at < mindroom_now())
), beat AS (
    UPDATE principal_beat b SET owner = $2, expires_at = mindroom_now() + make_interval(secs => $3), resigned = false
    FROM free WHERE b.principal = free.principal
)
UPDATE principal_fence f SET fence = f.fence + 1 FROM free, principal_beat former
WHERE f.principal = free.principal AND former.principal = free.principal RETURNING f.fence, former.resigned

-- name: standing
-- Who holds these leases and how many processes live; read once a second by a process that stands by.
SELECT b.principal, b.owner, f.fence, b.owner IS NULL OR b.owner = $1 OR b.expires_at < mindroom_now() AS is_free,
       extract(epoch FROM mindroom_now() - nullif(b.expires_at, '-infinity'))::float8 + $3 AS age_seconds,
       (SELECT count(*) FROM processes WHERE stopped_at IS NULL AND process_id <> $1
        AND beat_at >= mindroom_now() - make_interval(secs => $3)) + 1 AS live
FROM principal_beat b JOIN principal_fence f USING (principal) WHERE b.principal = ANY($2::int[]) ORDER BY b.principal

-- name: renew
-- One statement renews all leases of a process and its heartbeat.
WITH beat AS (
    UPDATE processes SET beat_at = mindroom_now() WHERE process_id = $1
)
UPDATE principal_beat SET expires_at = mindroom_now() + make_interval(secs => $3)
WHERE owner = $1 AND principal = ANY($2::int[]) RETURNING principal

-- name: resign
-- Frees a lease of ours, unless this process has taken it anew meanwhile.
UPDATE principal_beat b SET owner = NULL, expires_at = '-infinity', resigned = true FROM principal_fence f
WHERE b.principal = $1 AND b.owner = $2 AND f.principal = b.principal AND f.fence = $3

-- name: register_process
-- One row per process.
INSERT INTO processes (host, pid, boot_id, data_folder, version) VALUES ($1, $2, $3, $4, $5) RETURNING process_id

-- name: free_dead
-- The file lock of the folder proves that its earlier processes are dead, also those killed in their orderly end.
WITH dead AS (
    UPDATE processes SET stopped_at = coalesce(stopped_at, mindroom_now())
    WHERE process_id <> $1 AND boot_id = $2 AND data_folder = $3 AND host = $4
      AND (stopped_at IS NULL OR process_id IN (SELECT owner FROM principal_beat))
    RETURNING process_id
)
UPDATE principal_beat SET owner = NULL, expires_at = '-infinity' WHERE owner IN (SELECT process_id FROM dead)

-- name: end_process
-- An orderly end begins: the others count without this process.
UPDATE processes SET stopped_at = mindroom_now() WHERE process_id = $1
