-- name: await_ends
SELECT {schema}.await_ends($1, $2);

-- name: hear
SELECT {schema}.hear($1, $2, $3);

-- name: events
-- The last number given is read after the snapshot was taken: what was cut before it lies further behind than the ring is long.
SELECT l.last, e.number, e.kind, e.subject, e.version, e.at, e.data
FROM (SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('{schema}.event', 'number')::regclass), 0) AS last) l
LEFT JOIN LATERAL (SELECT * FROM {schema}.event WHERE number > $1 ORDER BY number LIMIT $2) e ON true ORDER BY e.number;

-- name: numbers
SELECT number FROM {schema}.event WHERE number > $1;

-- name: writers
SELECT {schema}.writers_of('task');
