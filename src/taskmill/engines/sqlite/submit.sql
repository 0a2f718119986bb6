-- name: any_known
SELECT 1 FROM taskmill_known LIMIT 1;

-- name: add_task
INSERT INTO taskmill_task (seq, id, type, queue, tenant, lane, state, priority, ready_at, flags, created_at, updated_at, expires_at, finished_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_body
INSERT INTO taskmill_body (seq, payload, retry, timeout, max_crashes, run_at, meta) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: add_ordered
INSERT INTO taskmill_ordered (lane, seq) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: add_expiry
INSERT INTO taskmill_expiry (at, seq) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: add_ending
INSERT INTO taskmill_ending (seq, error) VALUES (?, ?);

-- name: add_tag
INSERT INTO taskmill_tag (name, value, seq) VALUES (?, ?, ?);

-- name: payload
SELECT b.payload, t.state, t.flags FROM taskmill_task t JOIN taskmill_body b USING (seq) WHERE t.id = ?;

-- name: known
SELECT state, hash FROM taskmill_known WHERE id = ? AND until > ?;

-- name: add_known
INSERT INTO taskmill_known (id, state, hash, until) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET state = excluded.state, hash = excluded.hash, until = excluded.until;

-- name: forget_known
DELETE FROM taskmill_known WHERE id = ?;

-- name: is_reserved
SELECT 1 FROM taskmill_known WHERE id = ? AND state IS NULL;

-- name: dedupe
SELECT d.id, d.hash, d.until, t.state FROM taskmill_dedupe d LEFT JOIN taskmill_task t ON t.id = d.id WHERE d.tenant = ? AND d.type = ? AND d.key = ?;

-- name: add_dedupe
INSERT INTO taskmill_dedupe (tenant, type, key, id, hash, until) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET id = excluded.id, hash = excluded.hash, until = excluded.until;

-- name: forget_dedupe
DELETE FROM taskmill_dedupe WHERE tenant = ? AND type = ? AND key = ? AND id = ?;

-- name: holder
SELECT t.seq, t.id, t.state, t.lane, t.queue, t.priority FROM taskmill_held h JOIN taskmill_task t USING (seq) WHERE h.tenant = ? AND h.type = ? AND h.key = ?;

-- name: hold
INSERT INTO taskmill_held (tenant, type, key, seq) VALUES (?, ?, ?, ?);

-- name: replace_task
UPDATE taskmill_task SET state = CASE WHEN state = 4 THEN 4 ELSE ?1 END, ready_at = CASE WHEN state = 4 THEN ready_at ELSE ?2 END, priority = ?3,
  version = version + 1, updated_at = ?4 WHERE seq = ?5;

-- name: replace_body
UPDATE taskmill_body SET payload = ?, run_at = ? WHERE seq = ?;

-- name: version
SELECT id, version, type, queue, tenant FROM taskmill_task WHERE seq = ?;




-- name: failed_edge
SELECT 1 FROM taskmill_edge WHERE parent = ? AND outcome IN (?, ?) AND on_failure = 0 LIMIT 1;

-- name: set_state
UPDATE taskmill_task SET state = ?, ready_at = ? WHERE seq = ?;

-- name: row
SELECT seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority
FROM taskmill_task WHERE seq = ?;

-- name: unseal
UPDATE taskmill_task SET flags = flags & ~?1 WHERE id = ?2 AND flags & ?1
RETURNING seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority;

-- name: task
SELECT 1 FROM taskmill_task WHERE id = ?;
