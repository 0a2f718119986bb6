-- name: add_kind
INSERT INTO taskmill_kind (queue, type, priority) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: kind
SELECT id FROM taskmill_kind WHERE queue = ? AND type = ? AND priority = ?;

-- name: count
INSERT INTO taskmill_count (kind, state, block, tasks, oldest) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET tasks = tasks + excluded.tasks, oldest = CASE tasks WHEN 0 THEN excluded.oldest ELSE min(oldest, excluded.oldest) END;

-- name: count_left
UPDATE taskmill_count SET tasks = tasks - ? WHERE kind = ? AND state = ? AND block = ? RETURNING tasks, kind, state, block;

-- name: forget_block
DELETE FROM taskmill_count WHERE kind = ? AND state = ? AND block = ?;

-- name: span
INSERT INTO taskmill_span (block, first, last) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET first = min(first, excluded.first), last = max(last, excluded.last)
WHERE first > excluded.first OR last < excluded.last - ?;

-- name: any_age
-- The clock was set back and ages with it: nothing is known of who is oldest.
UPDATE taskmill_count SET oldest = 0 WHERE kind IN (SELECT id FROM taskmill_kind) AND state = 0 AND block = -1;
