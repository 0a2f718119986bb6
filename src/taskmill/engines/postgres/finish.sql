-- name: finish
SELECT task, token, code, message, state FROM {schema}.finish($1, $2::text::uuid[], $3::text::bigint[], $4::text::bigint[], $5, $6, $7, $8, $9, $10);

-- name: checkpoint
SELECT task, token, code FROM {schema}.checkpoint($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: signal
SELECT number, state, code, stirs FROM {schema}.signal($1, $2, $3, $4, $5, $6, $7);
