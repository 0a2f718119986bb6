-- Views for people with psql: times as timestamps, states as words, payloads and results as JSON that can be searched and joined.
-- They are part of the product, described in docs/engines/postgres.md; the tables behind them may change.

CREATE FUNCTION as_time(micros bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN micros < 4611686018427387904 THEN timestamptz 'epoch' + micros * interval '1 microsecond' END;

-- A document as jsonb. That holds no \u0000, so U+FFFD stands there for it; what is no jsonb at all (a number beyond all bounds) is NULL.
CREATE FUNCTION as_jsonb(document text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  IF strpos(document, '\u0000') > 0 THEN
    document := regexp_replace(document, '((?<!\\)(?:\\\\)*)\\u0000', '\1\\ufffd', 'g');
  END IF;
  RETURN document::jsonb;
EXCEPTION WHEN data_exception THEN
  RETURN NULL;
END $$;

CREATE VIEW tasks_v AS
SELECT b.id, b.type, b.queue, b.tenant,
  CASE WHEN t.state IN (1, 2, 4) AND t.ready_at <= moment(NULL) THEN 'pending' ELSE name_of(coalesce(t.state, e.state)) END AS state,
  b.priority, as_jsonb(b.payload::text) AS payload, as_jsonb(e.result::text) AS result, as_jsonb(e.error::text) AS error, as_jsonb(coalesce(t.progress, e.progress)) AS progress, b.tags,
  coalesce(t.version, e.version) AS version, coalesce(t.executions, e.executions) AS executions, coalesce(t.failures, e.failures) AS failures,
  coalesce(t.crashes, e.crashes) AS crashes, coalesce(t.open_edges, e.open_edges) AS open_edges, coalesce(t.flags & 2 <> 0, false) AS cancel_requested,
  CASE WHEN t.id IS NULL THEN e.worker WHEN t.state = 3 THEN t.worker END AS worker, coalesce(t.must_end, e.must_end) AS must_end, coalesce(t.phase, e.phase) AS phase,
  as_time(b.created_at) AS created_at, as_time(CASE WHEN t.state IN (1, 2) THEN t.ready_at ELSE b.run_at END) AS run_at, as_time(b.expires_at) AS expires_at,
  as_time(CASE WHEN t.state = 3 THEN t.claimed_at WHEN t.id IS NULL AND e.token IS NOT NULL THEN coalesce(e.started_at, e.claimed_at) END) AS started_at,
  as_time(coalesce(t.updated_at, e.updated_at, e.finished_at)) AS updated_at, as_time(e.finished_at) AS finished_at
FROM body b LEFT JOIN task t ON t.id = b.id LEFT JOIN ended e ON e.id = b.id
WHERE t.id IS NOT NULL OR e.id IS NOT NULL;
COMMENT ON VIEW tasks_v IS 'every task, live or ended';

-- Every attempt: those that did not end their task, those that did, and those that run.
CREATE VIEW task_executions AS
SELECT a.id, a.number, a.worker, a.token, a.started_at, a.ended_at, a.outcome, a.error FROM task_attempts a
UNION ALL
SELECT e.id, e.executions, e.worker, e.token, coalesce(e.started_at, e.claimed_at), e.finished_at,
  (ARRAY['completed', 'failed', 'cancelled'])[e.state - 4], e.error
FROM ended e WHERE e.token IS NOT NULL AND e.claimed_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM task_attempts a WHERE a.id = e.id AND a.token = e.token)
UNION ALL
SELECT t.id, t.executions, t.worker, t.token, t.claimed_at, NULL, NULL, NULL FROM task t WHERE t.state = 3;
COMMENT ON VIEW task_executions IS 'every attempt of every task, times in microseconds since 1970';

CREATE VIEW attempts_v AS
SELECT x.id, b.type, b.queue, x.number, x.worker, as_time(x.started_at) AS started_at, as_time(x.ended_at) AS ended_at,
  (x.ended_at - x.started_at) * interval '1 microsecond' AS duration, x.outcome, as_jsonb(x.error::text) AS error
FROM task_executions x JOIN body b ON b.id = x.id;
COMMENT ON VIEW attempts_v IS 'every attempt of every task; outcome is NULL while it runs';

CREATE VIEW schedules AS
SELECT s.name, s.setting -> 'cron' AS cron, coalesce(s.setting ->> 'overlap', 'allow') AS overlap, p.value IS NOT NULL AS paused, p.value ->> 'reason' AS pause_reason,
  as_time((f.value ->> 'next_at')::bigint) AS next_at, as_time((f.value ->> 'fired_at')::bigint) AS fired_at, (f.value ->> 'last')::uuid AS last_task,
  s.operator, s.version, s.setting
FROM (
    SELECT DISTINCT ON (i.name) i.name, as_jsonb(convert_from(i.value, 'UTF8')) AS setting, i.operator, i.version
    FROM item i WHERE i.kind = 'schedule' ORDER BY i.name, i.operator DESC) s
  LEFT JOIN LATERAL (
    SELECT as_jsonb(convert_from(i.value, 'UTF8')) AS value FROM item i WHERE i.kind = 'pause' AND i.name = 'schedule:' || s.name ORDER BY i.operator DESC LIMIT 1) p ON true
  LEFT JOIN LATERAL (SELECT as_jsonb(convert_from(i.value, 'UTF8')) AS value FROM item i WHERE i.kind = 'fired' AND i.name = s.name LIMIT 1) f ON true;
COMMENT ON VIEW schedules IS 'every schedule in force, when it fires next, and what it made last';
