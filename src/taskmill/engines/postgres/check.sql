-- name: settings
SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'autovacuum_naptime', 'track_counts',
  'max_connections', 'superuser_reserved_connections', 'synchronous_standby_names', 'transaction_read_only')
UNION ALL SELECT 'used', count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'
UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')
UNION ALL SELECT 'asynchronous', count(*)::text FROM pg_stat_replication r WHERE r.sync_state = 'async' AND r.state IN ('catchup', 'streaming')
  AND NOT EXISTS (SELECT 1 FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
UNION ALL SELECT 'sees_others', pg_has_role('pg_read_all_stats', 'USAGE')::text

-- name: holders
-- What keeps dead rows from being removed: (kind, who, seconds). A transaction of another database does not matter here, a slot or standby always does.
SELECT 'transaction', format('process %s (%s of %s)', pid, coalesce(nullif(application_name, ''), 'unnamed'), usename), extract(epoch FROM now() - xact_start)::float8
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  AND xact_start < now() - make_interval(secs => $1)
UNION ALL
SELECT 'prepared', format('the prepared transaction %s of %s', gid, owner), extract(epoch FROM now() - prepared)::float8
FROM pg_prepared_xacts WHERE database = current_database() AND prepared < now() - make_interval(secs => $1)
UNION ALL
SELECT 'slot', format('the replication slot %s', slot_name), 0::float8 FROM pg_replication_slots WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL)
ORDER BY 1, 3 DESC LIMIT 20

-- name: rights
-- What this user lacks for work that changes no schema.
SELECT 'USAGE ON SCHEMA' AS lacks, '{schema_name}' AS name WHERE NOT has_schema_privilege('{schema_name}', 'USAGE')
UNION ALL
SELECT needed, c.relname::text FROM pg_class c, unnest(CASE WHEN c.relkind IN ('v', 'm') OR c.relname = 'migration' THEN ARRAY['SELECT'] ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END) needed
WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT has_table_privilege(c.oid, needed)
UNION ALL
SELECT 'USAGE', c.relname::text FROM pg_class c
WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'S' AND NOT has_sequence_privilege(CASE WHEN c.relkind = 'S' THEN c.oid END, 'USAGE')
UNION ALL
SELECT 'EXECUTE', p.proname::text FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace AND NOT has_function_privilege(p.oid, 'EXECUTE')

-- name: stuck
SELECT ids::text[] FROM {schema}.look_for_stuck(NULL, $1)
