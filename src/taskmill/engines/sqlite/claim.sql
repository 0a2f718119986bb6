-- name: worker_types
SELECT types, request FROM taskmill_worker WHERE id = ?;

-- name: note_request
UPDATE taskmill_worker SET request = ? WHERE id = ?;

-- name: held
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta, t.state, t.token, t.claimed_at
FROM taskmill_task t INDEXED BY taskmill_task_held JOIN taskmill_body b USING (seq) WHERE t.worker = ? AND t.request = ? AND t.state = 3 ORDER BY t.token;

-- name: next_plain
SELECT ready_at FROM taskmill_task INDEXED BY taskmill_task_plain WHERE lane = ?1 AND lane < 0 AND priority = ?2 AND state <= 2 AND ready_at > ?3 ORDER BY ready_at LIMIT 1;

-- name: checkpoints
SELECT name, value FROM taskmill_checkpoint WHERE seq = ?;

-- name: signals
SELECT number, name, data, id, at FROM taskmill_signal WHERE seq = ? ORDER BY number;

-- name: results
SELECT e.child_id, e.on_failure, e.outcome, CASE WHEN e.kept THEN e.result ELSE d.result END FROM taskmill_edge e LEFT JOIN taskmill_ending d ON d.seq = e.child AND e.outcome IS NOT NULL
WHERE e.parent = ? ORDER BY e.number LIMIT ?;
