-- name: worker_types
SELECT types, request FROM taskmill_worker WHERE id = ?;

-- name: note_request
UPDATE taskmill_worker SET request = ? WHERE id = ?;

-- name: held
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta, t.token, t.claimed_at
FROM taskmill_task t INDEXED BY taskmill_task_held JOIN taskmill_body b USING (seq) WHERE t.worker = ? AND t.request = ? AND t.state = 3 ORDER BY t.token;

-- name: plain
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta
FROM taskmill_task t INDEXED BY taskmill_task_plain JOIN taskmill_body b USING (seq)
WHERE t.lane = ?1 AND t.lane < 0 AND t.priority = ?2 AND t.state <= 2 AND t.ready_at <= ?3 AND (t.ready_at, t.seq) > (?4, ?5)
ORDER BY t.ready_at, t.seq LIMIT ?6;

-- name: lane
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta
FROM taskmill_task t INDEXED BY taskmill_task_lane JOIN taskmill_body b USING (seq)
WHERE t.lane = ?1 AND t.lane > 0 AND t.state <= 4 AND t.state = 0 AND t.priority = ?2 ORDER BY t.ready_at, t.seq LIMIT ?3;

-- name: ordered
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta
FROM taskmill_task t INDEXED BY taskmill_task_order JOIN taskmill_body b USING (seq) WHERE t.lane = ? AND t.flags & 1 AND t.state <= 4 ORDER BY t.seq LIMIT 1;

-- name: start
UPDATE taskmill_task SET state = 3, token = ?1, worker = ?2, request = ?3, claimed_at = ?4, updated_at = ?4, started_at = NULL,
  version = version + 1, executions = executions + 1
WHERE seq = ?5;

-- name: free_unique
DELETE FROM taskmill_held WHERE (tenant, type, key) IN (
  SELECT t.tenant, t.type, b.meta ->> '$.unique.key' FROM taskmill_task t JOIN taskmill_body b USING (seq) WHERE t.seq = ?1) AND seq = ?1;

-- name: move
UPDATE taskmill_task SET lane = ?1, state = CASE WHEN ready_at <= ?2 THEN 0 ELSE state END WHERE seq = ?3;

-- name: shares
SELECT id, turn, name FROM taskmill_share INDEXED BY taskmill_share_open WHERE queue = ?1 AND top IS NOT NULL AND top = ?2 ORDER BY turn, id;

-- name: turn
SELECT turn FROM taskmill_share WHERE id = ?;

-- name: set_turn
UPDATE taskmill_share SET turn = ? WHERE id = ?;

-- name: set_stand_turn
UPDATE taskmill_stand SET turn = ? WHERE share = ?;

-- name: queue_turn
SELECT turn FROM taskmill_queue WHERE id = ?;

-- name: set_queue_turn
UPDATE taskmill_queue SET turn = ? WHERE id = ?;

-- name: levels
SELECT levels FROM taskmill_queue WHERE id = ?;

-- name: set_levels
UPDATE taskmill_queue SET levels = ? WHERE id = ?;

-- name: oldest_lane
SELECT id, head_at, head_seq FROM taskmill_lane INDEXED BY taskmill_lane_open
WHERE share = ?1 AND top = ?2 AND top IS NOT NULL AND shut IS NULL AND (needs = '' OR needs IN (SELECT value FROM json_each(?3)))
ORDER BY head_at, head_seq LIMIT 1;

-- name: foreign_lanes
SELECT DISTINCT limits FROM (
  SELECT limits FROM taskmill_lane INDEXED BY taskmill_lane_needs
  WHERE queue = ?1 AND needs <> '' AND top IS NOT NULL AND shut IS NULL AND limits <> '[]' AND needs NOT IN (SELECT value FROM json_each(?2)) LIMIT 100);

-- name: any_lane
SELECT 1 FROM taskmill_lane INDEXED BY taskmill_lane_open WHERE share = ? AND top = ? AND top IS NOT NULL AND shut IS NULL LIMIT 1;

-- name: next_plain
SELECT ready_at FROM taskmill_task INDEXED BY taskmill_task_plain WHERE lane = ?1 AND lane < 0 AND priority = ?2 AND state <= 2 AND ready_at > ?3 ORDER BY ready_at LIMIT 1;

-- name: checkpoints
SELECT name, value FROM taskmill_checkpoint WHERE seq = ?;

-- name: signals
SELECT number, name, data, id, at FROM taskmill_signal WHERE seq = ? ORDER BY number;

-- name: results
SELECT e.child_id, e.on_failure, e.outcome, CASE WHEN e.kept THEN e.result ELSE d.result END FROM taskmill_edge e LEFT JOIN taskmill_ending d ON d.seq = e.child AND e.outcome IS NOT NULL
WHERE e.parent = ? ORDER BY e.id LIMIT ?;
