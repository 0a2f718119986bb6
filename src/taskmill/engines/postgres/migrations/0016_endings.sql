-- Ends: what an attempt leaves in the record (suspect, when it began), unique keys until the handler began, waits in a circle, bounds of checkpoints and signals;
-- and the times of administrative steps, which are read after their locks.

ALTER TABLE task ADD COLUMN started_at bigint;             -- of the attempt that runs: when its handler began, once that was said
ALTER TYPE outcome ADD ATTRIBUTE suspect boolean;          -- its process had to be killed
ALTER TABLE event ALTER COLUMN version TYPE bigint;        -- a term's number is a clock's

-- Pending, scheduled or retrying from `ready_at` on. `keep_lease`: its own holder ended it, so the lease stays known for the repeat of that step.
-- `told`: what the event says of the attempt that ended.
CREATE OR REPLACE FUNCTION set_ready(t task, new_state smallint, new_ready_at bigint, keep_lease boolean, now bigint, told json DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM leave_lane(t, new_ready_at);
  UPDATE task SET state = new_state, ready_at = new_ready_at, failures = t.failures, crashes = t.crashes, executions = t.executions, flags = t.flags,
    must_end = t.must_end, open_edges = t.open_edges, token = CASE WHEN keep_lease THEN t.token END, worker = CASE WHEN keep_lease THEN t.worker END,
    request = NULL, started_at = NULL, awaits = NULL, version = version + 1, updated_at = now
  WHERE id = t.id;
  PERFORM tell_task(kind_of(new_state), t.id, t.version + 1, now, told);
  PERFORM announce(ARRAY[queue_of(t.lane)]);
END $$;

CREATE OR REPLACE FUNCTION make_waiting(t task, deadline bigint, new_awaits text, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM leave_lane(t, NULL);
  UPDATE task SET state = 4, ready_at = deadline, flags = t.flags, open_edges = t.open_edges, awaits = new_awaits, started_at = NULL, failures = t.failures, crashes = t.crashes,
    version = version + 1, updated_at = now
  WHERE id = t.id;
  PERFORM tell_task('task.waiting', t.id, t.version + 1, now);
END $$;

-- Completed, dead or cancelled. If an attempt ended it, its lease stays in the record; one that ended earlier has its own.
CREATE OR REPLACE FUNCTION make_ended(t task, new_state smallint, now bigint, new_error json DEFAULT NULL, new_result json DEFAULT NULL, new_phase text DEFAULT NULL,
  started_after bigint DEFAULT NULL) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  attempt boolean := t.state = 3;
  owed json;
BEGIN
  PERFORM leave_lane(t, NULL);
  DELETE FROM task WHERE id = t.id;
  INSERT INTO ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, claimed_at, started_at,
    must_end, phase, progress, opened, result, error)
  VALUES (t.id, t.seq, new_state, t.flags & ~(2 | 64 | 128 | CASE WHEN new_state = 5 THEN 2048 ELSE 0 END), t.version + 1, t.executions, t.failures, t.crashes, t.open_edges, now,
    CASE WHEN attempt THEN t.token END, CASE WHEN attempt THEN t.worker END, t.claimed_at, coalesce(t.claimed_at + started_after, CASE WHEN attempt THEN t.started_at END),
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

-- The record of an attempt that did not end its task.
CREATE OR REPLACE FUNCTION keep_attempt(t task, how text, began_at bigint, why json, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO task_attempts (id, number, worker, token, started_at, ended_at, outcome, error)
  VALUES (t.id, t.executions, t.worker, t.token, coalesce(began_at, t.started_at, t.claimed_at), now, how, why) ON CONFLICT DO NOTHING;
END $$;

-- Completed, whole batches at a time; a single result is that of all. Answers how many of them ended now, and whether edges fall with them;
-- those that did not end are judged by refuse_completed.
CREATE OR REPLACE FUNCTION complete(p_worker text, p_ids uuid[], p_tokens bigint[], p_started bigint[], p_results text[], now bigint, OUT done integer, OUT falls boolean)
LANGUAGE plpgsql AS $$
DECLARE
  s store;
  one text := CASE WHEN cardinality(p_results) = 1 THEN p_results[1] END;
  kept boolean;
  bits integer;
  lanes bigint[];
  seqs bigint[];
  marks integer[];
  waited uuid[];
  odd uuid[];
BEGIN
  SELECT * INTO s FROM store;
  kept := s.listen_until > now OR 'ended' = ANY (s.outbox_kinds);
  WITH gone AS (
    DELETE FROM task t USING unnest(p_ids, p_tokens, p_started, p_results) u(id, token, started, result)
    WHERE t.id = ANY (ARRAY[u.id]) AND t.token = u.token AND t.worker = p_worker AND t.state + 0 = 3
    RETURNING t.id, t.seq, t.lane, t.flags, t.version, t.executions, t.failures, t.crashes, t.open_edges, t.token, t.claimed_at, t.must_end, t.phase, t.progress,
      t.opened, u.started, u.result
  ), put AS (
    INSERT INTO ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, token, worker, claimed_at, started_at,
      must_end, phase, progress, opened, result)
    SELECT id, seq, 5, flags & ~(2 | 64 | 128 | 2048), version + 1, executions, failures, crashes, open_edges, now, token, p_worker, claimed_at, claimed_at + started,
      must_end, phase, progress, opened, coalesce(result, one)::json
    FROM gone
  )
  SELECT count(*), coalesce(bit_or(flags), 0), array_agg(lane) FILTER (WHERE lane > 0), array_agg(seq) FILTER (WHERE lane > 0),
    array_agg(flags) FILTER (WHERE lane > 0), array_agg(id) FILTER (WHERE flags & 32 <> 0), array_agg(id) FILTER (WHERE kept OR flags & (4 | 8 | 1024) <> 0)
  INTO done, bits, lanes, seqs, marks, waited, odd FROM gone;
  IF lanes IS NOT NULL THEN
    INSERT INTO stir (lane, freed, look) SELECT u.lane, count(*), bool_or(u.flags & 1 <> 0) FROM unnest(lanes, marks) u(lane, flags) GROUP BY u.lane;
    IF bits & 1 <> 0 THEN
      DELETE FROM ordered o USING unnest(lanes, seqs, marks) u(lane, seq, flags) WHERE u.flags & 1 <> 0 AND o.lane = ANY (ARRAY[u.lane]) AND o.seq = u.seq;
    END IF;
  END IF;
  IF waited IS NOT NULL THEN
    INSERT INTO falling (id, state) SELECT u.id, 5 FROM unnest(waited) u(id);
  END IF;
  IF odd IS NOT NULL THEN
    DELETE FROM held WHERE bits & (4 | 8) <> 0 AND id = ANY (odd);
    DELETE FROM signal WHERE bits & 1024 <> 0 AND id = ANY (odd);
    IF kept THEN
      PERFORM tell_completed(odd, now);
    END IF;
  END IF;
  IF done > 0 AND s.wait_until > now THEN
    PERFORM pg_notify(current_schema(), 'ended');
  END IF;
  falls := waited IS NOT NULL;
END $$;

-- A unique key that is held until the start is free when the handler has begun.
CREATE FUNCTION free_started(t task) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF t.flags & 4 <> 0 THEN
    DELETE FROM held WHERE id = t.id;
  END IF;
END $$;

-- One outcome under a current lease; the row is locked. The ways to go on: a wait is begun by the caller, because it may be for tasks that are started with it.
-- Answers the state it came to where that is not the one asked for.
CREATE OR REPLACE FUNCTION end_attempt(t task, o outcome, now bigint) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
  why json := o.error::json;
BEGIN
  IF o.started_after IS NOT NULL OR o.ending = 'crashed' THEN
    PERFORM free_started(t);
  END IF;
  IF NOT is_terminal(o.ending) AND NOT (o.ending = 'released' AND o.started_after IS NULL AND t.flags & 2 = 0) THEN
    PERFORM keep_attempt(t, CASE o.ending WHEN 'retry' THEN 'failed' ELSE o.ending END, t.claimed_at + o.started_after, why, now);
    IF t.flags & 2 <> 0 THEN
      RETURN make_cancelled(t, now);
    END IF;
  END IF;
  CASE o.ending
    WHEN 'completed' THEN
      PERFORM make_ended(t, 5::smallint, now, why, o.result::json, NULL, o.started_after);
    WHEN 'dead' THEN
      t.failures := t.failures + 1;
      PERFORM make_ended(t, 6::smallint, now, why, o.result::json, CASE WHEN t.flags & 256 <> 0 THEN 'compensation_failed' END, o.started_after);
    WHEN 'cancelled' THEN
      PERFORM make_ended(t, 7::smallint, now, why, o.result::json, NULL, o.started_after);
    WHEN 'retry' THEN
      t.failures := t.failures + 1;
      PERFORM set_ready(t, 2::smallint, now + o.after, true, now, of_attempt(t, why, o.started_after, now));
    WHEN 'snoozed' THEN
      PERFORM set_ready(t, 1::smallint, now + o.after, true, now, of_attempt(t, NULL, o.started_after, now));
    WHEN 'released' THEN
      t.executions := t.executions - (o.started_after IS NULL)::integer;
      PERFORM make_ready(t, t.ready_at, now, NULL, true);
    WHEN 'crashed' THEN
      PERFORM crash(t, why, true, now);
    WHEN 'waiting' THEN
      NULL;
  END CASE;
  RETURN NULL;
END $$;

-- Whether one of these tasks waits for that one, as far as a walk over 1,000 open edges sees.
CREATE FUNCTION wait_for(ids uuid[], target uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM (
    WITH RECURSIVE walk(id) AS (
      SELECT unnest(ids)
      UNION SELECT e.child FROM walk w JOIN edge e ON e.parent = ANY (ARRAY[w.id]) WHERE e.outcome IS NULL AND (SELECT d.id FROM ended d WHERE d.id = e.child) IS NULL)
    SELECT id FROM walk LIMIT 1000) x WHERE x.id = target);
END $$;

-- The same for whoever has more edges in hand: the first 1,000 open edges of a walk from these tasks.
CREATE FUNCTION open_walk(p_ids uuid[]) RETURNS TABLE (parent text, child text) LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN QUERY WITH RECURSIVE walk(parent, child) AS (
      SELECT e.parent, e.child FROM unnest(p_ids) u(id) JOIN edge e ON e.parent = ANY (ARRAY[u.id]) WHERE e.outcome IS NULL AND (SELECT d.id FROM ended d WHERE d.id = e.child) IS NULL
      UNION SELECT e.parent, e.child FROM walk w JOIN edge e ON e.parent = ANY (ARRAY[w.child])
        WHERE e.outcome IS NULL AND (SELECT d.id FROM ended d WHERE d.id = e.child) IS NULL)
    SELECT w.parent::text, w.child::text FROM walk w LIMIT 1000;
END $$;

-- One outcome.
CREATE OR REPLACE FUNCTION finish_one(o outcome, p_generation bigint, p_patience integer, p_own boolean, now bigint) RETURNS ending LANGUAGE plpgsql AS $$
DECLARE
  t task;
  unknown uuid;
  came_to smallint;
  children uuid[] := '{}';
  awaited uuid[];
BEGIN
  SELECT * INTO t FROM task WHERE id = o.task AND token = o.token AND worker = o.worker AND state + 0 = 3 FOR UPDATE;
  IF NOT FOUND THEN
    RETURN judge_stale(o);
  END IF;
  IF o.ending = 'waiting' THEN
    SELECT u.id INTO unknown FROM unnest(o.tasks) u(id) WHERE (SELECT b.id FROM body b WHERE b.id = u.id) IS NULL
      AND (SELECT k.id FROM known k WHERE k.id = u.id AND k.until > now) IS NULL LIMIT 1;
    IF FOUND THEN
      RETURN (o.task::text, o.token, 'unknown_edge', unknown::text, NULL)::ending;
    END IF;
    awaited := o.tasks || ARRAY(SELECT json_array_elements_text(o.starts -> 'edge_to')::uuid);
    IF t.id = ANY (awaited) OR t.flags & 32 <> 0 AND wait_for(awaited, t.id) THEN
      RETURN (o.task::text, o.token, 'cycle', NULL, NULL)::ending;
    END IF;
  END IF;
  IF o.wrong IS NOT NULL THEN
    RETURN (o.task::text, o.token, 'refused', o.wrong, NULL)::ending;
  END IF;
  IF o.suspect OR o.ending = 'crashed' THEN
    t.flags := t.flags | 2048;
  END IF;
  came_to := end_attempt(t, o, now);
  IF o.starts IS NOT NULL THEN
    children := start_those(o, p_generation, p_patience, p_own, now);
  END IF;
  IF came_to IS NOT NULL THEN
    RETURN (o.task::text, o.token, NULL, NULL, came_to)::ending;
  END IF;
  IF o.ending = 'waiting' THEN
    PERFORM begin_to_wait(t, o, children, now);
  END IF;
  RETURN NULL;
END $$;

-- The entry point. Completed ones of one worker come as arrays, everything else as a list of outcomes. Answers a row for each that was refused or came to another
-- state, and one without a task when edges are owed that settle should apply now. `p_own`: not in a user's transaction.
CREATE OR REPLACE FUNCTION finish(p_worker text, p_ids uuid[], p_tokens bigint[], p_started bigint[], p_results text[], p_rest json,
  p_generation bigint, p_patience integer, p_own boolean, p_now bigint) RETURNS SETOF ending LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  rest outcome[] := '{}';
  o outcome;
  e ending;
  ended_now integer;
  bad bigint[];
  owes boolean := false;
BEGIN
  IF NOT p_own THEN
    PERFORM set_config('taskmill.quiet', 'on', true);
  END IF;
  IF p_rest IS NOT NULL THEN
    rest := ARRAY(
      SELECT json_populate_record(NULL::outcome, x.value) FROM json_array_elements(p_rest) WITH ORDINALITY x(value, place) ORDER BY (x.value ->> 'task')::uuid, x.place);
    PERFORM 1 FROM task t WHERE t.id = ANY (p_ids || ARRAY(SELECT r.task FROM unnest(rest) r)) AND t.state + 0 = 3
      AND t.token = ANY (p_tokens || ARRAY(SELECT r.token FROM unnest(rest) r)) ORDER BY uuid_send(t.id) FOR UPDATE;
  END IF;
  now := moment(p_now);
  IF p_ids <> '{}' THEN
    IF p_results IS NULL THEN
      SELECT c.done, c.falls INTO ended_now, owes FROM complete(p_worker, p_ids, p_tokens, p_started, p_results, now) c;
    ELSE
      SELECT c.done, c.falls, c.bad INTO ended_now, owes, bad FROM complete_with_results(p_worker, p_ids, p_tokens, p_started, p_results, now) c;
    END IF;
    IF ended_now < cardinality(p_ids) THEN
      RETURN QUERY SELECT r.task, r.token, CASE WHEN r.token = ANY (bad) THEN 'refused' ELSE r.code END, CASE WHEN r.token = ANY (bad) THEN ' invalid_json ' END, r.state
        FROM refuse_completed(p_worker, p_ids, p_tokens) r;
    END IF;
  END IF;
  FOREACH o IN ARRAY rest LOOP
    IF o.starts IS NULL AND o.result IS NULL THEN
      e := finish_one(o, p_generation, p_patience, p_own, now);
    ELSE
      e := finish_and_start(o, p_generation, p_patience, p_own, now);
    END IF;
    IF e.task IS NOT NULL THEN
      RETURN NEXT e;
    END IF;
  END LOOP;
  IF p_own AND (owes OR EXISTS (SELECT 1 FROM falling) OR EXISTS (SELECT 1 FROM late_edge WHERE NOT absent)) THEN
    RETURN NEXT NULL::ending;
  END IF;
END $$;

-- What running tasks have done so far, one element an entry. Answers those whose lease is not current, and those that would have too much. `p_started`: how long after
-- the claim the handler began; that alone is no change that others are told of.
CREATE FUNCTION checkpoint(p_ids uuid[], p_tokens bigint[], p_workers text[], p_names text[], p_values bytea[], p_progress text[], p_unwind boolean[],
  p_phases text[], p_started bigint[], p_most integer, p_most_bytes bigint, p_now bigint) RETURNS SETOF ending LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  t task;
  u record;
  seen record;
  changes integer;
BEGIN
  PERFORM 1 FROM task WHERE id = ANY (p_ids) AND state + 0 = 3 AND token = ANY (p_tokens) ORDER BY uuid_send(id) FOR UPDATE;
  now := moment(p_now);
  FOR u IN
    SELECT x.*, octet_length(x.name) + octet_length(x.value) AS size
    FROM unnest(p_ids, p_tokens, p_workers, p_names, p_values, p_progress, p_unwind, p_phases, p_started) x(id, token, worker, name, value, progress, unwind, phase, started)
  LOOP
    SELECT * INTO t FROM task WHERE id = u.id AND token = u.token AND worker = u.worker AND state + 0 = 3;
    IF NOT FOUND THEN
      RETURN QUERY SELECT u.id::text, u.token, CASE WHEN EXISTS (SELECT 1 FROM body b WHERE b.id = u.id) THEN 'stale_lease' ELSE 'not_found' END, NULL::text, NULL::smallint;
      CONTINUE;
    END IF;
    SELECT count(*) FILTER (WHERE c.name <> u.name) AS others, coalesce(sum(octet_length(c.name) + octet_length(c.value)), 0) AS bytes,
      coalesce(sum(octet_length(c.name) + octet_length(c.value)) FILTER (WHERE c.name = u.name), 0) AS replaced
    INTO seen FROM checkpoint c WHERE u.name IS NOT NULL AND t.flags & 512 <> 0 AND c.id = u.id;
    IF seen.others >= p_most OR seen.bytes - seen.replaced + u.size > p_most_bytes THEN
      RETURN NEXT (u.id::text, u.token, CASE WHEN seen.others >= p_most THEN 'too_many_steps' ELSE 'steps_too_large' END, NULL, NULL)::ending;
      CONTINUE;
    END IF;
    changes := (num_nonnulls(u.name, u.progress, u.unwind, u.phase) > 0 OR u.started IS NULL)::integer;
    UPDATE task SET progress = coalesce(u.progress, task.progress), phase = coalesce(u.phase, task.phase), version = version + changes,
      updated_at = CASE changes WHEN 1 THEN now ELSE updated_at END, size = t.size + CASE WHEN u.name IS NULL THEN 0 ELSE u.size - seen.replaced END,
      started_at = coalesce(claimed_at + u.started, task.started_at),
      flags = (flags | CASE WHEN u.name IS NULL THEN 0 ELSE 512 END | CASE WHEN u.unwind THEN 256 ELSE 0 END) & CASE WHEN NOT u.unwind THEN ~256 ELSE ~0 END
    WHERE id = u.id;
    IF u.name IS NOT NULL THEN
      INSERT INTO checkpoint (id, name, value) VALUES (u.id, u.name, u.value) ON CONFLICT (id, name) DO UPDATE SET value = excluded.value;
    END IF;
    IF u.started IS NOT NULL THEN
      PERFORM free_started(t);
    END IF;
    IF changes = 1 THEN
      PERFORM tell_task('task.progress', u.id, t.version + 1, now, CASE WHEN u.progress IS NULL THEN json_build_object('checkpoint', u.name)
        ELSE json_build_object('value', u.progress::json -> 'value', 'message', coalesce(u.progress::json ->> 'message', '')) END);
    END IF;
  END LOOP;
END $$;

-- A signal, kept once by its id. Answers its number, or why not: `state` of a task that has ended, or code `expired`, `not_found`, `too_many_signals` or `signals_too_large`. `stirs`: a lane has a task more.
CREATE FUNCTION signal(p_task uuid, p_name text, p_data bytea, p_id text, p_most integer, p_most_bytes bigint, p_now bigint, OUT number bigint, OUT state smallint, OUT code text, OUT stirs boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  now bigint;
  t task;
  awaited boolean := false;
BEGIN
  stirs := false;
  SELECT * INTO t FROM task WHERE id = p_task FOR UPDATE;
  now := moment(p_now);
  IF NOT FOUND THEN
    signal.state := (SELECT e.state FROM ended e WHERE e.id = p_task);
    IF signal.state IS NULL THEN
      signal.code := CASE WHEN EXISTS (SELECT 1 FROM known k WHERE k.id = p_task AND k.until > now) THEN 'expired' ELSE 'not_found' END;
    END IF;
    RETURN;
  END IF;
  signal.number := (SELECT s.number FROM signal s WHERE s.id = p_task AND s.signal_id = p_id);
  IF signal.number IS NOT NULL THEN
    RETURN;
  END IF;
  SELECT CASE WHEN count(*) >= p_most THEN 'too_many_signals'
    WHEN coalesce(sum(octet_length(s.name) + octet_length(s.data)), 0) + octet_length(p_name) + octet_length(p_data) > p_most_bytes THEN 'signals_too_large' END,
    coalesce(max(s.number), 0) + 1
  INTO signal.code, signal.number FROM signal s WHERE s.id = p_task;
  IF signal.code IS NOT NULL THEN
    RETURN;
  END IF;
  INSERT INTO signal (id, number, signal_id, name, data, at) VALUES (p_task, signal.number, p_id, p_name, p_data, now);
  IF t.flags & 128 <> 0 AND t.state = 4 THEN
    awaited := signal.number > (t.awaits::json ->> 0)::bigint AND EXISTS (SELECT 1 FROM json_array_elements_text(t.awaits::json -> 1) n(name) WHERE n.name = p_name);
  END IF;
  t.flags := (t.flags | 1024) & CASE WHEN awaited THEN ~128 ELSE ~0 END;
  t.version := t.version + 1;
  UPDATE task SET flags = t.flags, version = t.version, updated_at = now, size = size + octet_length(p_name) + octet_length(p_data) WHERE id = p_task;
  PERFORM tell_task('task.signalled', p_task, t.version, now, json_build_object('name', p_name, 'number', signal.number));
  IF awaited AND t.open_edges = 0 THEN
    PERFORM make_ready(t, now, now, NULL, true);
    stirs := t.lane > 0;
  END IF;
END $$;

-- The holder of a unique key takes the new one's payload, priority and time; it keeps its id, its line and its edges. False: it runs.
CREATE OR REPLACE FUNCTION replace_task(t task, p_payload json, p_run_at bigint, p_priority smallint, p_own boolean, now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF t.state = 3 THEN
    RETURN false;
  END IF;
  PERFORM leave_lane(t, 0);
  UPDATE task SET state = CASE WHEN t.state = 4 THEN 4 WHEN p_run_at > now THEN 1 ELSE 0 END,
    ready_at = CASE WHEN t.state = 4 THEN ready_at WHEN p_run_at > now THEN p_run_at ELSE now END,
    priority = p_priority, size = size + octet_length(p_payload::text) - (SELECT octet_length(b.payload::text) FROM body b WHERE b.id = t.id), version = version + 1, updated_at = now WHERE id = t.id;
  UPDATE body SET payload = p_payload, run_at = p_run_at, priority = p_priority WHERE id = t.id;
  PERFORM tell_task('task.replaced', t.id, t.version + 1, now);
  IF p_own THEN
    PERFORM announce(ARRAY[queue_of(t.lane)]);
  END IF;
  RETURN true;
END $$;

-- Up to n leases of workers that are silent for longer than their lease are lost; then a slice of what only time or a clock that was set back has decided.
-- Nobody is judged by a time in which the store, or recovery itself, did not look: after half a lease of that, every lease is first given one lease more, as
-- too little would be left to beat in. Rows that somebody holds are passed over: a worker is forgotten when
-- nothing is left of it, so no lease is left behind.
CREATE OR REPLACE FUNCTION recover(p_n integer, p_lease bigint, p_now bigint, p_mono bigint)
RETURNS TABLE (moved integer, more boolean, lost text[], moving boolean, owes boolean) LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  mono bigint;
  s store;
  fair bigint;
  newest bigint;
  back bigint;
  dead text;
  t task;
  expired integer;
BEGIN
  moved := 0;
  more := false;
  lost := '{}';
  LOCK TABLE workers, task, item IN ROW EXCLUSIVE MODE;  -- what beats need: while somebody keeps them out, no mark says that they could have come
  now := moment(p_now);
  mono := moment(p_mono);
  SELECT * INTO s FROM store;
  fair := CASE WHEN mono - s.mark_at NOT BETWEEN -p_lease AND p_lease / 2 THEN mono ELSE s.fair_since END;
  IF mono < s.mark_at - p_lease THEN
    UPDATE workers w SET beat_at = mono WHERE w.id = ANY (ARRAY(SELECT k.id FROM workers k WHERE k.beat_at > mono FOR UPDATE SKIP LOCKED));
  END IF;
  FOR dead IN SELECT w.id FROM workers w WHERE mono - greatest(w.beat_at, fair) > w.lease ORDER BY w.joined_at, w.id FOR UPDATE SKIP LOCKED LOOP
    FOR t IN SELECT * FROM task k WHERE k.worker = dead AND k.state = 3 ORDER BY uuid_send(k.id) LIMIT p_n - moved FOR UPDATE SKIP LOCKED LOOP
      IF t.started_at IS NOT NULL THEN
        PERFORM free_started(t);
      END IF;
      PERFORM keep_attempt(t, 'crashed', NULL, json_build_object('code', 'lease_lost', 'message', format('worker %s was not heard of any more', dead)), now);
      PERFORM crash(t, NULL, false, now);
      moved := moved + 1;
    END LOOP;
    EXIT WHEN moved >= p_n;
    IF NOT EXISTS (SELECT 1 FROM task k WHERE k.worker = dead AND k.state = 3) THEN
      DELETE FROM workers w WHERE w.id = dead;
      PERFORM tell('worker.lost', dead, 0, now);
      lost := lost || dead;
    END IF;
  END LOOP;
  expired := expire(p_n, now);
  SELECT b.created_at INTO newest FROM body b ORDER BY b.seq DESC LIMIT 1;
  back := greatest(s.newest_at, CASE WHEN newest = s.settled_at THEN 0 ELSE newest END) - now;
  IF back > 100000 THEN  -- less is what two steps at once may differ by
    more := pull_pending(back, p_n, now);
    newest := CASE WHEN more THEN s.settled_at ELSE newest END;
  ELSE
    newest := s.settled_at;
  END IF;
  UPDATE store SET mark_at = mono, fair_since = fair, newest_at = CASE WHEN more THEN s.newest_at ELSE now END, settled_at = newest
  WHERE one = (SELECT k.one FROM store k FOR UPDATE SKIP LOCKED);
  more := more OR moved >= p_n OR expired >= p_n;
  moved := moved + expired;
  moving := EXISTS (SELECT 1 FROM moving);
  owes := anything_owed(now);
  RETURN NEXT;
END $$;

-- An id that is only reserved is cancelled: its task, when it comes, is a duplicate, and edges onto it fall.
CREATE FUNCTION cancel_reserved(p_id uuid, now bigint) RETURNS changed LANGUAGE plpgsql AS $$
BEGIN
  UPDATE known SET state = 7 WHERE id = p_id AND until > now AND (state IS NULL OR state = 7 AND version = 0);
  IF NOT FOUND THEN
    RETURN missing(p_id, NULL, now);
  END IF;
  UPDATE late_edge l SET absent = false FROM edge e WHERE e.child = p_id AND l.edge = ANY (ARRAY[e.number]) AND l.absent;
  RETURN (NULL, true, 7, NULL, false, NULL)::changed;
END $$;

CREATE OR REPLACE FUNCTION cancel_tasks(p_ids uuid[], p_versions integer[], p_states smallint[], p_now bigint) RETURNS SETOF changed LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  kept text;
  r record;
  t task;
  e ended;
  c changed;
BEGIN
  FOR r IN SELECT * FROM unnest(p_ids, p_versions) WITH ORDINALITY u(id, version, place) ORDER BY u.id, u.place LOOP
    kept := lock_record(r.id);
    now := moment(p_now);
    CASE kept
    WHEN 'task' THEN
      SELECT * INTO t FROM task WHERE id = r.id;
      CONTINUE WHEN state_now(t.state, t.ready_at, now) <> ALL (p_states);
      c := cancel_one(t, r.version, now);
    WHEN 'ended' THEN
      SELECT * INTO e FROM ended WHERE id = r.id;
      CONTINUE WHEN e.state <> ALL (p_states);
      IF e.state = 7 AND (r.version IS NULL OR e.version = r.version + 1) THEN
        c := (NULL, true, e.state, e.version, false, NULL)::changed;
      ELSE
        c := refused(e.state, e.version, 'terminal');
      END IF;
    ELSE
      c := cancel_reserved(r.id, now);
    END CASE;
    c.place := r.place;
    RETURN NEXT c;
  END LOOP;
END $$;

-- Back among the live, in the lane that it belongs to now. What waits for it has fallen with what it came to the first time, whatever comes next.
CREATE OR REPLACE FUNCTION open_again(e ended, p_lane bigint, p_from_start boolean, now bigint) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
  b body;
  waits boolean := e.open_edges > 0;
BEGIN
  SELECT * INTO b FROM body WHERE id = e.id;
  PERFORM keep_last_attempt(e);
  IF e.flags & 32 <> 0 THEN
    UPDATE edge SET outcome = e.state, result = e.result WHERE child = e.id AND outcome IS NULL AND (e.state = 5 OR on_failure <> 2);
  END IF;
  IF p_from_start THEN
    DELETE FROM checkpoint WHERE id = e.id;
  END IF;
  IF b.expires_at <= now THEN
    UPDATE body SET expires_at = NULL WHERE id = e.id;
    b.expires_at := NULL;
  END IF;
  DELETE FROM ended WHERE id = e.id;
  INSERT INTO task (id, seq, lane, type, state, priority, flags, size, version, executions, open_edges, ready_at, updated_at, expires_at, must_end, phase, opened)
  VALUES (e.id, e.seq, p_lane, b.type, CASE WHEN waits THEN 4 ELSE 0 END, b.priority, e.flags & ~(2048 | 4096 | CASE WHEN p_from_start THEN 256 ELSE 0 END),
    octet_length(b.payload::text) + coalesce(octet_length(b.meta), 0)
      + coalesce((SELECT sum(octet_length(c.name) + octet_length(c.value)) FROM checkpoint c WHERE c.id = e.id AND e.flags & 512 <> 0), 0), e.version + 1, e.executions, e.open_edges, CASE WHEN waits THEN 4611686018427387904 ELSE now END, now, b.expires_at,
    CASE WHEN NOT p_from_start THEN e.must_end END, CASE WHEN NOT p_from_start THEN e.phase END, e.version);
  INSERT INTO expiry (at, id) SELECT b.expires_at, e.id WHERE b.expires_at IS NOT NULL ON CONFLICT DO NOTHING;
  INSERT INTO ordered (lane, seq, id) SELECT p_lane, e.seq, e.id WHERE e.flags & 1 <> 0 ON CONFLICT DO NOTHING;
  INSERT INTO stir (lane) SELECT p_lane WHERE p_lane > 0;
  PERFORM tell_task('task.ready', e.id, e.version + 1, now);
  PERFORM announce(ARRAY[queue_of(p_lane)]);
  RETURN CASE WHEN waits THEN 4 ELSE 0 END;
END $$;

-- Of an ended task. `gated`: the gate is held, so the count of its edges stands still; one that got edges only now was not ended when this was asked.
CREATE OR REPLACE FUNCTION requeue_one(e ended, p_version integer, p_from_start boolean, p_share text, p_limits text[], p_order text, p_unique text, gated boolean, now bigint)
RETURNS changed LANGUAGE plpgsql AS $$
DECLARE
  b body;
  lane_number bigint;
BEGIN
  IF e.version <> p_version THEN
    RETURN refused(e.state, e.version, 'stale_version');
  ELSIF e.flags & 16 <> 0 AND NOT gated THEN
    RETURN refused(e.state, e.version, 'not_terminal');
  ELSIF EXISTS (SELECT 1 FROM falling WHERE id = e.id) OR EXISTS (SELECT 1 FROM edge g JOIN late_edge l ON l.edge = g.number WHERE g.child = e.id) THEN
    RETURN refused(e.state, e.version, 'edges_falling');  -- they fall with the end that decided them, before there can be another
  END IF;
  SELECT * INTO b FROM body WHERE id = e.id;
  IF p_unique IS NOT NULL AND e.flags & (4 | 8) <> 0 THEN
    INSERT INTO held (tenant, type, key, id) VALUES (b.tenant, b.type, p_unique, e.id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN refused(e.state, e.version, 'unique_held');
    END IF;
  END IF;
  lane_number := lane_id(queue_id(b.queue), p_share, CASE WHEN e.flags & 8192 = 0 THEN p_limits ELSE caps_of(p_limits) END, p_order, '');
  RETURN (NULL, true, open_again(e, lane_number, p_from_start, now), e.version + 1, false, NULL)::changed;
END $$;

CREATE OR REPLACE FUNCTION requeue_tasks(p_ids uuid[], p_versions integer[], p_states smallint[], p_from_start boolean, p_shares text[], p_limits text[], p_orders text[],
  p_uniques text[], p_now bigint) RETURNS SETOF changed LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  gated boolean;
  kept text;
  r record;
  t task;
  e ended;
  c changed;
BEGIN
  gated := EXISTS (SELECT 1 FROM ended k WHERE k.id = ANY (p_ids) AND k.flags & 16 <> 0);
  IF gated THEN  -- before any row is locked: whoever has the gate may wait for a row of ended
    PERFORM gate();
  END IF;
  FOR r IN
    SELECT * FROM unnest(p_ids, p_versions, p_shares, p_limits, p_orders, p_uniques) WITH ORDINALITY u(id, version, share, limits, order_key, unique_key, place)
    ORDER BY u.id, u.place
  LOOP
    kept := lock_record(r.id);
    now := moment(p_now);
    CASE kept
    WHEN 'task' THEN
      SELECT * INTO t FROM task WHERE id = r.id;
      CONTINUE WHEN state_now(t.state, t.ready_at, now) <> ALL (p_states);
      c := refused(state_now(t.state, t.ready_at, now), t.version, 'not_terminal');
      IF t.opened = r.version THEN
        c.done := true;
        c.code := NULL;
      END IF;
    WHEN 'ended' THEN
      SELECT * INTO e FROM ended WHERE id = r.id;
      CONTINUE WHEN e.state <> ALL (p_states);
      IF e.opened = r.version THEN
        c := (NULL, true, e.state, e.version, false, NULL)::changed;
      ELSIF r.share IS NULL THEN  -- it was not there when the caller looked
        c := refused(NULL, NULL, 'not_found');
      ELSE
        c := requeue_one(e, r.version, p_from_start, r.share, ARRAY(SELECT json_array_elements_text(r.limits::json)), r.order_key, r.unique_key, gated, now);
      END IF;
    ELSE
      c := missing(r.id, NULL, now);
    END CASE;
    c.place := r.place;
    RETURN NEXT c;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION delete_tasks(p_ids uuid[], p_versions integer[], p_states smallint[], p_hashes bytea[], p_now bigint) RETURNS SETOF changed LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  kept text;
  r record;
  t task;
  e ended;
  c changed;
BEGIN
  FOR r IN SELECT * FROM unnest(p_ids, p_versions, p_hashes) WITH ORDINALITY u(id, version, hash, place) ORDER BY u.id, u.place LOOP
    kept := lock_record(r.id);
    now := moment(p_now);
    CASE kept
    WHEN 'task' THEN
      SELECT * INTO t FROM task WHERE id = r.id;
      CONTINUE WHEN state_now(t.state, t.ready_at, now) <> ALL (p_states);
      c := refused(state_now(t.state, t.ready_at, now), t.version, 'not_terminal');
    WHEN 'ended' THEN
      SELECT * INTO e FROM ended WHERE id = r.id;
      CONTINUE WHEN e.state <> ALL (p_states);
      IF r.hash IS NULL THEN  -- it was not there when the caller looked
        c := refused(NULL, NULL, 'not_found');
      ELSIF e.version <> r.version THEN
        c := refused(e.state, e.version, 'stale_version');
      ELSIF owes_something(e.id) THEN
        c := refused(e.state, e.version, 'undelivered');
      ELSE
        PERFORM tell_task('task.deleted', e.id, e.version + 1, now);
        PERFORM purge(ARRAY[e.id], ARRAY[r.hash], now);
        c := (NULL, true, e.state, e.version, false, NULL)::changed;
      END IF;
    ELSE
      c := missing(r.id, r.version, now);
    END CASE;
    c.place := r.place;
    RETURN NEXT c;
  END LOOP;
END $$;

-- When the id of a removed task is no longer known: its own window after it was submitted, or 72 hours.
CREATE OR REPLACE FUNCTION known_until(created_at bigint, meta text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT created_at + coalesce(nullif(substring(meta FROM '"window": ?([0-9]+)')::bigint, 0), 259200000000)
$$;

-- Remove these records, whose rows in ended the caller holds; an id stays known for its window unless it was rejected (with the hash of its payload; no hashes: all windows have passed), an
-- outcome with those who waited for it, and a result with those of them that live. An edge that is held open by a failure stays open.
CREATE OR REPLACE FUNCTION purge(p_ids uuid[], p_hashes bytea[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_hashes <> '{}' THEN
    INSERT INTO known (id, state, version, hash, until)
    SELECT e.id, e.state, e.version, u.hash, known_until(b.created_at, b.meta) FROM unnest(p_ids, p_hashes) u(id, hash) JOIN ended e ON e.id = ANY (ARRAY[u.id]) JOIN body b ON b.id = ANY (ARRAY[u.id])
    WHERE known_until(b.created_at, b.meta) > now AND e.flags & 4096 = 0
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, version = excluded.version, hash = excluded.hash, until = excluded.until;
  END IF;
  UPDATE edge g SET outcome = e.state, result = CASE WHEN (SELECT t.id FROM task t WHERE t.id = g.parent) IS NOT NULL THEN e.result END
  FROM ended e WHERE e.id = ANY (p_ids) AND g.child = ANY (ARRAY[e.id]) AND g.outcome IS NULL AND (e.state = 5 OR g.on_failure <> 2);
  DELETE FROM edge WHERE parent = ANY (p_ids);
  DELETE FROM task_attempts WHERE id = ANY (p_ids);
  DELETE FROM checkpoint WHERE id = ANY (p_ids);
  DELETE FROM body WHERE id = ANY (p_ids);
  DELETE FROM ended WHERE id = ANY (p_ids);
END $$;

-- Records, oldest first, that ended longer ago than those of their state are kept (completed, dead, cancelled). An id that stays known needs the hash of its
-- payload, which only the caller can make: a few such are named instead of removed (see prune_known).
CREATE OR REPLACE FUNCTION prune(p_role text, p_holder text, p_number bigint, p_n integer, p_kept bigint[], p_now bigint)
RETURNS TABLE (stale boolean, moved integer, more boolean, ids text[], payloads text[]) LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  old uuid[];
  plain uuid[];
  hashed uuid[] := '{}';
BEGIN
  moved := 0;
  more := false;
  stale := NOT holds_term(p_role, p_holder, p_number);
  FOR place IN 1..3 LOOP
    EXIT WHEN stale OR moved + cardinality(hashed) >= p_n;
    old := ARRAY(SELECT e.id FROM ended e WHERE e.state = 4 + place AND e.finished_at <= now - p_kept[place]
      -- As owes_something says it; a call for each costs as much again as all the rest.
      AND (SELECT o.number FROM outbox o WHERE o.subject = e.id::text LIMIT 1) IS NULL AND (SELECT f.number FROM falling f WHERE f.id = e.id LIMIT 1) IS NULL
      AND (SELECT l.edge FROM edge g JOIN late_edge l ON l.edge = ANY (ARRAY[g.number]) WHERE g.child = e.id LIMIT 1) IS NULL
      ORDER BY e.finished_at LIMIT p_n - moved - cardinality(hashed) FOR UPDATE SKIP LOCKED);
    plain := ARRAY(SELECT b.id FROM body b WHERE b.id = ANY (old)
      AND (known_until(b.created_at, b.meta) <= now OR (SELECT e.flags & 4096 FROM ended e WHERE e.id = b.id) <> 0));
    PERFORM purge(plain, ARRAY[]::bytea[], now);
    moved := moved + cardinality(plain);
    hashed := hashed || ARRAY(SELECT unnest(old) EXCEPT SELECT unnest(plain));
  END LOOP;
  IF cardinality(hashed) > 50 THEN  -- of up to 256 KiB each
    hashed := hashed[:50];
    more := true;
  END IF;
  SELECT array_agg(b.id::text), array_agg(b.payload::text) INTO ids, payloads FROM body b WHERE b.id = ANY (hashed);
  RETURN NEXT;
END $$;

-- What one of these verbs answers, as a list of rows. A step that goes through here does not announce: the transaction is its user's.
CREATE OR REPLACE FUNCTION answer_of(p_verb text, c json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
  patience text := current_setting('lock_timeout');
  found_rows json;
BEGIN
  CASE p_verb
    WHEN 'submit' THEN
      SELECT json_agg(json_build_array(v.place, v.status, v.id, v.reserved, v.code, v.message)) INTO found_rows
      FROM submit_document(c -> 'batch', (c ->> 'generation')::bigint, (c ->> 'patience')::integer, false, (c ->> 'now')::bigint) v;
    WHEN 'finish' THEN
      SELECT json_agg(json_build_array(e.task, e.token, e.code, e.message, e.state)) INTO found_rows
      FROM json_to_record(c) x(worker text, ids uuid[], tokens bigint[], started bigint[], results text[], rest json, generation bigint, patience integer, now bigint),
        LATERAL finish(x.worker, x.ids, x.tokens, x.started, x.results, x.rest, x.generation, x.patience, false, x.now) e;
    WHEN 'settings' THEN
      SELECT json_agg(json_build_array(s.generation, i.kind, i.name, convert_from(i.value, 'UTF8')) ORDER BY i.kind, i.name, i.operator) INTO found_rows
      FROM store s LEFT JOIN item i ON i.kind IN ('type', 'limit', 'queue', 'pause', 'outbox');
    WHEN 'items' THEN
      SELECT json_agg(json_build_array(i.name, convert_from(i.value, 'UTF8'), i.version, i.operator)) INTO found_rows
      FROM (SELECT DISTINCT ON (name) * FROM item WHERE kind = c ->> 'kind' ORDER BY name, operator DESC) i;
    WHEN 'walk' THEN
      SELECT json_agg(json_build_array(w.parent, w.child)) INTO found_rows FROM open_walk(ARRAY(SELECT json_array_elements_text(c -> 'ids')::uuid)) w;
    WHEN 'inbox' THEN
      found_rows := json_build_array(json_build_array(first_time(c ->> 'source', c ->> 'id', (c ->> 'patience')::integer, (c ->> 'now')::bigint)));
    WHEN 'names' THEN
      PERFORM set_config('lock_timeout', c ->> 'patience', true);
      PERFORM make_names(c -> 'lines');
      PERFORM set_config('lock_timeout', patience, true);
  END CASE;
  RETURN json_build_object('rows', coalesce(found_rows, '[]'));
END $$;

-- `expires` is the deadline of the whole task: at that time one that does not run is cancelled, also one that has begun before and waits. One that runs, or whose row
-- is locked, is looked at again later; one that must end already is left to its handler.
CREATE OR REPLACE FUNCTION expire(p_n integer, now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  due uuid[];
  found_id uuid;
  t task;
BEGIN
  WITH gone AS (
    DELETE FROM expiry e USING (SELECT at, id FROM expiry WHERE at <= now ORDER BY at, id LIMIT p_n FOR UPDATE SKIP LOCKED) d
    WHERE e.at = ANY (ARRAY[d.at]) AND e.id = d.id RETURNING e.id)
  SELECT array_agg(id ORDER BY id) INTO due FROM gone;
  FOREACH found_id IN ARRAY coalesce(due, '{}') LOOP
    SELECT * INTO t FROM task WHERE id = found_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND NOT EXISTS (SELECT 1 FROM task WHERE id = found_id) THEN
      CONTINUE;
    END IF;
    IF t.id IS NULL OR t.state = 3 THEN
      INSERT INTO expiry (at, id) VALUES (now + 1000000, found_id) ON CONFLICT DO NOTHING;
    ELSIF t.must_end IS NULL THEN
      PERFORM make_cancelled(t, now, '{"code":"expired","message":"its deadline (expires) has passed"}', 'expired');
    END IF;
  END LOOP;
  RETURN coalesce(cardinality(due), 0);
END $$;

-- Of these locked rows, in this order, take up to `most` that may be taken, and get the rest out of the way.
CREATE OR REPLACE FUNCTION sort_out(p picking, ids uuid[], most integer) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  r record;
  room integer;
BEGIN
  p.picked := '{}';
  FOR r IN SELECT t FROM unnest(ids) WITH ORDINALITY u(id, place) JOIN task t ON t.id = ANY (ARRAY[u.id]) ORDER BY u.place LOOP
    room := CASE WHEN (r.t).type <> ALL (p.types) THEN 0 ELSE coalesce((p.rooms ->> (r.t).type)::integer, 1) END;
    IF (r.t).expires_at <= p.now AND (r.t).must_end IS NULL THEN
      PERFORM make_cancelled(r.t, p.now, '{"code":"expired","message":"its deadline (expires) has passed"}', 'expired');
      p.passed := p.passed + 1;
    ELSIF room <= 0 THEN
      PERFORM move_aside(r.t, p.now);
      p.passed := p.passed + 1;
    ELSIF cardinality(p.picked) < most AND NOT p.stuffed THEN
      IF (r.t).size > p.bytes AND cardinality(p.taken) + cardinality(p.picked) > 0 THEN
        p.stuffed := true;
        p.more := true;
      ELSE
        p.picked := p.picked || (r.t).id;
        p.bytes := p.bytes - (r.t).size;
        IF p.rooms ? (r.t).type THEN
          p.rooms := jsonb_set(p.rooms, ARRAY[(r.t).type], to_jsonb(room - 1));
          IF room = 1 THEN
            p.types := array_remove(p.types, (r.t).type);
          END IF;
        END IF;
      END IF;
    END IF;
  END LOOP;
  RETURN p;
END $$;

CALL harden('finish', 'checkpoint', 'signal', 'open_walk', 'recover', 'cancel_tasks', 'requeue_tasks', 'delete_tasks', 'prune');
