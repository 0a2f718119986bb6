-- Finish: every ending of an attempt, applied only under its current lease; and checkpoints and signals, which live under the same rule.
--
-- Completed attempts end set by set: a row leaves `task` for `ended` in one statement, guarded by its whole lease. All other endings, and those that start
-- tasks, go row by row over the transitions.
-- Locks: the rows of a batch whose leases are current, in the order of their ids, all of them before the first is written; so batches of finish, cancel and
-- recovery never wait for each other in a circle. A lease that is not current never becomes so again, and is judged without a lock.

CREATE TYPE outcome AS (
  task uuid, token bigint, worker text, ending text, result text, error text, after bigint, signals text[], seen bigint, tasks uuid[], on_failure smallint,
  deadline bigint, started_after bigint,
  starts json,     -- the tasks that follow, as submit_document takes them
  wrong text);     -- why they cannot be started

-- How one outcome went: refused with a code, or come to another state than asked for. Both NULL: as asked for.
CREATE TYPE ending AS (task text, token bigint, code text, message text, state smallint);

-- Completed, whole batches at a time; a single result is that of all. Answers how many of them ended now, and whether edges fall with them;
-- those that did not end are judged by refuse_completed.
CREATE FUNCTION complete(p_worker text, p_ids uuid[], p_tokens bigint[], p_started bigint[], p_results text[], now bigint, OUT done integer, OUT falls boolean)
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
    SELECT id, seq, 5, flags & ~(2 | 64 | 128), version + 1, executions, failures, crashes, open_edges, now, token, p_worker, claimed_at, claimed_at + started,
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

-- What make_ended tells of one, of many.
CREATE FUNCTION tell_completed(ids uuid[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  FOR r IN
    SELECT e.id, e.version, e.executions, greatest(0, now - coalesce(e.started_at, e.claimed_at, now)) AS duration, json_build_object('id', e.id, 'type', b.type, 'queue', b.queue, 'state', 'completed', 'version', e.version) AS owed
    FROM ended e JOIN body b ON b.id = ANY (ARRAY[e.id]) WHERE e.id = ANY (ids) ORDER BY uuid_send(e.id)
  LOOP
    PERFORM owe('ended', r.id::text, r.owed, now);
    PERFORM tell_task('task.completed', r.id, r.version, now, json_build_object('attempt', r.executions, 'duration', r.duration));
  END LOOP;
END $$;

-- Those of a batch that neither ended now nor had ended in this very way before. Subqueries that give one value: each is a probe by id, whatever is believed
-- about the tables (`+ 0`: not by the state).
CREATE FUNCTION refuse_completed(p_worker text, p_ids uuid[], p_tokens bigint[]) RETURNS SETOF ending LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY SELECT u.id::text, u.token,
    CASE WHEN (SELECT b.id FROM body b WHERE b.id = u.id) IS NULL THEN 'not_found' ELSE 'stale_lease' END, NULL::text, NULL::smallint
  FROM unnest(p_ids, p_tokens) u(id, token)
  WHERE (SELECT e.id FROM ended e WHERE e.id = u.id AND e.token = u.token AND e.worker = p_worker AND e.state + 0 = 5) IS NULL;
END $$;

-- The same where results are kept: one that is no JSON is refused alone.
CREATE FUNCTION complete_with_results(p_worker text, p_ids uuid[], p_tokens bigint[], p_started bigint[], p_results text[], now bigint,
  OUT done integer, OUT falls boolean, OUT bad bigint[]) LANGUAGE plpgsql AS $$
DECLARE
  half integer := cardinality(p_ids) / 2;
  a record;
  b record;
BEGIN
  SELECT c.done, c.falls INTO done, falls FROM complete(p_worker, p_ids, p_tokens, p_started, p_results, now) c;
EXCEPTION WHEN data_exception THEN
  IF half = 0 THEN
    done := 0;
    falls := false;
    bad := p_tokens;
    RETURN;
  END IF;
  a := complete_with_results(p_worker, p_ids[:half], p_tokens[:half], p_started[:half], CASE WHEN cardinality(p_results) = 1 THEN p_results ELSE p_results[:half] END, now);
  b := complete_with_results(p_worker, p_ids[half + 1:], p_tokens[half + 1:], p_started[half + 1:],
    CASE WHEN cardinality(p_results) = 1 THEN p_results ELSE p_results[half + 1:] END, now);
  done := a.done + b.done;
  falls := a.falls OR b.falls;
  bad := a.bad || b.bad;
END $$;

CREATE FUNCTION is_terminal(ending text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT ending IN ('completed', 'dead', 'cancelled') $$;

-- An outcome whose lease is not current. A repeat is none to refuse: this lease was ended by its holder, and in this way. The attempt's record tells,
-- or the task's own where there is none.
CREATE FUNCTION judge_stale(o outcome) RETURNS ending LANGUAGE plpgsql AS $$
DECLARE
  it record;
  attempt record;
  applied boolean;
BEGIN
  SELECT x.* INTO it FROM (
    SELECT state, token, worker, must_end FROM task WHERE id = o.task
    UNION ALL SELECT state, token, worker, must_end FROM ended WHERE id = o.task) x LIMIT 1;
  IF NOT FOUND THEN
    RETURN (o.task::text, o.token, 'not_found', NULL, NULL)::ending;
  END IF;
  SELECT outcome, coalesce(error ->> 'code', '') = 'lease_lost' AS by_recovery INTO attempt
  FROM task_attempts WHERE id = o.task AND token = o.token AND worker = o.worker;
  IF FOUND THEN
    applied := NOT attempt.by_recovery AND attempt.outcome = CASE o.ending WHEN 'retry' THEN 'failed' ELSE o.ending END AND NOT is_terminal(o.ending);
  ELSE
    applied := it.state <> 3 AND it.token = o.token AND it.worker = o.worker
      AND o.ending = CASE WHEN it.state < 3 THEN 'released' WHEN it.state > 4 THEN name_of(it.state) END;
  END IF;
  IF applied IS NOT TRUE THEN
    RETURN (o.task::text, o.token, 'stale_lease', NULL, NULL)::ending;
  END IF;
  IF NOT is_terminal(o.ending) AND (it.state = 7 OR it.must_end = 'cancelled') THEN
    RETURN (o.task::text, o.token, NULL, NULL, it.state)::ending;
  END IF;
  RETURN NULL;
END $$;

-- The task waits, for those and for signals, until its deadline. Edges onto tasks that are there already are hooked by settle, which lets fall those of ended ones.
CREATE FUNCTION begin_to_wait(t task, o outcome, children uuid[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  awaited text;
  edges integer;
BEGIN
  WITH made AS (
    INSERT INTO edge (parent, child, on_failure)
    SELECT t.id, x.id, o.on_failure FROM (
      SELECT u.id, min(u.place) AS place FROM unnest(o.tasks || children) WITH ORDINALITY u(id, place) GROUP BY u.id ORDER BY 2) x
    ON CONFLICT DO NOTHING RETURNING number
  ), late AS (
    INSERT INTO late_edge (edge) SELECT number FROM made
  )
  SELECT count(*) INTO edges FROM made;
  IF edges > 0 THEN
    t.flags := t.flags | 16;
    t.open_edges := t.open_edges + edges;
  END IF;
  IF cardinality(o.signals) > 0 AND NOT EXISTS (SELECT 1 FROM signal WHERE id = t.id AND number > o.seen AND name = ANY (o.signals)) THEN
    awaited := json_build_array(o.seen, o.signals)::text;
    t.flags := t.flags | 128;
  END IF;
  PERFORM make_waiting(t, coalesce(now + o.deadline, 4611686018427387904), awaited, now);
  IF t.open_edges = 0 AND t.flags & 128 = 0 AND (o.tasks <> '{}' OR children <> '{}' OR o.signals <> '{}') THEN
    t.state := 4;
    t.version := t.version + 1;
    PERFORM make_ready(t, now, now, NULL, true);
  END IF;
END $$;

-- One outcome under a current lease; the row is locked. The ways to go on: a wait is begun by the caller, because it may be for tasks that are started with it.
-- Answers the state it came to where that is not the one asked for.
CREATE FUNCTION end_attempt(t task, o outcome, now bigint) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
  why json := o.error::json;
BEGIN
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

-- The tasks that follow, each by the id under which it exists now. What keeps one of them from being stored is raised, and takes everything back.
CREATE FUNCTION start_those(o outcome, p_generation bigint, p_patience integer, p_own boolean, now bigint) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
  ids uuid[] := ARRAY(SELECT value::uuid FROM json_array_elements_text(o.starts -> 'ids') WITH ORDINALITY x(value, place) ORDER BY place);
  v verdict;
BEGIN
  FOR v IN SELECT * FROM submit_document(o.starts, p_generation, p_patience, p_own, now) LOOP
    IF v.place = 0 OR v.status IN ('busy', 'refused') THEN
      RAISE EXCEPTION USING ERRCODE = 'TM001', MESSAGE = v.status, DETAIL = coalesce(ids[v.place]::text, ''), HINT = coalesce(v.code, '') || ' ' || coalesce(v.message, '');
    END IF;
    ids[v.place] := v.id::uuid;
  END LOOP;
  RETURN ids;
END $$;

-- One outcome.
CREATE FUNCTION finish_one(o outcome, p_generation bigint, p_patience integer, p_own boolean, now bigint) RETURNS ending LANGUAGE plpgsql AS $$
DECLARE
  t task;
  unknown uuid;
  came_to smallint;
  children uuid[] := '{}';
BEGIN
  SELECT * INTO t FROM task WHERE id = o.task AND token = o.token AND worker = o.worker AND state + 0 = 3 FOR UPDATE;
  IF NOT FOUND THEN
    RETURN judge_stale(o);
  END IF;
  IF o.ending = 'waiting' THEN
    SELECT u.id INTO unknown FROM unnest(o.tasks) u(id) WHERE (SELECT b.id FROM body b WHERE b.id = u.id) IS NULL LIMIT 1;
    IF FOUND THEN
      RETURN (o.task::text, o.token, 'unknown_edge', unknown::text, NULL)::ending;
    END IF;
  END IF;
  IF o.wrong IS NOT NULL THEN
    RETURN (o.task::text, o.token, 'refused', o.wrong, NULL)::ending;
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

-- End this and start those, or neither: a task that the store refuses takes its outcome back and leaves the lease as it was. The answer's code is `refused`, with the
-- id of that task; or settings, names or busy (see submit): to be asked again.
CREATE FUNCTION finish_and_start(o outcome, p_generation bigint, p_patience integer, p_own boolean, now bigint) RETURNS ending LANGUAGE plpgsql AS $$
DECLARE
  how text;
  which text;
  why text;
BEGIN
  RETURN finish_one(o, p_generation, p_patience, p_own, now);
EXCEPTION
  WHEN SQLSTATE 'TM001' THEN
    GET STACKED DIAGNOSTICS how = MESSAGE_TEXT, which = PG_EXCEPTION_DETAIL, why = PG_EXCEPTION_HINT;
    RETURN (o.task::text, o.token, how, which || ' ' || why, NULL)::ending;
  WHEN data_exception THEN
    RETURN (o.task::text, o.token, 'refused', ' invalid_json ' || SQLERRM, NULL)::ending;
END $$;

-- The entry point. Completed ones of one worker come as arrays, everything else as a list of outcomes. Answers a row for each that was refused or came to another
-- state, and one without a task when edges are owed that settle should apply now. `p_own`: not in a user's transaction.
CREATE FUNCTION finish(p_worker text, p_ids uuid[], p_tokens bigint[], p_started bigint[], p_results text[], p_rest json,
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
  IF p_own AND (owes OR EXISTS (SELECT 1 FROM falling) OR EXISTS (SELECT 1 FROM late_edge)) THEN
    RETURN NEXT NULL::ending;
  END IF;
END $$;

-- What running tasks have done so far, one element an entry. Answers those whose lease is not current.
CREATE FUNCTION checkpoint(p_ids uuid[], p_tokens bigint[], p_workers text[], p_names text[], p_values bytea[], p_progress text[], p_unwind boolean[],
  p_phases text[], p_now bigint) RETURNS SETOF ending LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  t task;
  u record;
BEGIN
  PERFORM 1 FROM task WHERE id = ANY (p_ids) AND state + 0 = 3 AND token = ANY (p_tokens) ORDER BY uuid_send(id) FOR UPDATE;
  now := moment(p_now);
  FOR u IN
    SELECT * FROM unnest(p_ids, p_tokens, p_workers, p_names, p_values, p_progress, p_unwind, p_phases) x(id, token, worker, name, value, progress, unwind, phase)
  LOOP
    UPDATE task SET progress = coalesce(u.progress, task.progress), phase = coalesce(u.phase, task.phase), version = version + 1, updated_at = now,
      flags = (flags | CASE WHEN u.name IS NULL THEN 0 ELSE 512 END | CASE WHEN u.unwind THEN 256 ELSE 0 END) & CASE WHEN NOT u.unwind THEN ~256 ELSE ~0 END
    WHERE id = u.id AND token = u.token AND worker = u.worker AND state + 0 = 3 RETURNING * INTO t;
    IF NOT FOUND THEN
      RETURN QUERY SELECT u.id::text, u.token, CASE WHEN EXISTS (SELECT 1 FROM body b WHERE b.id = u.id) THEN 'stale_lease' ELSE 'not_found' END, NULL::text, NULL::smallint;
      CONTINUE;
    END IF;
    IF u.name IS NOT NULL THEN
      INSERT INTO checkpoint (id, name, value) VALUES (u.id, u.name, u.value) ON CONFLICT (id, name) DO UPDATE SET value = excluded.value;
    END IF;
    PERFORM tell_task('task.progress', u.id, t.version, now, CASE WHEN u.progress IS NULL THEN json_build_object('checkpoint', u.name)
      ELSE json_build_object('value', u.progress::json -> 'value', 'message', coalesce(u.progress::json ->> 'message', '')) END);
  END LOOP;
END $$;

-- A signal, kept once by its id. Answers its number, or why not: `state` of a task that has ended, or code `expired` or `not_found`. `stirs`: a lane has a task more.
CREATE FUNCTION signal(p_task uuid, p_name text, p_data bytea, p_id text, p_now bigint, OUT number bigint, OUT state smallint, OUT code text, OUT stirs boolean)
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
  signal.number := coalesce((SELECT max(s.number) FROM signal s WHERE s.id = p_task), 0) + 1;
  INSERT INTO signal (id, number, signal_id, name, data, at) VALUES (p_task, signal.number, p_id, p_name, p_data, now);
  IF t.flags & 128 <> 0 AND t.state = 4 THEN
    awaited := signal.number > (t.awaits::json ->> 0)::bigint AND EXISTS (SELECT 1 FROM json_array_elements_text(t.awaits::json -> 1) n(name) WHERE n.name = p_name);
  END IF;
  t.flags := (t.flags | 1024) & CASE WHEN awaited THEN ~128 ELSE ~0 END;
  t.version := t.version + 1;
  UPDATE task SET flags = t.flags, version = t.version, updated_at = now WHERE id = p_task;
  PERFORM tell_task('task.signalled', p_task, t.version, now, json_build_object('name', p_name, 'number', signal.number));
  IF awaited AND t.open_edges = 0 THEN
    PERFORM make_ready(t, now, now, NULL, true);
    stirs := t.lane > 0;
  END IF;
END $$;

CALL harden('finish', 'checkpoint', 'signal');
