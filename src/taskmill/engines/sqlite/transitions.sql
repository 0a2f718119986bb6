-- name: row
SELECT seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority
FROM taskmill_task WHERE id = ?;

-- name: set_ready
-- ?8: the lease stays known, because its own holder ended it; else it is void.
UPDATE taskmill_task SET state = ?1, ready_at = ?2, failures = ?3, crashes = ?4, executions = ?5, flags = ?6, must_end = ?7,
  token = CASE WHEN ?8 THEN token END, worker = CASE WHEN ?8 THEN worker END, request = NULL, awaits = NULL, finished_at = NULL,
  started_at = NULL, version = version + 1, updated_at = ?9
WHERE seq = ?10;

-- name: set_waiting
UPDATE taskmill_task SET state = 4, ready_at = ?1, flags = ?2, open_edges = ?3, awaits = ?4, started_at = NULL, version = version + 1, updated_at = ?5 WHERE seq = ?6;

-- name: set_ended
-- ?8: an attempt ended it; its lease stays in the row as the record of that attempt.
UPDATE taskmill_task SET state = ?1, finished_at = ?2, updated_at = ?2, failures = ?3, crashes = ?4, executions = ?5, flags = ?6, phase = coalesce(?7, phase), awaits = NULL,
  token = CASE WHEN ?8 THEN token END, worker = CASE WHEN ?8 THEN worker END, started_at = coalesce(claimed_at + ?9, started_at), version = version + 1
WHERE seq = ?10;

-- name: set_ending
INSERT INTO taskmill_ending (seq, result, error) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET result = excluded.result, error = excluded.error;

-- name: add_attempt
INSERT INTO taskmill_attempt (seq, number, worker, token, started_at, ended_at, outcome, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: run_at
SELECT run_at FROM taskmill_body WHERE seq = ?;

-- name: release_unique
DELETE FROM taskmill_held WHERE (tenant, type, key) IN (
  SELECT t.tenant, t.type, b.meta ->> '$.unique.key' FROM taskmill_task t JOIN taskmill_body b USING (seq) WHERE t.seq = ?1) AND seq = ?1;

-- name: forget_signals
DELETE FROM taskmill_signal WHERE seq = ?;

-- name: leave_order
DELETE FROM taskmill_ordered WHERE lane = ? AND seq = ?;

-- name: open_edges
SELECT id, parent, child, on_failure FROM taskmill_edge WHERE child = ? AND outcome IS NULL AND id > ? ORDER BY id LIMIT ?;

-- name: set_outcome
UPDATE taskmill_edge SET outcome = ? WHERE id = ?;

-- name: lower_edges
UPDATE taskmill_task SET open_edges = open_edges - ? WHERE seq = ?
RETURNING seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority;

-- name: add_falling
INSERT INTO taskmill_falling (seq, state) VALUES (?, ?) ON CONFLICT DO UPDATE SET state = excluded.state, after = 0;

-- name: first_falling
SELECT seq, state, after FROM taskmill_falling ORDER BY seq LIMIT 1;

-- name: drop_falling
DELETE FROM taskmill_falling WHERE seq = ?;

-- name: advance_falling
UPDATE taskmill_falling SET after = ? WHERE seq = ?;
