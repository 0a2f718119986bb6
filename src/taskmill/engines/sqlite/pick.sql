-- name: plain
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta, t.state
FROM taskmill_task t INDEXED BY taskmill_task_plain JOIN taskmill_body b USING (seq)
WHERE t.lane = ?1 AND t.lane < 0 AND t.priority = ?2 AND t.state <= 2 AND t.ready_at <= ?3 AND (t.ready_at, t.seq) > (?4, ?5)
ORDER BY t.ready_at, t.seq LIMIT ?6;

-- name: lane
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta, t.state
FROM taskmill_task t INDEXED BY taskmill_task_lane JOIN taskmill_body b USING (seq)
WHERE t.lane = ?1 AND t.lane > 0 AND t.state = 0 AND t.priority = ?2
  AND (t.ready_at, t.seq) > (?3, ?4)
ORDER BY t.ready_at, t.seq LIMIT ?5;

-- name: ordered
SELECT t.seq, t.id, t.type, t.queue, t.priority, t.ready_at, t.version, t.executions, t.failures, t.crashes, t.flags, t.created_at, t.expires_at, t.tenant,
  t.must_end, t.phase, t.lane, b.payload, b.retry, b.timeout, b.max_crashes, b.meta, t.state
FROM taskmill_ordered o JOIN taskmill_task t USING (seq) JOIN taskmill_body b USING (seq) WHERE o.lane = ? ORDER BY o.seq LIMIT 1;

-- name: start
UPDATE taskmill_task SET state = 3, token = ?1, worker = ?2, request = ?3, claimed_at = ?4, updated_at = ?4, started_at = NULL,
  version = version + 1, executions = executions + 1
WHERE seq = ?5;

-- name: extra_size
-- What a task brings along beside its row: steps and signals.
SELECT coalesce((SELECT sum(octet_length(name) + octet_length(value)) FROM taskmill_checkpoint WHERE seq = ?1), 0)
  + coalesce((SELECT sum(octet_length(name) + octet_length(data)) FROM taskmill_signal WHERE seq = ?1), 0);

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

-- name: oldest_lanes
SELECT id, head_at, head_seq FROM taskmill_lane INDEXED BY taskmill_lane_open
WHERE share = ?1 AND top = ?2 AND top IS NOT NULL AND shut IS NULL AND (needs = '' OR needs IN (SELECT value FROM json_each(?3)))
ORDER BY head_at, head_seq LIMIT ?4;

-- name: foreign_lanes
SELECT DISTINCT limits FROM (
  SELECT limits FROM taskmill_lane INDEXED BY taskmill_lane_needs
  WHERE queue = ?1 AND needs <> '' AND top IS NOT NULL AND shut IS NULL AND limits <> '[]' AND needs NOT IN (SELECT value FROM json_each(?2)) LIMIT 100);

-- name: any_lane
SELECT 1 FROM taskmill_lane INDEXED BY taskmill_lane_open WHERE share = ? AND top = ? AND top IS NOT NULL AND shut IS NULL LIMIT 1;

-- name: open_shares
SELECT id, name FROM taskmill_share INDEXED BY taskmill_share_open WHERE queue = ? AND top IS NOT NULL LIMIT 2;
