-- name: task
SELECT t.seq, t.id, t.type, t.queue, t.tenant, t.state, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.open_edges,
  t.created_at, t.updated_at, t.expires_at, t.finished_at, t.token, t.worker, t.claimed_at, t.started_at, t.must_end, t.phase, t.progress,
  b.payload, b.retry, b.timeout, b.max_crashes, b.run_at, b.meta, e.result, e.error
FROM taskmill_task t JOIN taskmill_body b USING (seq) LEFT JOIN taskmill_ending e USING (seq) WHERE t.id = ?;

-- name: known
SELECT id, state FROM taskmill_known WHERE id = ? AND until > ?;

-- name: state
SELECT id, state FROM taskmill_task WHERE id = ?;

-- name: last_attempt
SELECT t.seq, t.state, t.executions, t.worker, t.token, t.claimed_at, t.started_at, t.finished_at, e.error
FROM taskmill_task t LEFT JOIN taskmill_ending e USING (seq) WHERE t.id = ?;

-- name: attempts
SELECT number, worker, token, started_at, ended_at, outcome, error FROM taskmill_attempt WHERE seq = ? ORDER BY number, token;

-- name: edges
SELECT e.child_id, e.on_failure, e.outcome, CASE WHEN e.kept THEN e.result ELSE d.result END FROM taskmill_edge e LEFT JOIN taskmill_ending d ON d.seq = e.child AND e.outcome IS NOT NULL
WHERE e.parent = (SELECT seq FROM taskmill_task WHERE id = ?) AND e.number > ? ORDER BY e.number LIMIT ?;

-- name: counts
SELECT k.queue, k.type, k.priority, s.value, c.tasks, c.oldest FROM taskmill_kind k CROSS JOIN json_each('[0,1,2,3,4,5,6,7]') s
CROSS JOIN taskmill_count c ON c.kind = k.id AND c.state = s.value AND c.block = -1 WHERE c.tasks > 0;

-- name: running_counts
SELECT queue, type, priority, count(*) FROM taskmill_task INDEXED BY taskmill_task_held WHERE state = 3 GROUP BY 1, 2, 3;

-- name: due_counts
SELECT queue, type, priority, state, count(*), min(ready_at) FROM taskmill_task INDEXED BY taskmill_task_due
WHERE (state > 0 AND state < 3 OR state = 4) AND (lane < 0 AND state < 3) IN (0, 1) AND ready_at <= ? GROUP BY 1, 2, 3, 4;

-- name: oldest_plain
SELECT ready_at FROM taskmill_task INDEXED BY taskmill_task_plain
WHERE lane = -(SELECT id FROM taskmill_queue WHERE name = ?1) AND lane < 0 AND priority = ?3 AND state <= 2 AND ready_at >= ?4 AND +state = 0 AND type = ?2
ORDER BY ready_at LIMIT 1;

-- name: oldest_in_lanes
SELECT min((SELECT t.ready_at FROM taskmill_task t INDEXED BY taskmill_task_lane
  WHERE t.lane = l.id AND t.lane > 0 AND t.priority = ?3 AND t.state = 0 AND t.type = ?2 AND t.ready_at >= ?4 ORDER BY t.ready_at LIMIT 1))
FROM taskmill_lane l WHERE l.queue = (SELECT id FROM taskmill_queue WHERE name = ?1) AND +l.top IS NOT NULL;

-- name: worker_types
SELECT types FROM taskmill_worker;

-- name: items
SELECT name, operator, value, version FROM taskmill_item WHERE kind = ? ORDER BY name, operator;

-- name: held_by
SELECT id, token, request, flags FROM taskmill_task INDEXED BY taskmill_task_held WHERE worker = ? AND state = 3;

-- name: workers
SELECT id, lease FROM taskmill_worker;

-- name: registered
SELECT id, queues, types, lease, joined_at, info, (SELECT count(*) FROM taskmill_task INDEXED BY taskmill_task_held WHERE worker = w.id AND state = 3),
  (SELECT value FROM taskmill_item WHERE kind = 'worker' AND name = w.id) FROM taskmill_worker w;

-- name: worker
SELECT (SELECT value FROM taskmill_item WHERE kind = 'worker' AND name = w.id) FROM taskmill_worker w WHERE w.id = ?;

-- name: term
SELECT number, holder FROM taskmill_term WHERE role = ?;

-- name: events
SELECT number, kind, subject, version, at, data FROM taskmill_event WHERE number > ? ORDER BY number LIMIT 1000;

-- name: listen_until
UPDATE taskmill_store SET listen_until = max(listen_until, ?);

-- name: last_event
SELECT coalesce(max(number), 0), coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'taskmill_event'), 0) FROM taskmill_event;

-- name: stuck
SELECT id FROM taskmill_task t INDEXED BY taskmill_task_due WHERE t.state = 4 AND (t.lane < 0 AND t.state < 3) = 0 AND t.ready_at = 4611686018427387904 AND t.flags & 192 = 0
  AND NOT EXISTS (SELECT 1 FROM taskmill_edge e INDEXED BY taskmill_edge_open WHERE e.parent = t.seq AND e.outcome IS NULL) LIMIT ?;
