-- The arrows of a task's life, one row at a time, and what each of them owes: an inbox row for lanes and edges, unique keys, outbox, events.
-- Every function here takes the row as its caller has it locked (SELECT … FOR UPDATE), with what the caller changed in it (failures, crashes, flags, …),
-- and writes the row. Hot paths (plain claims and ends) write whole batches without these.

-- An event, if somebody listens.
CREATE FUNCTION tell(p_kind text, p_subject text, p_version integer, p_now bigint, p_data json DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO event (kind, subject, version, at, data) SELECT p_kind, p_subject, p_version, p_now, p_data::text FROM store WHERE listen_until > p_now;
END $$;

-- An outbox entry, if somebody subscribed to its kind.
CREATE FUNCTION owe(p_kind text, p_subject text, p_data json, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO outbox (kind, subject, data, at) SELECT p_kind, p_subject, convert_to(p_data::text, 'UTF8'), p_now FROM store WHERE p_kind = ANY (outbox_kinds);
END $$;

-- There may be work in these queues: told once, to those who found nothing before. A hint: where another is just telling it, it is left to that one.
-- Never in a user's transaction (taskmill.quiet), which would hold the queue's row for as long as it is open.
CREATE FUNCTION announce(queues bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('taskmill.quiet', true) = 'on' THEN
    RETURN;
  END IF;
  UPDATE queue SET idle = false WHERE id = ANY (ARRAY(SELECT id FROM queue WHERE id = ANY (queues) AND idle FOR NO KEY UPDATE SKIP LOCKED));
  IF FOUND THEN
    PERFORM pg_notify(current_schema(), 'work');
  END IF;
END $$;

CREATE FUNCTION queue_of(lane_number bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN CASE WHEN lane_number < 0 THEN -lane_number ELSE (SELECT queue FROM lane WHERE id = lane_number) END;
END $$;

-- What every event of a task says of it, before `more` (an object with members, or NULL): whoever may not see the task is known by this alone. The texts are
-- joined: the operators of JSON refuse a document that holds \u0000 anywhere.
CREATE FUNCTION facts(p_type text, p_queue text, p_tenant text, more json DEFAULT NULL) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_tenant = '' THEN left(json_build_object('type', p_type, 'queue', p_queue)::text, -1)
    ELSE left(json_build_object('type', p_type, 'queue', p_queue, 'tenant', p_tenant)::text, -1) END || coalesce(',' || substr(more::text, 2), '}')
$$;

-- An event of a task, if somebody listens.
CREATE FUNCTION tell_task(p_kind text, p_id uuid, p_version integer, p_now bigint, more json DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO event (kind, subject, version, at, data)
  SELECT p_kind, p_id::text, p_version, p_now, (SELECT facts(b.type, b.queue, b.tenant, more) FROM body b WHERE b.id = p_id) FROM store WHERE listen_until > p_now;
END $$;

-- The code of an error as it was encoded: its first field, and a name. (The operators of JSON refuse a document that holds \u0000 anywhere.)
CREATE FUNCTION code_of(error json) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT substring(error::text FROM '"code" ?: ?"([^"]*)"') $$;

-- What an event says of the attempt that ends with it, if one does, and of the error; NULL: nothing.
CREATE FUNCTION of_attempt(t task, why json, started_after bigint, now bigint) RETURNS json LANGUAGE sql STABLE AS $$
  SELECT nullif(json_strip_nulls(json_build_object('error', code_of(why), 'attempt', CASE WHEN t.state = 3 THEN t.executions END,
    'duration', CASE WHEN t.state = 3 THEN greatest(0, now - t.claimed_at - coalesce(started_after, 0)) END))::text, '{}')::json
$$;

-- The task left the state it was in: its slot returns, and its lane looks for its next task when a waiting one left it, or the one its order waited for.
-- `arrives_at`: its age, where it becomes claimable there, now or later.
CREATE FUNCTION leave_lane(t task, arrives_at bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF t.lane > 0 THEN
    INSERT INTO stir (lane, freed, look, at)
    VALUES (t.lane, (t.state = 3)::integer, arrives_at IS NOT NULL OR t.state <> 3 OR t.flags & 1 <> 0, coalesce(arrives_at, 9223372036854775807));
  END IF;
END $$;

CREATE FUNCTION kind_of(state smallint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT 'task.' || (ARRAY['ready', 'snoozed', 'retrying', 'started', 'waiting', 'completed', 'dead', 'cancelled'])[state + 1]
$$;

CREATE FUNCTION name_of(state smallint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT (ARRAY['pending', 'scheduled', 'retrying', 'running', 'waiting', 'completed', 'dead', 'cancelled'])[state + 1]
$$;

-- Pending, scheduled or retrying from `ready_at` on. `keep_lease`: its own holder ended it, so the lease stays known for the repeat of that step.
-- `told`: what the event says of the attempt that ended.
CREATE FUNCTION set_ready(t task, new_state smallint, new_ready_at bigint, keep_lease boolean, now bigint, told json DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM leave_lane(t, new_ready_at);
  UPDATE task SET state = new_state, ready_at = new_ready_at, failures = t.failures, crashes = t.crashes, executions = t.executions, flags = t.flags,
    must_end = t.must_end, open_edges = t.open_edges, token = CASE WHEN keep_lease THEN t.token END, worker = CASE WHEN keep_lease THEN t.worker END,
    request = NULL, awaits = NULL, version = version + 1, updated_at = now
  WHERE id = t.id;
  PERFORM tell_task(kind_of(new_state), t.id, t.version + 1, now, told);
  PERFORM announce(ARRAY[queue_of(t.lane)]);
END $$;

-- The task can be claimed. Its time has come once: if the clock was set back since, it is due all the same.
CREATE FUNCTION make_ready(t task, new_ready_at bigint, now bigint, reason text DEFAULT NULL, keep_lease boolean DEFAULT false, told json DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF reason IS NOT NULL THEN  -- it must end, by its own handler
    t.flags := t.flags & ~(2 | 64 | 128);
    t.crashes := 0;
    t.must_end := reason;
  END IF;
  PERFORM set_ready(t, 0::smallint, least(new_ready_at, now), keep_lease, now, told);
END $$;

-- Nothing is left to wait for; still no task starts before its time.
CREATE FUNCTION wake_up(t task, now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  due bigint := (SELECT run_at FROM body WHERE id = t.id);
BEGIN
  IF t.executions = 0 AND due > now THEN
    PERFORM set_ready(t, 1::smallint, due, true, now);
  ELSE
    PERFORM make_ready(t, now, now);
  END IF;
END $$;

CREATE FUNCTION make_waiting(t task, deadline bigint, new_awaits text, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM leave_lane(t, NULL);
  UPDATE task SET state = 4, ready_at = deadline, flags = t.flags, open_edges = t.open_edges, awaits = new_awaits, failures = t.failures, crashes = t.crashes,
    version = version + 1, updated_at = now
  WHERE id = t.id;
  PERFORM tell_task('task.waiting', t.id, t.version + 1, now);
END $$;

-- Completed, dead or cancelled. If an attempt ended it, its lease stays in the record; one that ended earlier has its own.
CREATE FUNCTION make_ended(t task, new_state smallint, now bigint, new_error json DEFAULT NULL, new_result json DEFAULT NULL, new_phase text DEFAULT NULL,
  started_after bigint DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  attempt boolean := t.state = 3;
  owed json;
BEGIN
  PERFORM leave_lane(t, NULL);
  DELETE FROM task WHERE id = t.id;
  INSERT INTO ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, claimed_at, started_at,
    must_end, phase, progress, opened, result, error)
  VALUES (t.id, t.seq, new_state, t.flags & ~(2 | 64 | 128), t.version + 1, t.executions, t.failures, t.crashes, t.open_edges, now,
    CASE WHEN attempt THEN t.token END, CASE WHEN attempt THEN t.worker END, t.claimed_at, t.claimed_at + started_after,
    t.must_end, coalesce(new_phase, t.phase), t.progress, t.opened, new_result, new_error);
  PERFORM let_go(t, new_state);
  SELECT json_build_object('id', t.id, 'type', b.type, 'queue', b.queue, 'state', name_of(new_state), 'version', t.version + 1) INTO owed FROM body b WHERE b.id = t.id;
  PERFORM owe('ended', t.id::text, owed, now);
  IF new_state = 6 THEN
    PERFORM owe('dead', t.id::text, owed, now);
  END IF;
  PERFORM tell_task(kind_of(new_state), t.id, t.version + 1, now, of_attempt(t, new_error, started_after, now));
  PERFORM pg_notify(current_schema(), 'ended') FROM store WHERE wait_until > now;
END $$;

-- What an ended task held: its unique key, its signals, its place in an order; and the edges of those who wait for it fall.
CREATE FUNCTION let_go(t task, new_state smallint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF t.flags & (4 | 8) <> 0 THEN
    DELETE FROM held WHERE id = t.id;
  END IF;
  IF t.flags & 1024 <> 0 THEN
    DELETE FROM signal WHERE id = t.id;
  END IF;
  IF t.flags & 1 <> 0 THEN
    DELETE FROM ordered WHERE lane = t.lane AND seq = t.seq;
  END IF;
  IF t.flags & 32 <> 0 THEN
    INSERT INTO falling (id, state) VALUES (t.id, new_state);
  END IF;
END $$;

-- Cancelled; a task that must unwind becomes ready to do so instead. Answers the state it came to.
CREATE FUNCTION make_cancelled(t task, now bigint, new_error json DEFAULT NULL, reason text DEFAULT 'cancelled') RETURNS smallint LANGUAGE plpgsql AS $$
BEGIN
  IF t.flags & 256 <> 0 AND t.must_end IS NULL THEN
    PERFORM make_ready(t, now, now, reason);
    RETURN 0;
  END IF;
  PERFORM make_ended(t, 7::smallint, now, new_error);
  RETURN 7;
END $$;

-- The record of an attempt that did not end its task.
CREATE FUNCTION keep_attempt(t task, how text, began_at bigint, why json, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO task_attempts (id, number, worker, token, started_at, ended_at, outcome, error)
  VALUES (t.id, t.executions, t.worker, t.token, coalesce(began_at, t.claimed_at), now, how, why) ON CONFLICT DO NOTHING;
END $$;

CREATE FUNCTION message_of(error json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN replace(error::text, '\u0000', ' ')::json ->> 'message';
END $$;

-- One crash more; past the most that it may have the task is poison. A cancel that was asked for comes first.
CREATE FUNCTION crash(t task, why json, keep_lease boolean, now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  most integer := (SELECT max_crashes FROM body WHERE id = t.id);
  told json := of_attempt(t, coalesce(why, '{"code":"lease_lost"}'), NULL, now);
BEGIN
  t.crashes := t.crashes + 1;
  IF t.flags & 2 <> 0 THEN
    PERFORM make_cancelled(t, now);
  ELSIF t.crashes <= most THEN
    PERFORM make_ready(t, t.ready_at, now, NULL, keep_lease, told);
  ELSIF t.flags & 256 <> 0 AND t.must_end IS NULL THEN
    PERFORM make_ready(t, now, now, 'poison', keep_lease, told);
  ELSE
    PERFORM make_ended(t, 6::smallint, now,
      json_build_object('code', 'poison', 'message', format('its worker died %s times', t.crashes) || coalesce(': ' || message_of(why), '')),
      NULL, CASE WHEN t.flags & 256 <> 0 THEN 'compensation_failed' END);
  END IF;
END $$;

-- Names and their numbers. They are made once and then only read; two that make the same at once wait for each other's commit, so this is called outside
-- of users' transactions first (see submit).
CREATE FUNCTION queue_id(queue_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  found_id bigint;
BEGIN
  SELECT id INTO found_id FROM queue WHERE name = queue_name;
  IF found_id IS NULL THEN
    INSERT INTO queue (name) VALUES (queue_name) ON CONFLICT DO NOTHING;
    SELECT id INTO found_id FROM queue WHERE name = queue_name;
    PERFORM apply_settings();
  END IF;
  RETURN found_id;
END $$;

-- What these three find is kept from being forgotten (see forget) until the transaction ends.
CREATE FUNCTION share_id(queue_number bigint, share_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  found_id bigint;
BEGIN
  LOOP
    SELECT id INTO found_id FROM share WHERE queue = queue_number AND name = share_name FOR KEY SHARE;
    EXIT WHEN FOUND;
    INSERT INTO share (queue, name) VALUES (queue_number, share_name) ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN found_id;
END $$;

CREATE FUNCTION counter_id(limit_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  found_id bigint;
BEGIN
  LOOP
    SELECT id INTO found_id FROM counter WHERE name = limit_name FOR KEY SHARE;
    EXIT WHEN FOUND;
    INSERT INTO counter (name, rate, span, cap) SELECT limit_name, rate, span, cap FROM numbers_of(split_part(limit_name, ':', 1)) ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN found_id;
END $$;

-- The lane of such tasks: the plain line of the queue where nothing sets them apart.
CREATE FUNCTION lane_id(queue_number bigint, share_name text, limit_names text[], key text, type_name text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  found_id bigint;
BEGIN
  IF share_name = '' AND limit_names = '{}' AND key = '' AND type_name = '' THEN
    RETURN -queue_number;
  END IF;
  LOOP
    SELECT l.id INTO found_id FROM share s JOIN lane l ON l.queue = s.queue AND l.share = s.id
    WHERE s.queue = queue_number AND s.name = share_name AND l.limits = limit_names AND l.order_key = key AND l.type = type_name FOR KEY SHARE OF l;
    EXIT WHEN FOUND;
    -- `|| '{}'`: the array as a row keeps it. As a variable has it, its first update would look as if it changed the key, and wait for all who hold the lane.
    INSERT INTO lane (queue, share, limits, counters, order_key, type, needs)
    VALUES (queue_number, share_id(queue_number, share_name), limit_names || '{}'::text[],
      ARRAY(SELECT counter_id(name) FROM unnest(limit_names) WITH ORDINALITY u(name, place) ORDER BY place), key, type_name, type_name)
    ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN found_id;
END $$;

-- Settings that steps read lie where they read them: this brings them there after a change of an item. An operator's stands over the declared one.
CREATE FUNCTION in_force(item_kind text) RETURNS TABLE (name text, value json) LANGUAGE sql STABLE AS $$
  SELECT DISTINCT ON (name) name, convert_from(value, 'UTF8')::json FROM item WHERE kind = item_kind ORDER BY name, operator DESC
$$;

CREATE FUNCTION apply_settings() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE store SET paused_types = p.types, outbox_kinds = p.kinds
  FROM (SELECT ARRAY(SELECT substr(name, 6) FROM in_force('pause') WHERE name LIKE 'type:%' ORDER BY 1) AS types, ARRAY(SELECT name FROM in_force('outbox') ORDER BY 1) AS kinds) p
  WHERE (paused_types, outbox_kinds) IS DISTINCT FROM (p.types, p.kinds);
  UPDATE queue q SET paused = s.paused, priorities = s.priorities, weights = s.weights
  FROM (
    SELECT k.id, EXISTS (SELECT 1 FROM in_force('pause') p WHERE p.name = 'queue:' || k.name) AS paused,
      CASE WHEN json_typeof(i.value -> 'priorities') = 'array' THEN ARRAY(SELECT v::integer FROM json_array_elements_text(i.value -> 'priorities') v) END AS priorities,
      coalesce(i.value ->> 'weights', '{}')::jsonb AS weights
    FROM queue k LEFT JOIN in_force('queue') i ON i.name = k.name) s
  WHERE s.id = q.id AND (q.paused, q.priorities, q.weights) IS DISTINCT FROM (s.paused, s.priorities, s.weights);
END $$;

-- The numbers of a limit; without a definition it counts but never closes, so what was charged can be given back.
CREATE FUNCTION numbers_of(definition text, OUT rate integer, OUT span bigint, OUT cap integer) LANGUAGE sql STABLE AS $$
  SELECT max((value ->> 'rate')::integer), coalesce(max((value ->> 'window')::bigint), 1000000), max((value ->> 'cap')::integer)
  FROM in_force('limit') WHERE name = definition
$$;

CREATE FUNCTION apply_limit(definition text) RETURNS void LANGUAGE sql AS $$
  UPDATE counter c SET rate = d.rate, span = d.span, cap = d.cap FROM numbers_of(definition) d
  WHERE (c.name = definition OR c.name LIKE replace(replace(definition, '\', '\\'), '_', '\_') || ':%') AND (c.rate, c.span, c.cap) IS DISTINCT FROM (d.rate, d.span, d.cap)
$$;

-- The gate: whoever holds it may write lanes, shares, counters and stands. It is held to the end of the transaction, so only ever in one of its own.
CREATE FUNCTION gate() RETURNS void LANGUAGE sql AS $$
  SELECT pg_advisory_xact_lock(hashtextextended('taskmill gate of ' || current_schema(), 0))
$$;
CREATE FUNCTION try_gate() RETURNS boolean LANGUAGE sql AS $$
  SELECT pg_try_advisory_xact_lock(hashtextextended('taskmill gate of ' || current_schema(), 0))
$$;
