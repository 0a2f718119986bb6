-- name: item
SELECT value, version FROM taskmill_item WHERE kind = ? AND name = ? AND operator = ?;

-- name: declared
SELECT value, version, app_version FROM taskmill_item WHERE kind = ? AND name = ? AND operator = 0;

-- name: put
INSERT INTO taskmill_item (kind, name, operator, value, version, app, app_version) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET value = excluded.value, version = excluded.version, app = excluded.app, app_version = excluded.app_version;

-- name: drop
DELETE FROM taskmill_item WHERE kind = ? AND name = ? AND operator = 1;

-- name: drop_fired
DELETE FROM taskmill_item WHERE kind = 'fired' AND name = ?;

-- name: drop_declared
DELETE FROM taskmill_item WHERE kind = ? AND name = ? AND operator = 0 AND app_version <= ?;

-- name: shut_counters
SELECT c.name FROM taskmill_counter c WHERE (c.name = ?1 OR c.name >= ?1 || ':' AND c.name < ?1 || ';')
  AND EXISTS (SELECT 1 FROM taskmill_stand s WHERE s.counter IN (c.id, -c.id));

-- name: add_moving
INSERT INTO taskmill_moving (type) VALUES (?) ON CONFLICT DO UPDATE SET after = 0;

-- name: schedules_of
SELECT name, app_version FROM taskmill_item WHERE kind = 'schedule' AND operator = 0 AND app = ?;

-- name: join
INSERT INTO taskmill_worker (id, queues, types, lease, joined_at, info) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET queues = excluded.queues, types = excluded.types, lease = excluded.lease, info = excluded.info;

-- name: lead
INSERT INTO taskmill_term (role, number, holder) VALUES (?, max(?, 1), ?)
ON CONFLICT DO UPDATE SET number = max(number + 1, excluded.number), holder = excluded.holder RETURNING number;

-- name: resign
UPDATE taskmill_term SET holder = NULL WHERE role = ? AND number = ? AND holder = ? RETURNING role;

-- name: schedule
SELECT value, version FROM taskmill_item WHERE kind = 'schedule' AND name = ? ORDER BY operator DESC LIMIT 1;

-- name: request_cancel
UPDATE taskmill_task SET flags = flags | 2, version = version + 1, updated_at = ? WHERE seq = ? AND NOT flags & 2;

-- name: taken
SELECT granted, retry_at FROM taskmill_taken WHERE id = ?;

-- name: remember_taken
INSERT INTO taskmill_taken (id, granted, retry_at, until) VALUES (?, ?, ?, ?);

-- name: cut_outbox
DELETE FROM taskmill_outbox WHERE kind = ? AND number <= ?;

-- name: outbox
SELECT number, kind, subject, data, at FROM taskmill_outbox WHERE kind = ? AND number > ? ORDER BY number LIMIT ?;

-- name: is_known
SELECT 1 FROM taskmill_known WHERE id = ? AND until > ?;

-- name: restore_task
INSERT INTO taskmill_task (seq, id, type, queue, tenant, lane, state, priority, ready_at, version, executions, failures, crashes, flags, open_edges,
  created_at, updated_at, expires_at, finished_at, token, worker, claimed_at, started_at, must_end, phase, progress)
VALUES (:seq, :id, :type, :queue, :tenant, :lane, :state, :priority, :ready_at, :version, :executions, :failures, :crashes, :flags, :open_edges,
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

-- name: seq
SELECT seq FROM taskmill_task WHERE id = ?;

-- name: add_edge
INSERT INTO taskmill_edge (parent, child, child_id, on_failure, outcome, kept, result) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: mark_waited
UPDATE taskmill_task SET flags = flags | ? WHERE seq = ?;
