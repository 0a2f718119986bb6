-- name: settings
-- An operator's row comes after the declared one of the same name, so it wins. One row more than items, so that the generation is always told.
SELECT s.generation, i.kind, i.name, i.value FROM {schema}.store s
LEFT JOIN {schema}.item i ON i.kind IN ('type', 'limit', 'queue', 'pause', 'outbox') ORDER BY i.kind, i.name, i.operator;

-- name: settle
-- What a crash forgets of it is owed again, so no disk is waited for.
SELECT CASE WHEN set_config('synchronous_commit', 'off', true) = 'off' THEN {schema}.settle($1, $2) END;
