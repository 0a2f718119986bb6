-- name: keep
-- A task that ended again, or whose id began a second life, goes over what is there, with its attempts; an older record never does. Rows are locked in the order
-- of ids, so that two who write the same ones wait for each other in turn.
WITH kept AS (
  INSERT INTO {schema}.task AS kept (id, type, queue, tenant, priority, state, version, created_at, finished_at, payload, result, record)
  SELECT id, type, queue, tenant, priority, state, version, created_at, finished_at, payload, result, record::json
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int2[], $6::text[], $7::int8[], $8::int8[], $9::int8[], $10::bytea[], $11::bytea[], $12::text[])
    AS given (id, type, queue, tenant, priority, state, version, created_at, finished_at, payload, result, record)
  ORDER BY id
  ON CONFLICT (id) DO UPDATE SET
    type = excluded.type, queue = excluded.queue, tenant = excluded.tenant, priority = excluded.priority, state = excluded.state, version = excluded.version,
    created_at = excluded.created_at, finished_at = excluded.finished_at, payload = excluded.payload, result = excluded.result, record = excluded.record
  WHERE (kept.created_at, kept.version) <= (excluded.created_at, excluded.version)
  RETURNING id
), given AS (
  SELECT given.* FROM unnest($13::uuid[], $14::int4[], $15::int4[], $16::text[], $17::int8[], $18::int8[], $19::int8[], $20::text[], $21::text[])
    AS given (task, position, number, worker, token, started_at, ended_at, outcome, error)
  JOIN kept ON kept.id = given.task
), cleared AS (
  DELETE FROM {schema}.attempt AS old USING kept
  WHERE old.task = kept.id AND NOT EXISTS (SELECT FROM given WHERE given.task = old.task AND given.position = old.position)
)
INSERT INTO {schema}.attempt AS kept (task, position, number, worker, token, started_at, ended_at, outcome, error)
SELECT task, position, number, worker, token, started_at, ended_at, outcome, error::json FROM given
ON CONFLICT (task, position) DO UPDATE SET
  number = excluded.number, worker = excluded.worker, token = excluded.token, started_at = excluded.started_at, ended_at = excluded.ended_at,
  outcome = excluded.outcome, error = excluded.error

-- name: tasks
SELECT id, payload, result, record::text FROM {schema}.task WHERE id = ANY ($1::uuid[])

-- name: attempts
SELECT number, worker, token, started_at, ended_at, outcome, error::text FROM {schema}.attempt WHERE task = $1::uuid ORDER BY position

-- name: newest
SELECT max(finished_at) FROM {schema}.task
