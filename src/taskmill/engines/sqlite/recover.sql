-- name: held_by
SELECT seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority
FROM taskmill_task INDEXED BY taskmill_task_held WHERE worker = ? AND state = 3 LIMIT ?;

-- name: held_up_to
SELECT seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority
FROM taskmill_task INDEXED BY taskmill_task_held WHERE worker = ? AND request <= ? AND state = 3;

-- name: drop_worker
DELETE FROM taskmill_worker WHERE id = ? RETURNING id;

-- name: due_expiries
SELECT at, seq FROM taskmill_expiry WHERE at <= ? ORDER BY at, seq LIMIT ?;

-- name: drop_expiry
DELETE FROM taskmill_expiry WHERE at = ? AND seq = ?;

-- name: add_expiry
INSERT INTO taskmill_expiry (at, seq) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: row
SELECT seq, id, type, queue, tenant, lane, state, ready_at, version, executions, failures, crashes, flags, open_edges, token, worker, claimed_at, must_end, priority
FROM taskmill_task WHERE seq = ?;

-- name: first_moving
SELECT type, after FROM taskmill_moving LIMIT 1;

-- name: advance_moving
UPDATE taskmill_moving SET after = ? WHERE type = ?;

-- name: drop_moving
DELETE FROM taskmill_moving WHERE type = ?;

-- name: plain_of_type
SELECT t.seq, t.lane, t.state, b.payload, t.tenant, b.meta, t.queue, t.priority, t.ready_at FROM taskmill_task t INDEXED BY taskmill_task_type JOIN taskmill_body b USING (seq)
WHERE t.type = ? AND t.seq > ? ORDER BY t.seq LIMIT ?;

-- name: set_meta
UPDATE taskmill_body SET meta = ? WHERE seq = ?;

-- name: move
UPDATE taskmill_task SET lane = ?1, state = CASE WHEN ready_at <= ?2 THEN 0 ELSE state END WHERE seq = ?3;

-- name: old
SELECT t.seq, t.id, t.version, t.created_at, t.flags FROM taskmill_task t INDEXED BY taskmill_task_ended
WHERE state = ?1 AND state >= 5 AND finished_at <= ?2
  AND NOT EXISTS (SELECT 1 FROM taskmill_outbox o WHERE o.subject = t.id) AND NOT EXISTS (SELECT 1 FROM taskmill_falling f WHERE f.seq = t.seq)
ORDER BY finished_at LIMIT ?3;

-- name: with_results
SELECT t.seq, t.finished_at, (SELECT e.result IS NOT NULL FROM taskmill_ending e WHERE e.seq = t.seq) AS stored,
  EXISTS (SELECT 1 FROM taskmill_outbox o WHERE o.subject = t.id) OR EXISTS (SELECT 1 FROM taskmill_falling f WHERE f.seq = t.seq) AS owes
FROM taskmill_task t INDEXED BY taskmill_task_ended
WHERE state = 5 AND state >= 5 AND finished_at >= ?1 AND (finished_at, seq) > (?1, ?2) AND finished_at <= ?3 ORDER BY finished_at, seq LIMIT ?4;

-- name: drop_result
UPDATE taskmill_ending SET result = NULL WHERE seq = ?;

-- name: body
SELECT payload, meta FROM taskmill_body WHERE seq = ?;

-- name: add_known
INSERT INTO taskmill_known (id, state, version, hash, until) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET state = excluded.state, version = excluded.version, hash = excluded.hash, until = excluded.until;

-- name: drop_tag
DELETE FROM taskmill_tag WHERE name = ? AND value = ? AND seq = ?;

-- name: keep_results
UPDATE taskmill_edge SET kept = 1, result = (SELECT result FROM taskmill_ending WHERE seq = ?1)
WHERE child = ?1 AND outcome IS NOT NULL AND NOT kept AND EXISTS (SELECT 1 FROM taskmill_task t WHERE t.seq = taskmill_edge.parent AND t.state <= 4);

-- name: drop_ending
DELETE FROM taskmill_ending WHERE seq = ?;

-- name: drop_edges
DELETE FROM taskmill_edge WHERE parent = ?;

-- name: drop_attempts
DELETE FROM taskmill_attempt WHERE seq = ?;

-- name: drop_checkpoints
DELETE FROM taskmill_checkpoint WHERE seq = ?;

-- name: drop_body
DELETE FROM taskmill_body WHERE seq = ?;

-- name: drop_task
DELETE FROM taskmill_task WHERE seq = ? RETURNING queue, type, priority;

-- name: forget_known
DELETE FROM taskmill_known WHERE id IN (SELECT id FROM taskmill_known WHERE until <= ?1 LIMIT ?2) RETURNING 1;

-- name: forget_dedupe
DELETE FROM taskmill_dedupe WHERE (tenant, type, key) IN (
  SELECT d.tenant, d.type, d.key FROM taskmill_dedupe d LEFT JOIN taskmill_task t ON t.id = d.id WHERE d.until <= ?1 AND (t.state IS NULL OR t.state >= 5) LIMIT ?2)
RETURNING 1;

-- name: forget_taken
DELETE FROM taskmill_taken WHERE id IN (SELECT id FROM taskmill_taken WHERE until <= ?1 LIMIT ?2) RETURNING 1;

-- name: forget_lanes
DELETE FROM taskmill_lane WHERE id IN (
  SELECT l.id FROM taskmill_lane l INDEXED BY taskmill_lane_idle WHERE l.top IS NULL
    AND NOT EXISTS (SELECT 1 FROM taskmill_task t INDEXED BY taskmill_task_asleep WHERE t.lane = l.id AND t.lane > 0 AND t.state > 0 AND t.state < 5 AND t.state <> 3)
    AND l.id NOT IN (SELECT t.lane FROM taskmill_task t INDEXED BY taskmill_task_held WHERE t.state = 3) LIMIT ?)
RETURNING 1;

-- name: forget_shares
DELETE FROM taskmill_share WHERE id IN (
  SELECT s.id FROM taskmill_share s WHERE s.top IS NULL AND NOT EXISTS (SELECT 1 FROM taskmill_lane l WHERE l.queue = s.queue AND l.share = s.id) LIMIT ?)
RETURNING 1;

-- name: idle_counters
SELECT id, name, (SELECT max(at) FROM taskmill_start s WHERE s.counter = c.id) FROM taskmill_counter c WHERE running = 0 AND idle_at <= ? LIMIT ?;

-- name: set_idle_at
UPDATE taskmill_counter SET idle_at = ? WHERE id = ?;

-- name: forget_starts
DELETE FROM taskmill_start WHERE counter = ?;

-- name: forget_counter
DELETE FROM taskmill_counter WHERE id = ?1
  AND NOT EXISTS (SELECT 1 FROM taskmill_stand WHERE counter IN (?1, -?1))
  AND NOT EXISTS (SELECT 1 FROM taskmill_lane WHERE shut IN (?1, -?1) AND shut IS NOT NULL AND top IS NOT NULL) RETURNING 1;

-- name: newest
SELECT created_at FROM taskmill_task ORDER BY seq DESC LIMIT 1;

-- name: pending_ahead
-- Pending, and by the clock as it was set back not yet ready.
SELECT seq FROM taskmill_task INDEXED BY taskmill_task_plain
WHERE lane = ?1 AND lane < 0 AND priority = ?2 AND state <= 2 AND ready_at > ?3 AND ready_at <= ?4 AND +state = 0 LIMIT ?5;

-- name: pull
UPDATE taskmill_task SET ready_at = min(ready_at - ?1, ?2) WHERE seq = ?3;

-- name: queues
SELECT id FROM taskmill_queue;
