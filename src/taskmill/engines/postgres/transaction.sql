-- name: place
SELECT current_database() AS database, created_at FROM {schema}.store;

-- name: where
-- It cannot fail, so that it takes down nobody's transaction.
SELECT json_build_array(current_database(), to_regprocedure('{schema}.through(text,text)') IS NOT NULL)::text;

-- name: through
SELECT {schema}.through($1, $2);

-- name: hint_work
SELECT {schema}.hint_work($1);

-- name: prune_inbox
SELECT {schema}.prune_inbox($1, $2, $3, $4, $5, $6);
