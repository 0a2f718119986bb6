-- name: beat_table
CREATE TABLE IF NOT EXISTS beat (worker TEXT PRIMARY KEY, at INTEGER NOT NULL, boot TEXT NOT NULL) WITHOUT ROWID;

-- name: mark_table
CREATE TABLE IF NOT EXISTS mark (one INTEGER PRIMARY KEY CHECK (one = 1), at INTEGER NOT NULL, fair_since INTEGER NOT NULL, boot TEXT NOT NULL);

-- name: term_table
CREATE TABLE IF NOT EXISTS term (role TEXT PRIMARY KEY, holder TEXT NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, boot TEXT NOT NULL) WITHOUT ROWID;

-- name: clock_table
CREATE TABLE IF NOT EXISTS clock (one INTEGER PRIMARY KEY CHECK (one = 1), wall INTEGER NOT NULL, settled INTEGER NOT NULL);

-- name: wall
SELECT wall, settled FROM clock;

-- name: set_wall
INSERT INTO clock (one, wall, settled) VALUES (1, ?, ?) ON CONFLICT DO UPDATE SET wall = excluded.wall, settled = excluded.settled;

-- name: beat
INSERT INTO beat (worker, at, boot) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET at = excluded.at, boot = excluded.boot;

-- name: beats
SELECT worker, at FROM beat WHERE boot = ?;

-- name: forget
DELETE FROM beat WHERE worker = ?;

-- name: last_mark
SELECT at, fair_since FROM mark WHERE boot = ?;

-- name: mark
INSERT INTO mark (one, at, fair_since, boot) VALUES (1, ?, ?, ?)
ON CONFLICT DO UPDATE SET at = excluded.at, fair_since = excluded.fair_since, boot = excluded.boot;

-- name: renew
UPDATE term SET at = ? WHERE role = ? AND holder = ? AND number = ? AND boot = ? AND at > ? RETURNING number;

-- name: led
SELECT 1 FROM term WHERE role = ? AND holder <> ? AND boot = ? AND at > ?;

-- name: runs
SELECT 1 FROM term WHERE role = ? AND holder = ? AND number = ? AND boot = ? AND at > ?;

-- name: lead
INSERT INTO term (role, holder, number, at, boot) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET holder = excluded.holder, number = excluded.number, at = excluded.at, boot = excluded.boot WHERE excluded.number >= number;

-- name: resign
DELETE FROM term WHERE role = ? AND holder = ? AND number = ?;
