-- For people with psql and for triggers: views that tell a claimed task from one that has begun, schedules under plain names, and submit, cancel and requeue as functions.
-- The functions and the views are part of the product, described in docs/engines/postgres.md.

CREATE OR REPLACE VIEW tasks_v AS
SELECT b.id, b.type, b.queue, b.tenant,
  CASE WHEN t.state IN (1, 2, 4) AND t.ready_at <= moment(NULL) THEN 'pending' ELSE name_of(coalesce(t.state, e.state)) END AS state,
  b.priority, as_jsonb(b.payload::text) AS payload, as_jsonb(e.result::text) AS result, as_jsonb(e.error::text) AS error, as_jsonb(coalesce(t.progress, e.progress)) AS progress, b.tags,
  coalesce(t.version, e.version) AS version, coalesce(t.executions, e.executions) AS executions, coalesce(t.failures, e.failures) AS failures,
  coalesce(t.crashes, e.crashes) AS crashes, coalesce(t.open_edges, e.open_edges) AS open_edges, coalesce(t.flags & 2 <> 0, false) AS cancel_requested,
  CASE WHEN t.id IS NULL THEN e.worker WHEN t.state = 3 THEN t.worker END AS worker, coalesce(t.must_end, e.must_end) AS must_end, coalesce(t.phase, e.phase) AS phase,
  as_time(b.created_at) AS created_at, as_time(CASE WHEN t.state IN (1, 2) THEN t.ready_at ELSE b.run_at END) AS run_at, as_time(b.expires_at) AS expires_at,
  as_time(CASE WHEN t.state = 3 THEN t.started_at WHEN t.id IS NULL AND e.token IS NOT NULL THEN coalesce(e.started_at, e.claimed_at) END) AS started_at,
  as_time(coalesce(t.updated_at, e.updated_at, e.finished_at)) AS updated_at, as_time(e.finished_at) AS finished_at,
  as_time(CASE WHEN t.state = 3 THEN t.claimed_at WHEN t.id IS NULL AND e.token IS NOT NULL THEN e.claimed_at END) AS claimed_at
FROM body b LEFT JOIN task t ON t.id = b.id LEFT JOIN ended e ON e.id = b.id
WHERE t.id IS NOT NULL OR e.id IS NOT NULL;

CREATE OR REPLACE VIEW task_executions AS
SELECT x.*, (x.ended_at - x.started_at) / 1000.0 AS duration_ms FROM (
  SELECT a.id, a.number, a.worker, a.token, a.started_at, a.ended_at, a.outcome, a.error FROM task_attempts a
  UNION ALL
  SELECT e.id, e.executions, e.worker, e.token, coalesce(e.started_at, e.claimed_at), e.finished_at,
    (ARRAY['completed', 'failed', 'cancelled'])[e.state - 4], e.error
  FROM ended e WHERE e.token IS NOT NULL AND e.claimed_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM task_attempts a WHERE a.id = e.id AND a.token = e.token)
  UNION ALL
  SELECT t.id, t.executions, t.worker, t.token, t.started_at, NULL, NULL, NULL FROM task t WHERE t.state = 3) x;
COMMENT ON VIEW task_executions IS 'every attempt of every task, times in microseconds since 1970; one that runs has no start until its handler was said to have begun';

CREATE VIEW scheduled_jobs AS
SELECT s.name, coalesce(s.setting #>> '{cron,expression}', s.setting ->> 'cron') AS expr, coalesce(s.setting #>> '{cron,timezone}', 'UTC') AS timezone,
  s.setting ->> 'type' AS task_type, coalesce(s.setting -> 'payload', 'null') AS payload, NOT s.paused AS enabled, s.next_at AS next_run_at, s.fired_at AS last_run_at, s.last_task
FROM schedules s;
COMMENT ON VIEW scheduled_jobs IS 'every schedule in force, by the names that other job registries use';

-- A setting of a type with fields of the payload in it: `per-user:{user_id}`. What it becomes is a key like any other: no sign in it that stands between a tenant and a key.
CREATE FUNCTION from_payload(template text, p_payload jsonb, p_tenant text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  field text;
  found text;
  key text := '';
  rest text := template;
BEGIN
  LOOP
    field := substring(rest FROM '\{([^{}]+)\}');
    EXIT WHEN field IS NULL;
    found := CASE WHEN field = 'tenant' THEN p_tenant
      WHEN jsonb_typeof(p_payload) = 'object' AND (jsonb_typeof(p_payload -> field) = 'string' OR jsonb_typeof(p_payload -> field) = 'number' AND p_payload ->> field ~ '^-?[0-9]+$') THEN p_payload ->> field END;
    IF coalesce(found, '') = '' THEN
      RAISE EXCEPTION 'the payload has no text or whole number %, which the settings of its type need', quote_literal(field) USING ERRCODE = 'invalid_parameter_value', HINT = 'add it to the payload';
    END IF;
    key := key || left(rest, strpos(rest, '{' || field || '}') - 1) || found;
    rest := substr(rest, strpos(rest, '{' || field || '}') + length(field) + 2);
  END LOOP;
  key := key || rest;
  PERFORM check_argument(key !~ '[[:cntrl:]]' AND length(key) BETWEEN 1 AND 256, 'payload', format('%s is filled from it, and a key has 1 to 256 printable characters', quote_literal(template)))
    WHERE key <> template;
  RETURN key;
END $$;

CREATE FUNCTION check_argument(p_right boolean, p_field text, p_hint text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_right IS NOT TRUE THEN
    RAISE EXCEPTION 'the argument % is not valid', p_field USING ERRCODE = 'invalid_parameter_value', HINT = p_hint;
  END IF;
END $$;

-- A task, in the caller's transaction: it exists if and only if that commits. Its type's settings hold, as for every other caller. Answers the id of the task that exists: with an
-- idempotency key that was used before, the first one's.
CREATE FUNCTION submit(type text, payload jsonb DEFAULT 'null', queue text DEFAULT NULL, priority integer DEFAULT NULL, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
  expires_at timestamptz DEFAULT NULL, idempotency_key text DEFAULT NULL, tenant text DEFAULT '', tags jsonb DEFAULT NULL, id uuid DEFAULT gen_random_uuid())
RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
  s jsonb := setting_of('type', type);
  limit_names text[] := ARRAY(SELECT DISTINCT l FROM jsonb_array_elements_text(coalesce(s -> 'limits', '[]')) t(template),
    LATERAL (SELECT scoped_limits(tenant, ARRAY[from_payload(t.template, payload, tenant)]) AS one) o, unnest(o.one) l ORDER BY l);
  share_name text := CASE WHEN s ->> 'fair' IS NULL THEN '' WHEN s ->> 'fair' = 'tenant' THEN tenant ELSE scoped_key(tenant, from_payload(s ->> 'fair', payload, tenant)) END;
  order_name text := scoped_key(tenant, from_payload(s ->> 'ordered', payload, tenant));
  unique_key text := from_payload(s #>> '{unique,key}', payload, tenant);
  lines json;
  uniques json;
  meta jsonb;
  v verdict;
BEGIN
  PERFORM check_argument(type ~ '^[a-z0-9][a-z0-9_.-]{0,127}$', 'type', 'lower-case letters, digits, _ . -'),
    check_argument(coalesce(queue, s ->> 'queue', CASE WHEN s IS NOT NULL THEN 'default' END) ~ '^[a-z0-9][a-z0-9_.-]{0,127}$', 'queue', 'no worker has registered the type: start one, or name a queue'),
    check_argument(coalesce(priority, 1) BETWEEN 0 AND 3, 'priority', '0 (low) to 3 (critical)'),
    check_argument(delay IS NULL OR run_at IS NULL, 'delay', 'give delay or run_at'),
    check_argument(tenant !~ '[[:cntrl:]]' AND length(tenant) <= 128, 'tenant', 'at most 128 printable characters'),
    check_argument(coalesce(idempotency_key, 'x') !~ '[[:cntrl:]]' AND length(coalesce(idempotency_key, 'x')) BETWEEN 1 AND 256, 'idempotency_key', '1 to 256 printable characters'),
    check_argument(octet_length(payload::text) <= 262144, 'payload', 'at most 262144 bytes: store it elsewhere and submit a pointer'),
    check_argument(tags IS NULL OR CASE WHEN jsonb_typeof(tags) = 'object' THEN (SELECT count(*) <= 100 AND coalesce(bool_and(t.key ~ '^[a-z0-9][a-z0-9_.-]{0,127}$'
      AND jsonb_typeof(t.value) = 'string' AND t.value #>> '{}' !~ '[[:cntrl:]]' AND length(t.value #>> '{}') BETWEEN 1 AND 256), true) FROM jsonb_each(tags) t) END,
      'tags', 'an object of at most 100 names, each with a text of 1 to 256 printable characters');
  lines := json_build_array(json_strip_nulls(json_build_object('type', type, 'queue', coalesce(queue, s ->> 'queue', 'default'), 'priority', coalesce(priority, (s ->> 'priority')::integer, 1),
    'timeout', coalesce((s ->> 'timeout')::bigint, 3600000000), 'max_crashes', coalesce((s ->> 'max_crashes')::integer, 3), 'retry', s ->> 'retry', 'tenant', tenant, 'share', share_name,
    'limits', to_json(limit_names), 'order_key', order_name, 'rejects', CASE WHEN s ->> 'on_limit' = 'reject' AND limit_names <> '{}' THEN true END)));
  uniques := CASE WHEN unique_key IS NOT NULL THEN json_build_array(json_build_object('place', 1, 'key', unique_key,
    'flag', CASE s #>> '{unique,until}' WHEN 'started' THEN 4 ELSE 8 END, 'replaces', s #>> '{unique,on_conflict}' = 'replace')) END;
  meta := jsonb_strip_nulls(jsonb_build_object('key', idempotency_key, 'tags', tags, 'limits', CASE WHEN limit_names <> '{}' THEN to_jsonb(limit_names) END,
    'share', nullif(share_name, ''), 'order', order_name,
    'unique', CASE WHEN unique_key IS NOT NULL THEN jsonb_build_object('key', unique_key, 'until', s #> '{unique,until}', 'on_conflict', s #> '{unique,on_conflict}') END));
  FOR attempt IN 1 .. 2 LOOP
    v := NULL;
    SELECT * INTO v FROM submit(ARRAY[id], ARRAY[payload::text], ARRAY[1], lines,
      CASE WHEN run_at IS NOT NULL THEN ARRAY[(extract(epoch FROM run_at) * 1000000)::bigint] END, CASE WHEN delay IS NOT NULL THEN ARRAY[(extract(epoch FROM delay) * 1000000)::bigint] END,
      CASE WHEN expires_at IS NOT NULL THEN ARRAY[(extract(epoch FROM expires_at) * 1000000)::bigint] END, CASE WHEN meta <> '{}' THEN ARRAY[meta::text] END,
      CASE WHEN tags IS NOT NULL THEN ARRAY[tags::text] END, CASE WHEN idempotency_key IS NOT NULL THEN ARRAY[idempotency_key] END,
      CASE WHEN idempotency_key IS NOT NULL THEN ARRAY[decode(md5(payload::text), 'hex')] END, uniques, NULL, NULL, NULL, NULL, NULL, NULL,
      (SELECT k.generation FROM store k), 5000, false, NULL) x;
    EXIT WHEN v.place IS DISTINCT FROM 0;
    PERFORM make_names(lines);
  END LOOP;
  IF v.status IN ('duplicate', 'replaced') AND (v.code IS DISTINCT FROM 'compare' OR v.message::jsonb = payload) THEN
    RETURN v.id::uuid;
  ELSIF v.status IS NOT NULL THEN
    RAISE EXCEPTION 'the task was not stored: %', CASE WHEN v.code IN ('conflict', 'compare') THEN format('task %s has the same id or key and another payload', v.id)
        ELSE concat_ws(' ', v.status, v.code, v.message) END
      USING ERRCODE = CASE v.status WHEN 'busy' THEN 'lock_not_available' WHEN 'refused' THEN 'invalid_parameter_value' ELSE 'unique_violation' END;
  END IF;
  PERFORM pg_notify(current_schema(), 'work');
  RETURN id;
END $$;

-- The state it has now: cancelled; or running, where its worker was asked to end it.
CREATE FUNCTION cancel(id uuid) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  c changed;
BEGIN
  PERFORM set_config('taskmill.quiet', 'on', true);
  SELECT * INTO c FROM cancel_tasks(ARRAY[cancel.id], ARRAY[NULL]::integer[], NULL, NULL);
  RETURN state_after(c, cancel.id);
END $$;

-- A task that has ended runs again; `from_start`: without what it had done. To be called in a transaction that ends soon: one that waited for others holds up every limit until then.
CREATE FUNCTION requeue(id uuid, from_start boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  c changed;
  m jsonb;
BEGIN
  PERFORM set_config('taskmill.quiet', 'on', true);
  SELECT coalesce(scoped_meta(b.tenant, b.meta), '{}')::jsonb INTO m FROM body b WHERE b.id = requeue.id;
  SELECT * INTO c FROM requeue_tasks(ARRAY[requeue.id], ARRAY[NULL]::integer[], NULL, from_start, ARRAY[coalesce(m ->> 'share', '')], ARRAY[coalesce(m ->> 'limits', '[]')],
    ARRAY[coalesce(m ->> 'order', '')], ARRAY[m #>> '{unique,key}'], NULL);
  RETURN state_after(c, requeue.id);
END $$;

CREATE FUNCTION state_after(c changed, p_id uuid) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF NOT c.done THEN
    RAISE EXCEPTION 'task %: %', p_id, c.code USING ERRCODE = CASE WHEN c.code IN ('not_found', 'expired') THEN 'no_data_found' ELSE 'object_not_in_prerequisite_state' END;
  END IF;
  PERFORM pg_notify(current_schema(), 'work');
  RETURN name_of(c.state);
END $$;

CALL harden('submit', 'cancel', 'requeue');
