-- name: running
SELECT running FROM taskmill_counter WHERE id = ?;

-- name: set_running
UPDATE taskmill_counter SET running = ?, idle_at = max(idle_at, ?) WHERE id = ?;

-- name: used
SELECT sum(tasks) FROM taskmill_start WHERE counter = ? AND at > ?;

-- name: starts
SELECT at, tasks FROM taskmill_start WHERE counter = ? AND at > ? ORDER BY at;

-- name: newest_start
SELECT max(at) FROM taskmill_start WHERE counter = ?;

-- name: log_start
INSERT INTO taskmill_start (counter, at, tasks) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET tasks = tasks + excluded.tasks;

-- name: forget_starts
DELETE FROM taskmill_start WHERE counter = ? AND at <= ?;

-- name: head
SELECT priority, ready_at, seq FROM taskmill_task INDEXED BY taskmill_task_lane
WHERE lane = ?1 AND lane > 0 AND state = 0 ORDER BY priority DESC, ready_at, seq LIMIT 1;

-- name: ordered_head
SELECT t.state, t.priority, t.ready_at, t.seq, t.type FROM taskmill_ordered o JOIN taskmill_task t USING (seq) WHERE o.lane = ? ORDER BY o.seq LIMIT 1;

-- name: set_head
-- One that got better leaves the limit it stood at: if there is room, it belongs to the best. Looked at in vain, it goes back.
UPDATE taskmill_lane SET shut = CASE WHEN (?1, -?2, -?3) > (top, -head_at, -head_seq) THEN NULL ELSE shut END, top = ?1, head_at = ?2, head_seq = ?3
WHERE id = ?4 AND (top IS NOT ?1 OR head_at IS NOT ?2 OR head_seq IS NOT ?3) RETURNING id;

-- name: set_ordered_head
UPDATE taskmill_lane SET shut = CASE WHEN (?1, -?2, -?3) > (top, -head_at, -head_seq) THEN NULL ELSE shut END, top = ?1, head_at = ?2, head_seq = ?3, needs = ?4
WHERE id = ?5 AND (top IS NOT ?1 OR head_at IS NOT ?2 OR head_seq IS NOT ?3) RETURNING id;

-- name: empty_lane
UPDATE taskmill_lane SET top = NULL, head_at = NULL, head_seq = NULL, shut = NULL WHERE id = ? AND top IS NOT NULL RETURNING id;

-- name: share_top
SELECT max(top) FROM taskmill_lane INDEXED BY taskmill_lane_open WHERE share = ? AND top IS NOT NULL AND shut IS NULL;

-- name: set_share_top
UPDATE taskmill_share SET top = ?1 WHERE id = ?2 AND top IS NOT ?1;

-- name: shut
UPDATE taskmill_lane SET shut = ? WHERE id = ?;

-- name: shift_starts
-- Every row moves by the same amount, so none can meet another: the oldest first, towards the past.
UPDATE taskmill_start SET at = at - ?1 WHERE counter = ?2;

-- name: wake_at
UPDATE taskmill_counter SET wake_at = ? WHERE id = ?;

-- name: any_stand
SELECT 1 FROM taskmill_stand LIMIT 1;

-- name: standing_queues
-- The second: lanes that are under the cap alone.
SELECT DISTINCT counter, queue FROM taskmill_stand WHERE counter IN (?, ?);

-- name: best_shares
SELECT share FROM taskmill_stand WHERE counter = ? AND queue = ? ORDER BY top DESC, turn, share LIMIT ?;

-- name: standing_top
SELECT max(top) FROM taskmill_lane INDEXED BY taskmill_lane_shut WHERE shut = ? AND share = ? AND shut IS NOT NULL AND top IS NOT NULL;

-- name: stand
INSERT INTO taskmill_stand (counter, share, queue, turn, top) SELECT ?1, id, queue, turn, ?3 FROM taskmill_share WHERE id = ?2
ON CONFLICT DO UPDATE SET top = excluded.top, turn = excluded.turn;

-- name: stand_no_more
DELETE FROM taskmill_stand WHERE counter = ? AND share = ?;

-- name: advance_head
UPDATE taskmill_lane SET head_at = ?, head_seq = ? WHERE id = ?;

-- name: open_best
UPDATE taskmill_lane SET shut = NULL WHERE id IN (
  SELECT id FROM taskmill_lane INDEXED BY taskmill_lane_shut
  WHERE shut = ?1 AND share = ?2 AND shut IS NOT NULL AND top IS NOT NULL ORDER BY top DESC, head_at, head_seq LIMIT ?3)
RETURNING id;

-- name: due
SELECT lane, id, type, queue, tenant, version + (state = 4), seq, priority, state, ready_at FROM taskmill_task INDEXED BY taskmill_task_due
WHERE (state > 0 AND state < 3 OR state = 4) AND (lane < 0 AND state < 3) = ?1 AND ready_at <= ?2 ORDER BY ready_at LIMIT ?3;

-- name: make_due
-- A delayed task that came due reads as pending already: only the end of a wait is a change that others can see.
UPDATE taskmill_task SET version = version + (state = 4), ready_at = CASE state WHEN 4 THEN ?1 ELSE ready_at END, state = 0, flags = flags & ~128, awaits = NULL
WHERE seq = ?2;

-- name: passed_windows
SELECT id, name FROM taskmill_counter INDEXED BY taskmill_counter_wake WHERE wake_at IS NOT NULL AND wake_at <= ? ORDER BY wake_at LIMIT ?;

-- name: next_due
SELECT min(ready_at) FROM taskmill_task INDEXED BY taskmill_task_due WHERE (state > 0 AND state < 3 OR state = 4) AND (lane < 0 AND state < 3) = 0
UNION ALL SELECT min(wake_at) FROM taskmill_counter INDEXED BY taskmill_counter_wake WHERE wake_at IS NOT NULL;
