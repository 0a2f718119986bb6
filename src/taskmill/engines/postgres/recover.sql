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

-- name: forget
SELECT {schema}.forget($1, $2, $3, $4, $5, $6, $7, $8);

-- name: look_for_idle
SELECT * FROM {schema}.look_for_idle($1, $2);

-- name: workers
SELECT id, queues, types, lease, joined_at, greatest(0, {schema}.moment($1) - beat_at) AS silent, info,
  (SELECT count(*) FROM {schema}.task t WHERE t.worker = w.id AND t.state = 3) AS running,
  (SELECT value FROM {schema}.item i WHERE i.kind = 'worker' AND i.name = w.id ORDER BY i.operator DESC LIMIT 1) AS command
FROM {schema}.workers w ORDER BY joined_at, id COLLATE "C";
