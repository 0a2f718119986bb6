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

-- name: add_bodies
-- Each once, in the order of the batch, but for ids that are known.
INSERT INTO {schema}.body (id, seq, type, queue, tenant, priority, created_at, run_at, expires_at, timeout, max_crashes, retry, meta, tags, payload)
SELECT u.id, nextval('{schema}.seq'), u.type, u.queue, u.tenant, u.priority, u.created_at, u.run_at, u.expires_at, u.timeout, u.max_crashes, u.retry, u.meta, u.tags::jsonb,
  u.payload::json
FROM (SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::integer[],
    $11::text[], $12::text[], $13::text[], $14::text[]) WITH ORDINALITY
    u(id, type, queue, tenant, priority, created_at, run_at, expires_at, timeout, max_crashes, retry, meta, tags, payload, place)
  WHERE (SELECT k.id FROM {schema}.known k WHERE k.id = u.id AND k.until > {schema}.moment($15)) IS NULL ORDER BY u.place) u
ON CONFLICT DO NOTHING RETURNING id::text, seq;

-- name: add_tasks
INSERT INTO {schema}.task (id, seq, lane, type, state, priority, flags, size, version, executions, failures, crashes, open_edges, ready_at, updated_at, expires_at,
  must_end, phase, progress)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::smallint[], $6::smallint[], $7::integer[], $8::integer[], $9::integer[], $10::integer[],
  $11::integer[], $12::integer[], $13::integer[], $14::bigint[], $15::bigint[], $16::bigint[], $17::text[], $18::text[], $19::text[]);

-- name: add_ended
INSERT INTO {schema}.ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, claimed_at, started_at,
  must_end, phase, progress, result, error, updated_at)
SELECT u.id, u.seq, u.state, u.flags, u.version, u.executions, u.failures, u.crashes, u.open_edges, u.finished_at, u.token, u.worker, u.started_at, u.started_at,
  u.must_end, u.phase, u.progress, u.result::json, u.error::json, nullif(u.updated_at, u.finished_at)
FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::integer[], $5::integer[], $6::integer[], $7::integer[], $8::integer[], $9::integer[], $10::bigint[], $11::bigint[],
  $12::text[], $13::bigint[], $14::text[], $15::text[], $16::text[], $17::text[], $18::text[], $19::bigint[])
  u(id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, started_at, must_end, phase, progress, result, error, updated_at);

-- name: add_ordered
INSERT INTO {schema}.ordered (lane, seq, id) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::uuid[]) ON CONFLICT DO NOTHING;

-- name: add_expiry
INSERT INTO {schema}.expiry (at, id) SELECT * FROM unnest($1::bigint[], $2::uuid[]) ON CONFLICT DO NOTHING;

-- name: add_held
INSERT INTO {schema}.held (tenant, type, key, id) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[]) ON CONFLICT DO NOTHING;

-- name: add_dedupe
INSERT INTO {schema}.dedupe (tenant, type, key, id, hash, until)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::bytea[], $6::bigint[]) ON CONFLICT DO NOTHING;

-- name: add_checkpoint
INSERT INTO {schema}.checkpoint (id, name, value) SELECT * FROM unnest($1::uuid[], $2::text[], $3::bytea[]) ON CONFLICT DO NOTHING;

-- name: add_signal
INSERT INTO {schema}.signal (id, number, signal_id, name, data, at)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::bytea[], $6::bigint[]) ON CONFLICT DO NOTHING;

-- name: add_attempt
INSERT INTO {schema}.task_attempts (id, number, worker, token, started_at, ended_at, outcome, error)
SELECT u.id, u.number, u.worker, u.token, u.started_at, u.ended_at, u.outcome, u.error::json
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[])
  u(id, number, worker, token, started_at, ended_at, outcome, error) ON CONFLICT DO NOTHING;

-- name: add_edge
-- Open ones of live tasks are looked at by settle: what they wait for has ended, is told that it is waited for, or is yet to come.
WITH made AS (
  INSERT INTO {schema}.edge (parent, child, on_failure, outcome, result)
  SELECT u.parent, u.child, u.on_failure, u.outcome, u.result::json
  FROM (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::smallint[], $5::text[]) WITH ORDINALITY u(parent, child, on_failure, outcome, result, place)
    ORDER BY u.place) u
  ON CONFLICT DO NOTHING RETURNING number, parent, outcome)
INSERT INTO {schema}.late_edge (edge) SELECT m.number FROM made m WHERE m.outcome IS NULL AND EXISTS (SELECT 1 FROM {schema}.task t WHERE t.id = m.parent)
ON CONFLICT DO NOTHING;

-- name: have_come
SELECT {schema}.have_come($1);

-- name: stir
INSERT INTO {schema}.stir (lane) SELECT DISTINCT l FROM unnest($1::bigint[]) l WHERE l > 0;

-- name: moment
SELECT {schema}.moment($1);

-- name: lift_tokens
SELECT {schema}.lift_tokens($1);
