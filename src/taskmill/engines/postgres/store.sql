-- name: settings
-- An operator's row comes after the declared one of the same name, so it wins. One row more than items, so that the generation is always told.
SELECT s.generation, i.kind, i.name, i.value FROM {schema}.store s
LEFT JOIN {schema}.item i ON i.kind IN ('type', 'limit', 'queue', 'pause', 'outbox') ORDER BY i.kind, i.name, i.operator;

-- name: settle
SELECT {schema}.settle($1, $2);
