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
