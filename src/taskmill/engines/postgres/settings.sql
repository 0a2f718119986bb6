-- name: put
SELECT done, version FROM {schema}.put_setting($1, $2, $3, $4, $5, $6);

-- name: drop
SELECT done, version FROM {schema}.drop_setting($1, $2, $3, $4);

-- name: items
-- An operator's setting stands over the declared one of the same name.
SELECT DISTINCT ON (name) name, value, version, operator FROM {schema}.item WHERE kind = $1 ORDER BY name, operator DESC;

-- name: take
SELECT rate, granted, retry_at FROM {schema}.take($1, $2, $3, $4);

-- name: horizon
SELECT last, writers FROM {schema}.horizon($1, $2);

-- name: outbox
SELECT number, subject, data, at FROM {schema}.read_outbox($1, $2, $3, $4, $5, $6, $7);

-- name: schedule
SELECT value, version FROM {schema}.item WHERE kind = 'schedule' AND name = $1 ORDER BY operator DESC LIMIT 1 FOR UPDATE;

-- name: fired
SELECT value, version FROM {schema}.item WHERE kind = 'fired' AND name = $1 AND NOT operator;

-- name: set_fired
INSERT INTO {schema}.item (kind, name, operator, value, version) VALUES ('fired', $1, false, $2, 1)
ON CONFLICT (kind, name, operator) DO UPDATE SET value = excluded.value, version = {schema}.item.version + 1;

-- name: overlap
-- Whether the task before still lives, and the new one is not there yet.
SELECT EXISTS (SELECT 1 FROM {schema}.task WHERE id = $1) AND NOT EXISTS (SELECT 1 FROM {schema}.body WHERE id = $2);

-- name: replace
SELECT {schema}.replace_last($1, $2);

-- name: tell_fired
SELECT {schema}.tell_fired($1, $2, $3);

-- name: announce
SELECT {schema}.announce_queues($1);

-- name: lanes
-- The rows are held, so that no lane is forgotten before it has its tasks.
SELECT u.place, f.lane FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY u(queue, share, limits, order_key, place),
  LATERAL (SELECT {schema}.lane_of(u.queue, u.share, ARRAY(SELECT json_array_elements_text(u.limits::json)), u.order_key) AS lane) f ORDER BY u.place;

-- name: hold_lanes
SELECT id FROM {schema}.lane WHERE id = ANY ($1::bigint[]) ORDER BY id FOR KEY SHARE;

-- name: known
SELECT id::text FROM {schema}.known WHERE id = ANY ($1::uuid[]) AND until > {schema}.moment($2);

-- name: add_body
INSERT INTO {schema}.body (id, seq, type, queue, tenant, priority, created_at, run_at, expires_at, timeout, max_crashes, retry, meta, tags, payload)
VALUES ($1::uuid, nextval('{schema}.seq'), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::text::jsonb, $14::text::json) ON CONFLICT DO NOTHING RETURNING seq;

-- name: add_task
INSERT INTO {schema}.task (id, seq, lane, type, state, priority, flags, size, version, executions, failures, crashes, open_edges, ready_at, updated_at, expires_at,
  must_end, phase, progress)
VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19);

-- name: add_ended
INSERT INTO {schema}.ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, claimed_at, started_at,
  must_end, phase, progress, result, error, updated_at)
VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10::bigint, $11, $12, $13::bigint, $13::bigint, $14, $15, $16, $17::text::json, $18::text::json, nullif($19::bigint, $10::bigint));

-- name: add_ordered
INSERT INTO {schema}.ordered (lane, seq, id) VALUES ($1, $2, $3::uuid) ON CONFLICT DO NOTHING;

-- name: add_expiry
INSERT INTO {schema}.expiry (at, id) VALUES ($1, $2::uuid) ON CONFLICT DO NOTHING;

-- name: add_held
INSERT INTO {schema}.held (tenant, type, key, id) VALUES ($1, $2, $3, $4::uuid) ON CONFLICT DO NOTHING;

-- name: add_dedupe
INSERT INTO {schema}.dedupe (tenant, type, key, id, hash, until) VALUES ($1, $2, $3, $4::uuid, $5, $6) ON CONFLICT DO NOTHING;

-- name: add_checkpoint
INSERT INTO {schema}.checkpoint (id, name, value) VALUES ($1::uuid, $2, $3) ON CONFLICT DO NOTHING;

-- name: add_signal
INSERT INTO {schema}.signal (id, number, signal_id, name, data, at) VALUES ($1::uuid, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING;

-- name: add_attempt
INSERT INTO {schema}.task_attempts (id, number, worker, token, started_at, ended_at, outcome, error)
VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $8::text::json) ON CONFLICT DO NOTHING;

-- name: add_edge
INSERT INTO {schema}.edge (parent, child, on_failure, outcome, result) VALUES ($1::uuid, $2::uuid, $3, $4, $5::text::json) ON CONFLICT DO NOTHING;

-- name: mark_waited
-- Those for whom others wait, whichever of the two was restored first.
UPDATE {schema}.task SET flags = flags | 32 WHERE flags & 32 = 0 AND (
  id = ANY ($1::uuid[]) AND EXISTS (SELECT 1 FROM {schema}.edge e WHERE e.child = task.id)
  OR id IN (SELECT e.child FROM {schema}.edge e WHERE e.parent = ANY ($1::uuid[])));

-- name: add_late_edges
-- Open edges onto tasks that have ended already.
INSERT INTO {schema}.late_edge (edge) SELECT e.number FROM {schema}.edge e JOIN {schema}.ended d ON d.id = e.child
WHERE (e.parent = ANY ($1::uuid[]) OR e.child = ANY ($1::uuid[])) AND e.outcome IS NULL AND EXISTS (SELECT 1 FROM {schema}.task t WHERE t.id = e.parent)
ON CONFLICT DO NOTHING;

-- name: stir
INSERT INTO {schema}.stir (lane) SELECT DISTINCT l FROM unnest($1::bigint[]) l WHERE l > 0;

-- name: moment
SELECT {schema}.moment($1);

-- name: lift_tokens
SELECT {schema}.lift_tokens($1);
