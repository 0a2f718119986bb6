-- name: bodies
SELECT id::text, payload::text FROM {schema}.body WHERE id = ANY ($1);

-- name: metas
SELECT id::text, tenant, meta FROM {schema}.body WHERE id = ANY ($1);

-- name: cancel
SELECT * FROM {schema}.cancel_tasks($1, $2, $3, $4);

-- name: requeue
SELECT * FROM {schema}.requeue_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: delete
SELECT * FROM {schema}.delete_tasks($1, $2, $3, $4, $5);
