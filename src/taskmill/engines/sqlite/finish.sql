-- name: complete_plain
-- Flags that an end does not care about: ordered (1), its own edges (16), others' edges (32), checkpoints (512). `+state`: not the index on states, but the one on id.
UPDATE taskmill_task SET state = 5, finished_at = ?1, updated_at = ?1, started_at = claimed_at + ?2, version = version + 1
WHERE id = ?3 AND token = ?4 AND worker = ?5 AND +state = 3 AND flags & ~561 = 0
RETURNING token, seq, flags, lane, queue, type, priority;

-- name: complete_known
-- As it was when this process claimed it, down to its flags.
UPDATE taskmill_task SET state = 5, finished_at = ?1, updated_at = ?1, started_at = claimed_at + ?2, version = version + 1
WHERE seq = ?3 AND token = ?4 AND worker = ?5 AND flags = ?6 AND +state = 3;

-- name: add_result
INSERT INTO taskmill_ending (seq, result) VALUES (?, ?) ON CONFLICT DO UPDATE SET result = excluded.result, error = NULL;

-- name: attempt_outcome
SELECT outcome, error ->> '$.code' IS 'lease_lost' FROM taskmill_attempt WHERE seq = ? AND token = ? AND worker = ?;

-- name: max_crashes
SELECT max_crashes FROM taskmill_body WHERE seq = ?;

-- name: signal_names
SELECT name FROM taskmill_signal WHERE seq = ? AND number > ?;

-- name: other_steps
SELECT count(*), coalesce(sum(octet_length(name) + octet_length(value)), 0) FROM taskmill_checkpoint WHERE seq = ? AND name <> ?;

-- name: signal_size
SELECT count(*), coalesce(sum(octet_length(name) + octet_length(data)), 0) FROM taskmill_signal WHERE seq = ?;

-- name: set_started
UPDATE taskmill_task SET started_at = claimed_at + ? WHERE seq = ?;

-- name: save_checkpoint
INSERT INTO taskmill_checkpoint (seq, name, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value;

-- name: save_progress
UPDATE taskmill_task SET flags = ?, progress = coalesce(?, progress), phase = coalesce(?, phase), version = version + 1, updated_at = ? WHERE seq = ?;

-- name: sent_signal
SELECT number FROM taskmill_signal WHERE seq = ? AND id = ?;

-- name: add_signal
INSERT INTO taskmill_signal (seq, number, id, name, data, at)
SELECT ?1, coalesce((SELECT max(number) FROM taskmill_signal WHERE seq = ?1), 0) + 1, ?2, ?3, ?4, ?5 RETURNING number;

-- name: set_flags
UPDATE taskmill_task SET flags = ?, version = version + 1, updated_at = ? WHERE seq = ?;

-- name: awaits
SELECT awaits FROM taskmill_task WHERE seq = ?;

-- name: is_known
SELECT 1 FROM taskmill_known WHERE id = ? AND until > ?;
