-- name: store
SELECT token, seq, generation, listen_until FROM taskmill_store;

-- name: set_store
UPDATE taskmill_store SET token = ?, seq = ?;

-- name: raise_generation
UPDATE taskmill_store SET generation = generation + 1;

-- name: settings
-- An operator's row comes after the declared one of the same name, so it wins.
SELECT kind, name, value FROM taskmill_item WHERE kind IN ('type', 'limit', 'queue', 'pause', 'outbox') ORDER BY kind, name, operator;

-- name: add_event
INSERT INTO taskmill_event (kind, subject, version, at, data) VALUES (?, ?, ?, ?, ?);

-- name: cut_events
DELETE FROM taskmill_event WHERE number <= (SELECT max(number) FROM taskmill_event) - ?;

-- name: add_outbox
INSERT INTO taskmill_outbox (kind, subject, data, at) VALUES (?, ?, ?, ?);

-- name: add_queue
INSERT INTO taskmill_queue (name) VALUES (?) ON CONFLICT DO NOTHING;

-- name: queue_id
SELECT id FROM taskmill_queue WHERE name = ?;

-- name: queue_name
SELECT name FROM taskmill_queue WHERE id = ?;

-- name: add_share
INSERT INTO taskmill_share (queue, name) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- name: share_id
SELECT id FROM taskmill_share WHERE queue = ? AND name = ?;

-- name: share_name
SELECT name FROM taskmill_share WHERE id = ?;

-- name: add_lane
INSERT INTO taskmill_lane (queue, share, limits, order_key, type, needs) VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT DO NOTHING;

-- name: lane_id
SELECT id FROM taskmill_lane WHERE queue = ? AND share = ? AND limits = ? AND order_key = ? AND type = ?;

-- name: lane
SELECT queue, share, limits, order_key, type FROM taskmill_lane WHERE id = ?;

-- name: add_counter
INSERT INTO taskmill_counter (name) VALUES (?) ON CONFLICT DO NOTHING;

-- name: counter_id
SELECT id FROM taskmill_counter WHERE name = ?;

-- name: term
SELECT number, holder FROM taskmill_term WHERE role = ?;
