-- name: join
SELECT {schema}.join_worker($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: leave
SELECT {schema}.leave_worker($1, $2);

-- name: heartbeat
SELECT * FROM {schema}.heartbeat($1, $2, $3, $4, $5, $6);

-- name: recover
SELECT * FROM {schema}.recover($1, $2, $3, $4);

-- name: look_to_move
SELECT * FROM {schema}.look_to_move($1);

-- name: move
SELECT {schema}.move_tasks($1, $2, $3, $4, $5, $6, $7, $8);

-- name: lead
SELECT {schema}.lead_role($1, $2, $3, $4, $5);

-- name: leaders
SELECT role, holder, number FROM {schema}.term WHERE role = ANY($1::text[]) AND holder IS NOT NULL AND until > {schema}.moment($2) ORDER BY role;

-- name: resign
UPDATE {schema}.term SET holder = NULL, until = 0 WHERE role = $1 AND holder = $2 AND number = $3;

-- name: holds_term
SELECT {schema}.holds_term($1, $2, $3);

-- name: prune
SELECT * FROM {schema}.prune($1, $2, $3, $4, $5, $6);

-- name: prune_known
SELECT {schema}.prune_known($1, $2, $3, $4, $5, $6, $7);

-- name: drop_results
WITH held AS (SELECT {schema}.holds_term($1, $2, $3) AS stands),
look AS (
  SELECT e.id, e.seq, e.finished_at, e.result IS NOT NULL AS stored,
    EXISTS (SELECT 1 FROM {schema}.outbox o WHERE o.subject = e.id::text) OR EXISTS (SELECT 1 FROM {schema}.falling f WHERE f.id = e.id)
      OR EXISTS (SELECT 1 FROM {schema}.edge g JOIN {schema}.late_edge l ON l.edge = g.number WHERE g.child = e.id) AS owes
  FROM {schema}.ended e
  WHERE (SELECT stands FROM held) AND e.state = 5 AND e.finished_at >= $4 AND (e.finished_at, e.seq) > ($4, $5) AND e.finished_at <= {schema}.moment($8) - $6
  ORDER BY e.finished_at, e.seq LIMIT $7),
due AS (SELECT l.*, bool_or(l.owes) OVER (ORDER BY l.finished_at, l.seq) AS behind FROM look l),
kept AS (
  UPDATE {schema}.edge g SET outcome = 5, result = e.result FROM due d JOIN {schema}.ended e ON e.id = d.id
  WHERE NOT d.behind AND d.stored AND g.child = d.id AND g.outcome IS NULL AND EXISTS (SELECT 1 FROM {schema}.task t WHERE t.id = g.parent)),
gone AS (UPDATE {schema}.ended e SET result = NULL FROM due d WHERE NOT d.behind AND d.stored AND e.id = d.id RETURNING 1)
SELECT (SELECT stands FROM held) AS stands, (SELECT count(*) FROM gone) AS moved, count(*) AS seen, max(finished_at) AS finished_at,
  (array_agg(seq ORDER BY finished_at DESC, seq DESC))[1] AS seq
FROM due WHERE NOT behind;

-- name: forget
SELECT {schema}.forget($1, $2, $3, $4, $5, $6, $7, $8);

-- name: look_for_idle
SELECT * FROM {schema}.look_for_idle($1, $2);

-- name: workers
SELECT id, queues, types, lease, joined_at, greatest(0, {schema}.moment($1) - beat_at) AS silent, info,
  (SELECT count(*) FROM {schema}.task t WHERE t.worker = w.id AND t.state = 3) AS running,
  (SELECT value FROM {schema}.item i WHERE i.kind = 'worker' AND i.name = w.id ORDER BY i.operator DESC LIMIT 1) AS command
FROM {schema}.workers w ORDER BY joined_at, id COLLATE "C";

-- name: free_stuck
SELECT freed, last FROM {schema}.free_stuck($1, $2, $3);
