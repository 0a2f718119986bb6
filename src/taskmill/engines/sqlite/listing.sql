-- name: span_blocks
SELECT block FROM taskmill_span WHERE block <= ?1 AND last >= ?2 AND first < ?3 ORDER BY block DESC;

-- name: kinds
SELECT k.id, k.queue, k.type, s.value FROM taskmill_kind k CROSS JOIN json_each('[0,1,2,3,4,5,6,7]') s
CROSS JOIN taskmill_count c ON c.kind = k.id AND c.state = s.value AND c.block = -1 WHERE c.tasks > 0;

-- name: blocks
SELECT block FROM taskmill_count WHERE kind = ? AND state = ? AND block < ? AND block >= 0 ORDER BY block DESC LIMIT ?;

-- name: running_blocks
SELECT DISTINCT seq >> 10 AS block FROM taskmill_task INDEXED BY taskmill_task_held WHERE state = 3 AND seq >> 10 <= ? ORDER BY block DESC;

-- name: due
SELECT seq FROM taskmill_task INDEXED BY taskmill_task_due
WHERE (state > 0 AND state < 3 OR state = 4) AND (lane < 0 AND state < 3) IN (0, 1) AND ready_at <= ? LIMIT ?;
