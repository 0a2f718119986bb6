-- name: any_tenant
SELECT 1 FROM taskmill_task INDEXED BY taskmill_task_tenant WHERE tenant <> '' LIMIT 1;

-- name: bodies
SELECT t.seq, t.tenant, b.meta FROM taskmill_task t INDEXED BY taskmill_task_tenant JOIN taskmill_body b USING (seq)
WHERE t.tenant <> '' AND coalesce(b.meta ->> '$.limits', b.meta ->> '$.share', b.meta ->> '$.order') IS NOT NULL;

-- name: set_meta
UPDATE taskmill_body SET meta = ? WHERE seq = ?;

-- name: lanes
SELECT DISTINCT lane, tenant FROM taskmill_task INDEXED BY taskmill_task_tenant WHERE tenant <> '' AND lane > 0 AND state < 5;

-- name: running
SELECT count(*) FROM taskmill_task INDEXED BY taskmill_task_tenant WHERE lane = ? AND tenant = ? AND tenant <> '' AND state = 3;

-- name: move_ordered
UPDATE taskmill_ordered SET lane = ?1 WHERE lane = ?2 AND seq IN (SELECT seq FROM taskmill_task WHERE tenant = ?3 AND tenant <> '' AND lane = ?2);

-- name: move
UPDATE taskmill_task SET lane = ?1 WHERE lane = ?2 AND +state < 5 AND tenant = ?3 AND tenant <> '';
