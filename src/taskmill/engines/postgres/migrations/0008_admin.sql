-- Cancel, requeue, delete: each task by id and the version the caller saw, in one order of ids, so that two batches never wait for each other in a ring.
-- `p_states`: of a filter that named states; who has left them since is left out of the answer.

CREATE TYPE changed AS (
  place     integer,
  done      boolean,
  state     smallint,
  version   integer,
  requested boolean,
  code      text
);

-- The state as it reads: a due task is pending without anybody having touched it.
CREATE FUNCTION state_now(state smallint, ready_at bigint, now bigint) RETURNS smallint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN state IN (1, 2, 4) AND ready_at <= now THEN 0::smallint ELSE state END
$$;

-- Lock a task's row, wherever it lies: task, ended, or NULL. It may go from one to the other while this waits for it.
CREATE FUNCTION lock_record(p_id uuid) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  LOOP
    PERFORM 1 FROM task WHERE id = p_id FOR UPDATE;
    IF FOUND THEN
      RETURN 'task';
    END IF;
    PERFORM 1 FROM ended WHERE id = p_id FOR UPDATE;
    IF FOUND THEN
      RETURN 'ended';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM body WHERE id = p_id) THEN
      RETURN NULL;
    END IF;
  END LOOP;
END $$;

-- The record is gone, or never was. `p_version`: a delete that saw this one has happened.
CREATE FUNCTION missing(p_id uuid, p_version integer, now bigint) RETURNS changed LANGUAGE plpgsql AS $$
DECLARE
  k known;
BEGIN
  SELECT * INTO k FROM known WHERE id = p_id AND until > now;
  IF NOT FOUND THEN
    RETURN (NULL, false, NULL, NULL, false, 'not_found')::changed;
  ELSIF k.version = p_version THEN
    RETURN (NULL, true, k.state, k.version, false, NULL)::changed;
  END IF;
  RETURN (NULL, false, k.state, NULL, false, 'expired')::changed;
END $$;

CREATE FUNCTION refused(p_state smallint, p_version integer, p_code text) RETURNS changed LANGUAGE sql IMMUTABLE AS $$
  SELECT (NULL, false, p_state, p_version, false, p_code)::changed
$$;

CREATE FUNCTION cancel_one(t task, p_version integer, now bigint) RETURNS changed LANGUAGE plpgsql AS $$
DECLARE
  again boolean := t.version = p_version + 1;
BEGIN
  IF t.state = 3 AND t.flags & 2 <> 0 AND (again OR p_version IS NULL) THEN
    RETURN (NULL, true, 3, t.version, true, NULL)::changed;
  ELSIF again AND t.flags & 256 <> 0 AND t.must_end = 'cancelled' THEN
    RETURN (NULL, true, 0, t.version, false, NULL)::changed;
  ELSIF t.version <> p_version THEN
    RETURN refused(state_now(t.state, t.ready_at, now), t.version, 'stale_version');
  ELSIF t.state = 3 THEN
    UPDATE task SET flags = flags | 2, version = version + 1, updated_at = now WHERE id = t.id;
    PERFORM tell_task('task.cancelling', t.id, t.version + 1, now);
    RETURN (NULL, true, 3, t.version + 1, true, NULL)::changed;
  ELSIF t.flags & 256 <> 0 AND t.must_end IS NOT NULL THEN
    RETURN (NULL, true, 0, t.version, false, NULL)::changed;
  END IF;
  RETURN (NULL, true, make_cancelled(t, now), t.version + 1, false, NULL)::changed;
END $$;

CREATE FUNCTION cancel_tasks(p_ids uuid[], p_versions integer[], p_states smallint[], p_now bigint) RETURNS SETOF changed LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  r record;
  t task;
  e ended;
  c changed;
BEGIN
  FOR r IN SELECT * FROM unnest(p_ids, p_versions) WITH ORDINALITY u(id, version, place) ORDER BY u.id, u.place LOOP
    CASE lock_record(r.id)
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
      c := missing(r.id, NULL, now);
    END CASE;
    c.place := r.place;
    RETURN NEXT c;
  END LOOP;
END $$;

-- The attempt that ended the task leaves its row, because another may follow.
CREATE FUNCTION keep_last_attempt(e ended) RETURNS void LANGUAGE sql AS $$
  INSERT INTO task_attempts (id, number, worker, token, started_at, ended_at, outcome, error)
  SELECT e.id, e.executions, e.worker, e.token, coalesce(e.started_at, e.claimed_at), e.finished_at,
    CASE WHEN e.error::text ~ '^\{"code" ?: ?"poison"' THEN 'crashed' ELSE (ARRAY['completed', 'failed', 'cancelled'])[e.state - 4] END, e.error
  WHERE e.token IS NOT NULL ON CONFLICT DO NOTHING
$$;

-- Back among the live, in the lane that it belongs to now. What waits for it has fallen with what it came to the first time, whatever comes next.
CREATE FUNCTION open_again(e ended, p_lane bigint, p_from_start boolean, now bigint) RETURNS smallint LANGUAGE plpgsql AS $$
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
  VALUES (e.id, e.seq, p_lane, b.type, CASE WHEN waits THEN 4 ELSE 0 END, b.priority, CASE WHEN p_from_start THEN e.flags & ~256 ELSE e.flags END,
    octet_length(b.payload::text), e.version + 1, e.executions, e.open_edges, CASE WHEN waits THEN 4611686018427387904 ELSE now END, now, b.expires_at,
    CASE WHEN NOT p_from_start THEN e.must_end END, CASE WHEN NOT p_from_start THEN e.phase END, e.version);
  INSERT INTO expiry (at, id) SELECT b.expires_at, e.id WHERE b.expires_at IS NOT NULL ON CONFLICT DO NOTHING;
  INSERT INTO ordered (lane, seq, id) SELECT p_lane, e.seq, e.id WHERE e.flags & 1 <> 0 ON CONFLICT DO NOTHING;
  INSERT INTO stir (lane) SELECT p_lane WHERE p_lane > 0;
  PERFORM tell_task('task.ready', e.id, e.version + 1, now);
  PERFORM announce(ARRAY[queue_of(p_lane)]);
  RETURN CASE WHEN waits THEN 4 ELSE 0 END;
END $$;

-- Of an ended task. `gated`: the gate is held, so the count of its edges stands still; one that got edges only now was not ended when this was asked.
CREATE FUNCTION requeue_one(e ended, p_version integer, p_from_start boolean, p_share text, p_limits text[], p_order text, p_unique text, gated boolean, now bigint)
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
  lane_number := lane_id(queue_id(b.queue), p_share, CASE WHEN e.flags & 2048 = 0 THEN p_limits ELSE '{}' END, p_order, '');
  RETURN (NULL, true, open_again(e, lane_number, p_from_start, now), e.version + 1, false, NULL)::changed;
END $$;

CREATE FUNCTION requeue_tasks(p_ids uuid[], p_versions integer[], p_states smallint[], p_from_start boolean, p_shares text[], p_limits text[], p_orders text[],
  p_uniques text[], p_now bigint) RETURNS SETOF changed LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  gated boolean;
  r record;
  t task;
  e ended;
  c changed;
BEGIN
  gated := EXISTS (SELECT 1 FROM ended k WHERE k.id = ANY (p_ids) AND k.flags & 16 <> 0);
  IF gated THEN  -- before any row is locked: whoever has the gate may wait for a row of ended
    PERFORM gate();
  END IF;
  now := moment(p_now);
  FOR r IN
    SELECT * FROM unnest(p_ids, p_versions, p_shares, p_limits, p_orders, p_uniques) WITH ORDINALITY u(id, version, share, limits, order_key, unique_key, place)
    ORDER BY u.id, u.place
  LOOP
    CASE lock_record(r.id)
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

CREATE FUNCTION delete_tasks(p_ids uuid[], p_versions integer[], p_states smallint[], p_hashes bytea[], p_now bigint) RETURNS SETOF changed LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  r record;
  t task;
  e ended;
  c changed;
BEGIN
  FOR r IN SELECT * FROM unnest(p_ids, p_versions, p_hashes) WITH ORDINALITY u(id, version, hash, place) ORDER BY u.id, u.place LOOP
    CASE lock_record(r.id)
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

CALL harden('cancel_tasks', 'requeue_tasks', 'delete_tasks');
