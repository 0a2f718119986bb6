-- name: claim
SELECT * FROM {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8);

-- name: checkpoints
SELECT id::text, name, value FROM {schema}.checkpoint WHERE id = ANY ($1);

-- name: signals
SELECT id::text, number, name, data, signal_id, at FROM {schema}.signal WHERE id = ANY ($1) ORDER BY id, number;

-- name: results
-- An edge without an outcome of its own is open, or fell with what the child's record says; one that holds stays open when the child failed.
SELECT u.id::text, e.child::text, e.on_failure, coalesce(e.outcome, CASE WHEN d.state = 5 OR e.on_failure <> 2 THEN d.state END),
  CASE WHEN e.outcome IS NULL THEN d.result ELSE e.result END
FROM unnest($1::uuid[]) u(id), LATERAL (SELECT * FROM {schema}.edge e WHERE e.parent = u.id ORDER BY e.number LIMIT $2) e LEFT JOIN {schema}.ended d ON d.id = ANY (ARRAY[e.child])
ORDER BY u.id, e.number;
