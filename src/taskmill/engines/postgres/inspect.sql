-- name: tasks
SELECT b.id::text, b.type, b.queue, b.tenant, coalesce(t.state, e.state) AS state, b.priority, t.ready_at, coalesce(t.version, e.version) AS version,
  coalesce(t.executions, e.executions) AS executions, coalesce(t.failures, e.failures) AS failures, coalesce(t.crashes, e.crashes) AS crashes,
  coalesce(t.flags, e.flags) AS flags, coalesce(t.open_edges, e.open_edges) AS open_edges, b.created_at, coalesce(t.updated_at, e.updated_at, e.finished_at) AS updated_at,
  b.expires_at, e.finished_at, CASE WHEN t.id IS NULL THEN e.token ELSE t.token END AS token, CASE WHEN t.id IS NULL THEN e.worker ELSE t.worker END AS worker,
  e.claimed_at, CASE WHEN t.id IS NULL THEN e.started_at WHEN t.state = 3 THEN t.started_at END AS started_at, CASE WHEN t.id IS NULL THEN e.must_end ELSE t.must_end END AS must_end,
  CASE WHEN t.id IS NULL THEN e.phase ELSE t.phase END AS phase, CASE WHEN t.id IS NULL THEN e.progress ELSE t.progress END AS progress,
  b.payload::text, b.retry, b.timeout, b.max_crashes, b.run_at, b.meta, e.result::text, e.error::text, m.now
FROM unnest($1::uuid[]) u(id) JOIN {schema}.body b ON b.id = ANY (ARRAY[u.id]) LEFT JOIN {schema}.task t ON t.id = ANY (ARRAY[u.id])
  LEFT JOIN {schema}.ended e ON e.id = ANY (ARRAY[u.id]),
  {schema}.moment($2) m(now)
WHERE t.id IS NOT NULL OR e.id IS NOT NULL;

-- name: known
SELECT id::text, state FROM {schema}.known WHERE id = ANY ($1::uuid[]) AND until > {schema}.moment($2);

-- name: ended
-- Of these tasks the final state, or none where one lives.
SELECT id::text, state FROM {schema}.ended WHERE id = ANY ($1::uuid[])
UNION ALL SELECT id::text, NULL FROM {schema}.task WHERE id = ANY ($1::uuid[])
UNION ALL SELECT id::text, state FROM {schema}.known WHERE id = ANY ($1::uuid[]) AND until > {schema}.moment($2);

-- name: last_attempts
SELECT t.id::text, t.state, t.executions, t.worker, t.token, t.claimed_at, t.started_at, NULL::bigint AS finished_at, NULL::text AS error
FROM {schema}.task t WHERE t.id = ANY ($1::uuid[])
UNION ALL SELECT e.id::text, e.state, e.executions, e.worker, e.token, e.claimed_at, e.started_at, e.finished_at, e.error::text
FROM {schema}.ended e WHERE e.id = ANY ($1::uuid[]);

-- name: attempts
SELECT id::text, number, worker, token, started_at, ended_at, outcome, error::text FROM {schema}.task_attempts WHERE id = ANY ($1::uuid[]) ORDER BY id, number, token;

-- name: edges
-- An edge fell with what the child's own record says, unless it holds: then only a completed child lets it fall.
SELECT e.child::text, e.on_failure, coalesce(e.outcome, CASE WHEN e.on_failure <> 2 OR d.state = 5 THEN d.state END) AS outcome,
  CASE WHEN e.outcome IS NULL THEN d.result ELSE e.result END::text AS result, e.number
FROM (SELECT * FROM {schema}.edge WHERE parent = $1 AND number > $4 ORDER BY number LIMIT $2 OFFSET $3) e
  LEFT JOIN {schema}.ended d ON d.id = ANY (ARRAY[e.child]) AND e.outcome IS NULL ORDER BY e.number;

-- name: all_edges
SELECT e.parent::text, e.child::text, e.on_failure, coalesce(e.outcome, CASE WHEN e.on_failure <> 2 OR d.state = 5 THEN d.state END) AS outcome,
  CASE WHEN e.outcome IS NULL THEN d.result ELSE e.result END::text AS result
FROM {schema}.edge e LEFT JOIN {schema}.ended d ON d.id = ANY (ARRAY[e.child]) AND e.outcome IS NULL WHERE e.parent = ANY ($1::uuid[]) ORDER BY e.parent, e.number;

-- name: counts
-- Live tasks by their state, failed ones, and all there are (no state): the rest has completed. One statement, one moment.
SELECT q.name AS queue, g.type, g.priority, g.state, g.due, sum(g.tasks)::bigint AS tasks, min(g.oldest) AS oldest
FROM {schema}.count_live({schema}.moment($1)) g, LATERAL (SELECT CASE WHEN g.lane < 0 THEN -g.lane ELSE (SELECT l.queue FROM {schema}.lane l WHERE l.id = g.lane) END AS id) k
JOIN {schema}.queue q ON q.id = k.id GROUP BY 1, 2, 3, 4, 5
UNION ALL
SELECT f.queue, f.type, f.priority, f.state, false, f.tasks, NULL FROM {schema}.count_failed() f
UNION ALL
SELECT a.queue, a.type, a.priority, NULL, false, a.tasks, NULL FROM {schema}.count_bodies() a;

-- name: fold
SELECT {schema}.fold_tally($1, $2);

-- name: worker_types
SELECT DISTINCT unnest(types) AS type FROM {schema}.workers;
