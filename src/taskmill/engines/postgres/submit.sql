-- name: submit
-- Documents travel as text, whatever a user's connection makes of JSON.
SELECT place, status, id, reserved, code, message FROM {schema}.submit($1, $2, $3, $4::text::json, $5, $6, $7, $8, $9, $10, $11, $12::text::json, $13, $14, $15, $16,
  $17, $18, $19, $20, $21, $22);

-- name: make_names
SELECT {schema}.make_names($1::text::json);

-- name: reserve
SELECT place, status, id, reserved, code, message FROM {schema}.reserve($1, $2, $3, $4, $5, $6, $7, $8);

-- name: walk
SELECT parent, child FROM {schema}.open_walk($1);
