-- Settings, rates asked for directly, and the two logs that are read in the order of their numbers: outbox and events.

-- A setting has changed: every following step obeys it. Whoever changes a limit has the gate, before all else.
CREATE FUNCTION setting_changed(p_kind text, p_name text, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM tell('setting.changed', p_kind || '/' || p_name, 0, now);
  IF p_kind IN ('type', 'limit', 'queue', 'pause', 'outbox') THEN
    UPDATE store SET generation = generation + 1;
    PERFORM apply_settings();
  END IF;
  IF p_kind = 'limit' THEN
    PERFORM apply_limit(p_name);
    PERFORM wake(ARRAY(SELECT id FROM counter WHERE name = p_name OR (name >= p_name || ':' AND name < p_name || ';')), now);
  END IF;
  PERFORM pg_notify(current_schema(), 'work');
END $$;

-- What a setting says, from the one in force; NULL where there is none.
CREATE FUNCTION setting_of(p_kind text, p_name text) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT convert_from(value, 'UTF8')::jsonb FROM item WHERE kind = p_kind AND name = p_name ORDER BY operator DESC LIMIT 1
$$;

-- A type's first limit takes tasks from then on; older ones move into lanes in slices. `before` is what held until now.
CREATE FUNCTION type_changed(p_name text, before jsonb) RETURNS void LANGUAGE sql AS $$
  INSERT INTO moving (type)
  SELECT p_name FROM setting_of('type', p_name) s
  WHERE before IS NOT NULL AND s IS NOT NULL
    AND (coalesce(before -> 'limits', '[]'), coalesce(before -> 'fair', 'null')) IS DISTINCT FROM (coalesce(s -> 'limits', '[]'), coalesce(s -> 'fair', 'null'))
  ON CONFLICT (type) DO UPDATE SET after = 0
$$;

-- Changes of settings come one after the other.
CREATE FUNCTION settings_turn(p_kind text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_kind = 'limit' THEN
    PERFORM gate();
  END IF;
  PERFORM 1 FROM store FOR NO KEY UPDATE;
END $$;

-- Answers the version that holds now, and whether it is the caller's: not, where the caller has seen another.
CREATE FUNCTION put_setting(p_kind text, p_name text, p_operator boolean, p_value bytea, p_version integer, p_now bigint, OUT done boolean, OUT version integer)
LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  old item;
  before jsonb;
BEGIN
  PERFORM settings_turn(p_kind);
  now := moment(p_now);
  SELECT * INTO old FROM item i WHERE i.kind = p_kind AND i.name = p_name AND i.operator = p_operator;
  version := coalesce(old.version, 0);
  done := p_version IS NULL OR p_version = version OR (p_version + 1 = version AND old.value = p_value);
  IF NOT done OR p_version + 1 = version OR (p_version IS NULL AND old.value IS NOT DISTINCT FROM p_value) THEN
    RETURN;
  END IF;
  version := version + 1;
  before := setting_of('type', p_name);
  INSERT INTO item AS i (kind, name, operator, value, version, app, app_version) VALUES (p_kind, p_name, p_operator, p_value, put_setting.version, '', 0)
  ON CONFLICT ON CONSTRAINT item_pkey DO UPDATE SET value = excluded.value, version = excluded.version, app = excluded.app, app_version = excluded.app_version;
  PERFORM setting_changed(p_kind, p_name, now);
  IF p_kind = 'type' THEN
    PERFORM type_changed(p_name, before);
  END IF;
  IF p_operator THEN
    PERFORM owe('audit', p_kind || '/' || p_name, json_build_object('kind', p_kind, 'name', p_name, 'version', version), now);
  END IF;
END $$;

-- The operator's setting is gone. NULL: there was none; not `done`: it has another version.
CREATE FUNCTION drop_setting(p_kind text, p_name text, p_version integer, p_now bigint, OUT done boolean, OUT version integer) LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  before jsonb;
BEGIN
  PERFORM settings_turn(p_kind);
  now := moment(p_now);
  SELECT i.version, p_version IS NULL OR p_version = i.version INTO version, done FROM item i WHERE i.kind = p_kind AND i.name = p_name AND i.operator;
  IF version IS NULL OR NOT done THEN
    RETURN;
  END IF;
  before := setting_of('type', p_name);
  DELETE FROM item i WHERE i.kind = p_kind AND i.name = p_name AND i.operator;
  IF p_kind = 'schedule' THEN  -- put again some day, it is a new schedule
    DELETE FROM item i WHERE i.kind = 'fired' AND i.name = p_name
      AND NOT EXISTS (SELECT 1 FROM item d WHERE d.kind = p_kind AND d.name = p_name AND NOT d.operator);
  END IF;
  PERFORM owe('audit', p_kind || '/' || p_name, json_build_object('kind', p_kind, 'name', p_name, 'version', NULL), now);
  PERFORM setting_changed(p_kind, p_name, now);
  IF p_kind = 'type' THEN
    PERFORM type_changed(p_name, before);
  END IF;
END $$;

-- n starts against a rate, once by the id.
CREATE FUNCTION take(p_limit text, p_n bigint, p_id text, p_now bigint, OUT rate integer, OUT granted boolean, OUT retry_at bigint) LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  c counter;
BEGIN
  PERFORM gate();
  now := moment(p_now);
  SELECT d.rate INTO rate FROM numbers_of(split_part(p_limit, ':', 1)) d;
  IF rate IS NULL OR p_n NOT BETWEEN 1 AND rate THEN
    RETURN;
  END IF;
  SELECT t.granted, t.retry_at INTO granted, retry_at FROM taken t WHERE t.id = p_id;
  IF granted IS NOT NULL THEN
    RETURN;
  END IF;
  PERFORM counter_id(p_limit);
  SELECT * INTO c FROM counter WHERE name = p_limit;
  c.cap := NULL;  -- what is taken runs elsewhere
  granted := room_of(c, now) >= p_n;
  IF granted THEN
    PERFORM count_starts(c, p_n::integer, now);
  ELSE
    retry_at := next_room_at(c, now);
  END IF;
  INSERT INTO taken (id, granted, retry_at, until) VALUES (p_id, take.granted, take.retry_at, now + c.span);
END $$;

-- Who has written to a table, and has not ended.
CREATE FUNCTION writers_of(p_table text) RETURNS text[] LANGUAGE sql AS $$
  SELECT ARRAY(
    SELECT DISTINCT l.virtualtransaction FROM pg_locks l
    WHERE l.locktype = 'relation' AND l.relation = p_table::regclass AND l.mode = 'RowExclusiveLock'
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND l.pid IS DISTINCT FROM pg_backend_pid())
$$;

-- A number is given before the commit, so a higher one may be seen before a lower one. Answers the last number that was given, and then who may still
-- commit one up to it. Once those are gone, everything up to that number is there or never will be.
-- Whoever takes a number has written to the table before, or locked it as writers do.
CREATE FUNCTION horizon(p_table text, p_sequence text, OUT last bigint, OUT writers text[]) LANGUAGE plpgsql AS $$
BEGIN
  last := coalesce(pg_sequence_last_value(p_sequence::regclass), 0);
  writers := writers_of(p_table);
END $$;

-- Entries behind p_after, up to p_until, under a term; those up to p_after are cut. A row without a number: the term is over.
CREATE FUNCTION read_outbox(p_kind text, p_after bigint, p_until bigint, p_n bigint, p_role text, p_holder text, p_term bigint)
RETURNS TABLE (number bigint, subject text, data bytea, at bigint) LANGUAGE plpgsql AS $$
BEGIN
  IF NOT holds_term(p_role, p_holder, p_term) THEN
    RETURN QUERY SELECT NULL::bigint, NULL::text, NULL::bytea, NULL::bigint;
    RETURN;
  END IF;
  DELETE FROM outbox o WHERE o.kind = p_kind AND o.number <= least(p_after, p_until);
  RETURN QUERY SELECT o.number, o.subject, o.data, o.at FROM outbox o
    WHERE o.kind = p_kind AND o.number > p_after AND o.number <= p_until ORDER BY o.number LIMIT p_n;
END $$;

-- Somebody listens for a while more. If nobody had until now, something may have gone untold: everybody who listened before is told so, and true is answered.
CREATE FUNCTION hear(p_span bigint, p_ring bigint, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  until bigint;
BEGIN
  SELECT listen_until INTO until FROM store FOR NO KEY UPDATE;
  IF until <= now THEN
    INSERT INTO event (kind, subject, version, at) VALUES ('resync', '', 0, now);
  END IF;
  UPDATE store SET listen_until = greatest(listen_until, now + p_span);
  DELETE FROM event WHERE number <= (SELECT max(number) FROM event) - p_ring;
  RETURN until <= now;
END $$;

CREATE FUNCTION event_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify(TG_TABLE_SCHEMA, 'event');  -- once in a transaction, however many there are
  RETURN NULL;
END $$;
CREATE TRIGGER event_told AFTER INSERT ON event FOR EACH ROW EXECUTE FUNCTION event_told();

-- Somebody waits for tasks to end, for a while more.
CREATE FUNCTION await_ends(p_span bigint, p_now bigint) RETURNS void LANGUAGE sql AS $$
  UPDATE store SET wait_until = moment(p_now) + p_span WHERE wait_until < moment(p_now) + p_span
$$;

-- How many tasks there are, without counting those that ended long ago again and again: bodies up to the mark are counted once, and whatever removes or
-- changes one of them says so here.
CREATE TABLE tally (
  queue    text     NOT NULL,
  type     text     NOT NULL,
  priority smallint NOT NULL,
  tasks    bigint   NOT NULL
);
CREATE TABLE tally_mark (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  seq bigint  NOT NULL DEFAULT 0
);
INSERT INTO tally_mark DEFAULT VALUES;

CREATE FUNCTION tally_removed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  mark bigint;
BEGIN
  SELECT seq INTO mark FROM tally_mark FOR SHARE;  -- it does not move before this has ended
  INSERT INTO tally SELECT g.queue, g.type, g.priority, -count(*) FROM gone g WHERE g.seq <= mark GROUP BY g.queue, g.type, g.priority;
  RETURN NULL;
END $$;
CREATE TRIGGER tally_removed AFTER DELETE ON body REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION tally_removed();

CREATE FUNCTION tally_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  mark bigint;
BEGIN
  SELECT seq INTO mark FROM tally_mark FOR SHARE;
  IF OLD.seq <= mark THEN
    INSERT INTO tally VALUES (OLD.queue, OLD.type, OLD.priority, -1), (NEW.queue, NEW.type, NEW.priority, 1);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER tally_changed AFTER UPDATE ON body FOR EACH ROW
WHEN ((OLD.queue, OLD.type, OLD.priority) IS DISTINCT FROM (NEW.queue, NEW.type, NEW.priority)) EXECUTE FUNCTION tally_changed();

-- Move the mark to p_until, up to which nothing can appear any more; by p_most numbers at once. True: it is not there yet.
CREATE FUNCTION fold_tally(p_until bigint, p_most bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  mark bigint;
  goal bigint;
BEGIN
  SELECT seq INTO mark FROM tally_mark FOR UPDATE SKIP LOCKED;
  goal := least(p_until, mark + p_most);
  IF mark IS NULL OR goal <= mark THEN
    RETURN false;
  END IF;
  INSERT INTO tally SELECT b.queue, b.type, b.priority, count(*) FROM body b WHERE b.seq > mark AND b.seq <= goal GROUP BY b.queue, b.type, b.priority;
  UPDATE tally_mark SET seq = goal;
  WITH gone AS (DELETE FROM tally RETURNING queue, type, priority, tasks)
  INSERT INTO tally SELECT queue, type, priority, sum(tasks) FROM gone GROUP BY queue, type, priority HAVING sum(tasks) <> 0;
  RETURN goal < p_until;
END $$;

-- What is counted, each by a plan of its own: a plan for all of it together reads every body. Those that live, by lane;
CREATE FUNCTION count_live(p_now bigint) RETURNS TABLE (lane bigint, type text, priority smallint, state smallint, due boolean, tasks bigint, oldest bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT t.lane, t.type, t.priority, t.state, t.ready_at <= p_now, count(*), min(t.ready_at) FROM task t GROUP BY 1, 2, 3, 4, 5;
END $$;
ALTER FUNCTION count_live SET search_path FROM CURRENT;
ALTER FUNCTION count_live SET jit = off;
ALTER FUNCTION count_live SET enable_sort = off;

-- all there are, as far as they were counted, and those behind the mark;
CREATE FUNCTION count_bodies() RETURNS TABLE (queue text, type text, priority smallint, tasks bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT a.queue, a.type, a.priority, sum(a.tasks)::bigint FROM (
    SELECT t.queue, t.type, t.priority, t.tasks FROM tally t
    UNION ALL SELECT b.queue, b.type, b.priority, count(*) FROM body b WHERE b.seq > (SELECT m.seq FROM tally_mark m) GROUP BY 1, 2, 3) a
  GROUP BY 1, 2, 3;
END $$;

-- and the failed ones, which have an index of their own.
CREATE FUNCTION count_failed() RETURNS TABLE (queue text, type text, priority smallint, state smallint, tasks bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT b.queue, b.type, b.priority, e.state, count(*) FROM ended e JOIN body b ON b.seq = ANY (ARRAY[e.seq]) WHERE e.state >= 6 GROUP BY 1, 2, 3, 4;
END $$;

-- What a schedule's firing needs beside submit.

-- The task before is cancelled; if it runs, its worker is told.
CREATE FUNCTION replace_last(p_id uuid, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  t task;
BEGIN
  SELECT * INTO t FROM task WHERE id = p_id FOR UPDATE;
  IF t.state <> 3 THEN
    PERFORM make_cancelled(t, now);
  ELSIF t.flags & 2 = 0 THEN
    UPDATE task SET flags = flags | 2, version = version + 1, updated_at = now WHERE id = p_id;
    PERFORM tell_task('task.cancelling', p_id, t.version + 1, now);
  END IF;
END $$;

CREATE FUNCTION tell_fired(p_schedule text, p_version integer, p_now bigint) RETURNS void LANGUAGE sql AS $$
  SELECT tell('schedule.fired', p_schedule, p_version, moment(p_now))
$$;

CREATE FUNCTION announce_queues(p_names text[]) RETURNS void LANGUAGE sql AS $$
  SELECT announce(ARRAY(SELECT id FROM queue WHERE name = ANY (p_names)))
$$;

CREATE FUNCTION lane_of(p_queue text, p_share text, p_limits text[], p_order_key text) RETURNS bigint LANGUAGE sql AS $$
  SELECT lane_id(queue_id(p_queue), p_share, p_limits, p_order_key, '')
$$;

-- The clock since 2020 is the tokens' epoch: a store that was restored or made anew never repeats one, and all stay below 2^53, which every language's JSON
-- can hold. Called when a program opens the store and by a session's first claim, with the rights of its owner: to use a sequence is not to set it.
CREATE FUNCTION lift_tokens(p_now bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
  least_token bigint := moment(p_now) - 1577836800000000;
BEGIN
  IF coalesce(pg_sequence_last_value('token'), 0) < least_token THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('taskmill tokens of ' || current_schema(), 0));
    IF coalesce(pg_sequence_last_value('token'), 0) < least_token THEN
      PERFORM setval('token', least_token);
    END IF;
  END IF;
END $$;

CALL harden('put_setting', 'drop_setting', 'take', 'writers_of', 'horizon', 'read_outbox', 'hear', 'await_ends', 'replace_last', 'tell_fired', 'announce_queues',
  'lane_of', 'lift_tokens', 'fold_tally', 'tally_removed', 'tally_changed', 'count_bodies', 'count_failed');
