-- name: ensure
-- A hosted identity with its lease rows; one that exists is left alone.
WITH known AS (
    INSERT INTO principals (name, kind, user_id, device_id, password_sealed) VALUES ($1, 'agent', $2, $3, $4)
    ON CONFLICT (name) DO NOTHING RETURNING principal
), fence AS (
    INSERT INTO principal_fence (principal) SELECT principal FROM known
)
INSERT INTO principal_beat (principal) SELECT principal FROM known

-- name: load
-- A hosted identity with its sealed credentials.
SELECT principal, name, user_id, device_id, password_sealed, access_token_sealed FROM principals WHERE name = $1

-- name: save_session
-- The device and token of a login.
UPDATE principals SET device_id = $2, access_token_sealed = $3, unhealthy_reason = NULL WHERE principal = $1

-- name: forget_token
-- The session is dead: the next login uses this device, the same one or another.
UPDATE principals SET device_id = $2, access_token_sealed = NULL WHERE principal = $1

-- name: unhealthy
-- Why a principal is not served; NULL when it is.
UPDATE principals SET unhealthy_reason = $2 WHERE name = $1 AND unhealthy_reason IS DISTINCT FROM $2
