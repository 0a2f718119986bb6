-- name: restore_task
INSERT INTO taskmill_task (seq, id, type, queue, tenant, lane, state, priority, ready_at, version, executions, failures, crashes, flags,
  created_at, updated_at, expires_at, finished_at, token, worker, claimed_at, started_at, must_end, phase, progress)
VALUES (:seq, :id, :type, :queue, :tenant, :lane, :state, :priority, :ready_at, :version, :executions, :failures, :crashes, :flags,
  :created_at, :updated_at, :expires_at, :finished_at, :token, :worker, :started_at, :started_at, :must_end, :phase, :progress);

-- name: add_ordered
INSERT INTO taskmill_ordered (lane, seq) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: add_expiry
INSERT INTO taskmill_expiry (at, seq) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: add_body
INSERT INTO taskmill_body (seq, payload, retry, timeout, max_crashes, run_at, meta) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: add_ending
INSERT INTO taskmill_ending (seq, result, error) VALUES (?, ?, ?);

-- name: hold
INSERT INTO taskmill_held (tenant, type, key, seq) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: add_dedupe
INSERT INTO taskmill_dedupe (tenant, type, key, id, hash, until) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: add_tag
INSERT INTO taskmill_tag (name, value, seq) VALUES (?, ?, ?);

-- name: add_checkpoint
INSERT INTO taskmill_checkpoint (seq, name, value) VALUES (?, ?, ?);

-- name: add_signal
INSERT INTO taskmill_signal (seq, number, id, name, data, at) VALUES (?, ?, ?, ?, ?, ?);

-- name: add_attempt
INSERT INTO taskmill_attempt (seq, number, worker, token, started_at, ended_at, outcome, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: add_edge
INSERT INTO taskmill_edge (parent, child, child_id, on_failure, outcome, kept, result, number)
SELECT ?1, ?2, ?3, ?4, ?5, 1, ?6, coalesce((SELECT max(number) FROM taskmill_edge WHERE parent = ?1), 0) + 1 WHERE true ON CONFLICT DO NOTHING;

-- name: mark_waited
UPDATE taskmill_task SET flags = flags | ? WHERE seq = ?;

-- name: checkpoints
SELECT name, value FROM taskmill_checkpoint WHERE seq = (SELECT seq FROM taskmill_task WHERE id = ?) ORDER BY name;

-- name: signals
SELECT number, name, data, id, at FROM taskmill_signal WHERE seq = (SELECT seq FROM taskmill_task WHERE id = ?) ORDER BY number;
