-- name: tasks
SELECT id, seq, state, flags FROM taskmill_task WHERE id IN (SELECT value FROM json_each(?));

-- name: known
SELECT id, state FROM taskmill_known WHERE id IN (SELECT value FROM json_each(?)) AND until > ?;

-- name: add_edge
INSERT INTO taskmill_edge (parent, child, child_id, on_failure, outcome, number)
SELECT ?1, ?2, ?3, ?4, ?5, coalesce((SELECT max(number) FROM taskmill_edge WHERE parent = ?1), 0) + 1 WHERE true ON CONFLICT DO NOTHING RETURNING id;

-- name: raise_edges
UPDATE taskmill_task SET open_edges = open_edges + ?, flags = flags | ? WHERE seq = ?;

-- name: mark_waited
UPDATE taskmill_task SET flags = flags | ? WHERE seq = ?;

-- name: any_coming
SELECT 1 FROM taskmill_edge INDEXED BY taskmill_edge_coming WHERE child = 0 LIMIT 1;

-- name: coming
SELECT DISTINCT child_id FROM taskmill_edge INDEXED BY taskmill_edge_coming WHERE child = 0 AND child_id IN (SELECT value FROM json_each(?));

-- name: came
UPDATE taskmill_edge SET child = ?1 WHERE id IN (SELECT id FROM taskmill_edge INDEXED BY taskmill_edge_coming WHERE child = 0 AND child_id = ?2);

-- name: open_waits
SELECT t.id, e.child_id FROM taskmill_task t JOIN taskmill_edge e INDEXED BY taskmill_edge_open ON e.parent = t.seq AND e.outcome IS NULL
WHERE t.id IN (SELECT value FROM json_each(?)) LIMIT ?;

-- name: row
SELECT seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority
FROM taskmill_task WHERE seq = ?;

-- name: failed_edge
SELECT 1 FROM taskmill_edge WHERE parent = ? AND outcome IN (6, 7) AND on_failure = 0 LIMIT 1;

-- name: no_open_edges
UPDATE taskmill_task SET open_edges = 0 WHERE seq = ?;

-- name: waiting
-- Without a deadline, and which of them nothing will wake: no open edge, no seal (64), no signal (128).
SELECT t.seq, t.flags & 192 = 0 AND NOT EXISTS (SELECT 1 FROM taskmill_edge e INDEXED BY taskmill_edge_open WHERE e.parent = t.seq AND e.outcome IS NULL)
FROM taskmill_task t INDEXED BY taskmill_task_due WHERE t.state = 4 AND (t.lane < 0 AND t.state < 3) = 0 AND t.ready_at = 4611686018427387904 AND t.seq > ? ORDER BY t.seq LIMIT ?;
