-- name: known
SELECT state, version FROM taskmill_known WHERE id = ? AND until > ?;

-- name: request_cancel
UPDATE taskmill_task SET flags = flags | ?, version = version + 1, updated_at = ? WHERE seq = ?;

-- name: requeue_facts
SELECT t.opened, e.error, b.meta FROM taskmill_task t JOIN taskmill_body b USING (seq) LEFT JOIN taskmill_ending e USING (seq) WHERE t.seq = ?;

-- name: other_holder
SELECT 1 FROM taskmill_held WHERE tenant = ? AND type = ? AND key = ?;

-- name: hold
INSERT INTO taskmill_held (tenant, type, key, seq) VALUES (?, ?, ?, ?);

-- name: keep_attempt
-- The attempt that ended the task leaves its row, because another may follow.
INSERT INTO taskmill_attempt (seq, number, worker, token, started_at, ended_at, outcome, error)
SELECT seq, executions, worker, token, coalesce(started_at, claimed_at), finished_at, ?2, ?3 FROM taskmill_task WHERE seq = ?1 ON CONFLICT DO NOTHING;

-- name: keep_results
-- An edge that has fallen keeps what it fell with, whatever the child comes to next.
UPDATE taskmill_edge SET kept = 1, result = (SELECT result FROM taskmill_ending WHERE seq = ?1) WHERE child = ?1 AND outcome IS NOT NULL AND NOT kept;

-- name: forget_ending
DELETE FROM taskmill_ending WHERE seq = ?;

-- name: forget_checkpoints
DELETE FROM taskmill_checkpoint WHERE seq = ?;

-- name: open_again
UPDATE taskmill_task SET state = ?1, ready_at = ?2, flags = ?3, lane = ?4, failures = 0, crashes = 0, token = NULL, worker = NULL, request = NULL, claimed_at = NULL,
  started_at = NULL, finished_at = NULL, progress = NULL, must_end = CASE WHEN ?5 THEN NULL ELSE must_end END, phase = CASE WHEN ?5 THEN NULL ELSE phase END,
  expires_at = CASE WHEN expires_at > ?7 THEN expires_at END, opened = ?6, version = version + 1, updated_at = ?7
WHERE seq = ?8;

-- name: add_ordered
INSERT INTO taskmill_ordered (lane, seq) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: add_expiry
INSERT INTO taskmill_expiry (at, seq) SELECT expires_at, seq FROM taskmill_task WHERE seq = ? AND expires_at IS NOT NULL ON CONFLICT DO NOTHING;

-- name: is_falling
SELECT 1 FROM taskmill_falling WHERE seq = ?;

-- name: owed
SELECT 1 FROM taskmill_outbox WHERE subject = ?1 UNION ALL SELECT 1 FROM taskmill_falling WHERE seq = ?2;

-- name: created_at
SELECT created_at FROM taskmill_task WHERE seq = ?;

-- name: cancel_reserved
UPDATE taskmill_known SET state = ? WHERE id = ?;
