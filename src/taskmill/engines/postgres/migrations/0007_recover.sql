-- Workers and what their code declares, beats, leases of the dead, what time has decided, leadership, retention.
--
-- Beats and terms are judged by a clock that never steps (p_mono); a server has none, so there it is the server's own (NULL), and what a step of it could
-- break is put right: one forward is taken for a pause of the store, which costs nobody a lease, and nothing stays ahead of one back.

-- Code's own setting, never over one of a higher version; unchanged ones cost nothing.
CREATE FUNCTION declare_item(p_app text, p_version integer, p_kind text, p_name text, p_value bytea, now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  was item;
  before jsonb;
BEGIN
  SELECT * INTO was FROM item WHERE kind = p_kind AND name = p_name AND NOT operator;
  IF was.app_version > p_version OR (was.value = p_value AND was.app_version = p_version) THEN
    RETURN;
  END IF;
  before := setting_of(p_kind, p_name);
  INSERT INTO item AS i (kind, name, operator, value, version, app, app_version) VALUES (p_kind, p_name, false, p_value, 1, p_app, p_version)
  ON CONFLICT (kind, name, operator) DO UPDATE
  SET value = excluded.value, version = i.version + (i.value <> excluded.value)::integer, app = excluded.app, app_version = excluded.app_version;
  IF was.value IS DISTINCT FROM p_value THEN
    PERFORM setting_changed(p_kind, p_name, now);
    IF p_kind = 'type' THEN
      PERFORM type_changed(p_name, before);
    END IF;
  END IF;
END $$;

-- What an app declares: limits, types, schedules. Most often nothing of it is new. A schedule that its own app no longer declares is paused as orphaned;
-- declared again, it goes on.
CREATE FUNCTION declare_items(p_app text, p_version integer, p_kinds text[], p_names text[], p_values bytea[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM item WHERE kind = 'schedule' AND NOT operator AND app = p_app) AND NOT EXISTS (
    SELECT 1 FROM unnest(p_kinds, p_names, p_values) u(kind, name, value) LEFT JOIN item i ON i.kind = u.kind AND i.name = u.name AND NOT i.operator
    WHERE (i.app_version > p_version OR (i.value = u.value AND i.app_version = p_version)) IS NOT TRUE)
  THEN
    RETURN;
  END IF;
  PERFORM settings_turn(CASE WHEN 'limit' = ANY (p_kinds) THEN 'limit' ELSE 'type' END);
  FOR r IN SELECT * FROM unnest(p_kinds, p_names, p_values) u(kind, name, value) LOOP
    PERFORM declare_item(p_app, p_version, r.kind, r.name, r.value, now);
    IF r.kind = 'schedule' THEN
      DELETE FROM item WHERE kind = 'pause' AND name = 'schedule:' || r.name AND NOT operator AND app_version <= p_version;
    END IF;
  END LOOP;
  FOR r IN
    SELECT i.name FROM item i WHERE i.kind = 'schedule' AND NOT i.operator AND i.app = p_app AND i.app_version <= p_version
      AND NOT EXISTS (SELECT 1 FROM unnest(p_kinds, p_names) u(kind, name) WHERE u.kind = 'schedule' AND u.name = i.name)
  LOOP
    PERFORM declare_item(p_app, p_version, 'pause', 'schedule:' || r.name, '{"reason":"orphaned"}', now);
  END LOOP;
END $$;

-- The worker is registered and alive. Its row is locked before all else, as claim does it.
CREATE FUNCTION join_worker(p_worker text, p_queues text[], p_types text[], p_lease bigint, p_info text, p_app text, p_version integer, p_kinds text[],
  p_names text[], p_values bytea[], p_now bigint, p_mono bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
BEGIN
  PERFORM 1 FROM workers WHERE id = p_worker FOR UPDATE;
  PERFORM declare_items(p_app, p_version, p_kinds, p_names, p_values, now);
  PERFORM queue_id(name) FROM (SELECT DISTINCT name FROM unnest(p_queues) name ORDER BY name) q;
  INSERT INTO workers (id, queues, types, lease, joined_at, beat_at, info) VALUES (p_worker, p_queues, p_types, p_lease, now, moment(p_mono), p_info)
  ON CONFLICT (id) DO UPDATE SET queues = excluded.queues, types = excluded.types, lease = excluded.lease, beat_at = excluded.beat_at, info = excluded.info;
  PERFORM tell('worker.joined', p_worker, 0, now);
  PERFORM announce(ARRAY(SELECT id FROM queue WHERE name = ANY (p_queues)));
END $$;

-- Leases of requests up to this one that the worker does not name never reached it: as if they had never been given. What somebody's transaction holds is
-- passed over; the next beat names it again or does not.
CREATE FUNCTION give_back(p_worker text, p_request bigint, p_tokens bigint[], now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  t task;
  given integer := 0;
BEGIN
  FOR t IN SELECT * FROM task WHERE worker = p_worker AND state = 3 AND request <= p_request AND token <> ALL (p_tokens) ORDER BY uuid_send(id) FOR UPDATE SKIP LOCKED LOOP
    IF t.flags & 2 <> 0 THEN
      PERFORM make_cancelled(t, now);
    ELSE
      t.executions := t.executions - 1;
      PERFORM make_ready(t, t.ready_at, now);
    END IF;
    given := given + 1;
  END LOOP;
  RETURN given;
END $$;

-- The worker is gone, with what it held. While somebody's transaction holds a task of it, its row stays, for recovery to find.
CREATE FUNCTION leave_worker(p_worker text, p_now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
BEGIN
  PERFORM 1 FROM workers WHERE id = p_worker FOR UPDATE;
  PERFORM give_back(p_worker, 9223372036854775807, '{}', now);
  IF EXISTS (SELECT 1 FROM task WHERE worker = p_worker AND state = 3) THEN
    UPDATE workers SET beat_at = 0 WHERE id = p_worker;
    RETURN;
  END IF;
  DELETE FROM workers WHERE id = p_worker;
  IF FOUND THEN
    PERFORM tell('worker.left', p_worker, 0, now);
  END IF;
END $$;

-- One write: a beat that a crash of the server forgets is nothing, so no disk is waited for; but what is given back may end, and be told to others. owes: something was given back, and its lanes want to know.
-- held, tasks: of the leases that it names and has, where it asks which tasks they are of.
CREATE FUNCTION heartbeat(p_worker text, p_request bigint, p_tokens bigint[], p_now bigint, p_mono bigint, p_tasks boolean DEFAULT false)
RETURNS TABLE (known boolean, lost bigint[], cancelled text[], command bytea, owes boolean, held bigint[], tasks text[]) LANGUAGE plpgsql AS $$
DECLARE
  tokens bigint[];
  answered bigint[];  -- of its requests up to this one
  held_from bigint;
BEGIN
  -- Its requests are answered in their order, and nothing comes to one later: so the first that it holds something of only ever grows, and leases that are
  -- long gone are not looked at, also while an old snapshot keeps them in the index.
  SELECT array_agg(t.token), array_agg(t.token) FILTER (WHERE t.request <= p_request), min(t.request),
    array_agg(t.id::text ORDER BY t.seq) FILTER (WHERE t.flags & 2 <> 0 AND t.token = ANY (p_tokens)),
    array_agg(t.token ORDER BY t.seq) FILTER (WHERE p_tasks AND t.token = ANY (p_tokens)),
    array_agg(t.id::text ORDER BY t.seq) FILTER (WHERE p_tasks AND t.token = ANY (p_tokens))
  INTO tokens, answered, held_from, cancelled, held, tasks
  FROM task t WHERE t.worker = p_worker AND t.state = 3 AND t.request >= (SELECT w.oldest FROM workers w WHERE w.id = p_worker);
  UPDATE workers w SET beat_at = moment(p_mono), oldest = greatest(w.oldest, least(held_from, p_request + 1, w.request + 1)) WHERE w.id = p_worker;
  known := FOUND;
  owes := false;
  IF known THEN
    IF EXISTS (SELECT unnest(answered) EXCEPT SELECT unnest(p_tokens)) THEN
      owes := give_back(p_worker, p_request, p_tokens, moment(p_now)) > 0;
    ELSE
      PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT i.value INTO command FROM item i WHERE i.kind = 'worker' AND i.name = p_worker ORDER BY i.operator DESC LIMIT 1;
  END IF;
  lost := ARRAY(SELECT unnest(p_tokens) EXCEPT SELECT unnest(tokens) ORDER BY 1);
  RETURN NEXT;
END $$;

-- Recovery.

-- Tasks whose time is over before they run. One that runs, or that somebody holds, is looked at again later; one that must end already is left to its handler.
CREATE FUNCTION expire(p_n integer, now bigint) RETURNS integer LANGUAGE plpgsql AS $$
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
      PERFORM make_cancelled(t, now, '{"code":"expired","message":"its time was over before it could run"}', 'expired');
    END IF;
  END LOOP;
  RETURN coalesce(cardinality(due), 0);
END $$;

-- What was pending in plain lines before the clock was set back stays due, and in its order; whether there may be more.
CREATE FUNCTION pull_pending(p_back bigint, p_n integer, now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  ahead bigint := now + p_back + 60000000;  -- something may have become ready after the clock was last looked at
  pulled boolean := false;
  line record;
BEGIN
  FOR line IN SELECT q.id, level::smallint AS level FROM queue q, generate_series(0, 3) level ORDER BY q.id LOOP
    UPDATE task SET ready_at = least(ready_at - p_back, now) WHERE id = ANY (ARRAY(
      SELECT t.id FROM task t WHERE t.lane = -line.id AND t.lane < 0 AND t.priority = line.level AND t.state <= 2 AND t.ready_at > now AND t.ready_at <= ahead
        AND t.state + 0 = 0 LIMIT p_n FOR UPDATE SKIP LOCKED));
    IF FOUND THEN
      pulled := true;
      PERFORM announce(ARRAY[line.id]);
    END IF;
  END LOOP;
  RETURN pulled;
END $$;

-- Up to n leases of workers that are silent for longer than their lease are lost; then a slice of what only time or a clock that was set back has decided.
-- Nobody is judged by a time in which the store, or recovery itself, did not look: after half a lease of that, every lease is first given one lease more, as
-- too little would be left to beat in. Rows that somebody holds are passed over: a worker is forgotten when
-- nothing is left of it, so no lease is left behind.
CREATE FUNCTION recover(p_n integer, p_lease bigint, p_now bigint, p_mono bigint)
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

-- The next tasks of a type that got limits or a fair key after they were submitted, and whether they can be moved. At most one process does it at a time.
CREATE FUNCTION look_to_move(p_n integer) RETURNS TABLE (type text, id text, seq bigint, tenant text, payload text, meta text, movable boolean) LANGUAGE plpgsql AS $$
DECLARE
  m moving;
BEGIN
  SELECT * INTO m FROM moving k ORDER BY k.type LIMIT 1 FOR UPDATE SKIP LOCKED;
  RETURN QUERY SELECT m.type, NULL::text, m.after, NULL::text, NULL::text, NULL::text, false WHERE m.type IS NOT NULL;
  RETURN QUERY
  SELECT b.type, b.id::text, b.seq, b.tenant, CASE WHEN t.id IS NOT NULL THEN b.payload::text END, b.meta, t.id IS NOT NULL
  FROM (SELECT k.* FROM body k WHERE k.type = m.type AND k.seq > m.after ORDER BY k.seq LIMIT p_n) b
  LEFT JOIN task t ON t.id = ANY (ARRAY[b.id]) AND t.lane < 0 AND t.state + 0 < 3 ORDER BY b.seq;
END $$;

-- They move; what somebody holds meanwhile is looked at once more when all others are done. The slice ended at `p_after`; `p_last`: it was the last.
CREATE FUNCTION move_tasks(p_type text, p_ids uuid[], p_shares text[], p_limits text[], p_metas text[], p_after bigint, p_last boolean, p_now bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  held boolean := false;
  r record;
  t task;
  target bigint;
BEGIN
  FOR r IN SELECT * FROM unnest(p_ids, p_shares, p_limits, p_metas) u(id, share, limits, meta) ORDER BY u.id LOOP
    SELECT * INTO t FROM task k WHERE k.id = r.id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      held := held OR EXISTS (SELECT 1 FROM task k WHERE k.id = r.id AND k.state + 0 <> 3);
    ELSIF t.lane < 0 AND t.state < 3 THEN
      target := lane_id(-t.lane, r.share, ARRAY(SELECT json_array_elements_text(r.limits::json)), '', '');
      UPDATE task k SET lane = target, state = CASE WHEN k.ready_at <= now THEN 0 ELSE k.state END WHERE k.id = r.id;
      UPDATE body b SET meta = r.meta WHERE b.id = r.id;
      INSERT INTO stir (lane) SELECT target WHERE target > 0;
    END IF;
  END LOOP;
  IF NOT p_last THEN
    UPDATE moving m SET after = p_after, again = m.again OR held WHERE m.type = p_type;
  ELSE
    DELETE FROM moving m WHERE m.type = p_type AND NOT (m.again OR held);
    UPDATE moving m SET after = 0, again = false WHERE m.type = p_type;
  END IF;
END $$;

-- Leadership. A number is given once; renewing needs no disk, because one that is forgotten only ends the term sooner.

CREATE FUNCTION lead_role(p_role text, p_holder text, p_lasts bigint, p_now bigint, p_mono bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  mono bigint;
  t term;
BEGIN
  INSERT INTO term (role, number, holder, until) VALUES (p_role, 0, NULL, 0) ON CONFLICT DO NOTHING;
  SELECT * INTO t FROM term WHERE role = p_role FOR UPDATE;
  mono := moment(p_mono);
  IF t.until > mono + p_lasts THEN  -- the clock was set back: nobody's term is longer than this
    t.until := mono + p_lasts;
    UPDATE term SET until = t.until WHERE role = p_role;
  END IF;
  IF t.holder = p_holder AND t.until > mono THEN
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE term SET until = mono + p_lasts WHERE role = p_role;
    RETURN t.number;
  ELSIF t.holder <> p_holder AND t.until > mono THEN
    RETURN NULL;
  END IF;
  UPDATE term SET number = t.number + 1, holder = p_holder, until = mono + p_lasts WHERE role = p_role;
  PERFORM tell('leader.changed', p_role, (t.number + 1)::integer, moment(p_now), json_build_object('holder', p_holder));
  RETURN t.number + 1;
END $$;

-- Whether this term is the one that the store gave last. A successor's begins after the transaction that asked, so what is written in it is fenced.
CREATE FUNCTION holds_term(p_role text, p_holder text, p_number bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM term WHERE role = p_role AND holder = p_holder AND number = p_number FOR SHARE;
  RETURN FOUND;
END $$;

-- Retention.

-- When the id of a removed task is no longer known: its own window after it was submitted, or 72 hours.
CREATE FUNCTION known_until(created_at bigint, meta text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT created_at + coalesce(nullif(substring(meta FROM '"window":([0-9]+)')::bigint, 0), 259200000000)
$$;

-- What is owed: entries that were not delivered, edges that are still to fall.
CREATE FUNCTION owes_something(p_id uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM outbox o WHERE o.subject = p_id::text) OR EXISTS (SELECT 1 FROM falling f WHERE f.id = p_id)
    OR EXISTS (SELECT 1 FROM edge e JOIN late_edge l ON l.edge = e.number WHERE e.child = p_id);
END $$;

-- Remove these records, whose rows in ended the caller holds; an id stays known for its window (with the hash of its payload; no hashes: all windows have passed), an
-- outcome with those who waited for it, and a result with those of them that live. An edge that is held open by a failure stays open.
CREATE FUNCTION purge(p_ids uuid[], p_hashes bytea[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_hashes <> '{}' THEN
    INSERT INTO known (id, state, version, hash, until)
    SELECT e.id, e.state, e.version, u.hash, known_until(b.created_at, b.meta) FROM unnest(p_ids, p_hashes) u(id, hash) JOIN ended e ON e.id = ANY (ARRAY[u.id]) JOIN body b ON b.id = ANY (ARRAY[u.id])
    WHERE known_until(b.created_at, b.meta) > now
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
CREATE FUNCTION prune(p_role text, p_holder text, p_number bigint, p_n integer, p_kept bigint[], p_now bigint)
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
    plain := ARRAY(SELECT b.id FROM body b WHERE b.id = ANY (old) AND known_until(b.created_at, b.meta) <= now);
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

-- The rest of it: these ids, with their hashes. None: the term is over.
CREATE FUNCTION prune_known(p_role text, p_holder text, p_number bigint, p_ids uuid[], p_hashes bytea[], p_kept bigint[], p_now bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  old uuid[];
BEGIN
  IF NOT holds_term(p_role, p_holder, p_number) THEN
    RETURN NULL;
  END IF;
  old := ARRAY(SELECT e.id FROM ended e WHERE e.id = ANY (p_ids) AND e.finished_at <= now - p_kept[e.state - 4] AND NOT owes_something(e.id)
    ORDER BY uuid_send(e.id) FOR UPDATE SKIP LOCKED);
  PERFORM purge(old, ARRAY(SELECT u.hash FROM unnest(old) WITH ORDINALITY o(id, place) JOIN unnest(p_ids, p_hashes) u(id, hash) ON u.id = o.id ORDER BY o.place), now);
  RETURN cardinality(old);
END $$;

-- Keys, ids and answers whose window has passed; a key of a task that lives is known for as long as it lives.
CREATE FUNCTION forget_keys(p_n integer, now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  gone integer;
  forgotten integer;
BEGIN
  DELETE FROM known WHERE id = ANY (ARRAY(SELECT k.id FROM known k WHERE k.until <= now ORDER BY k.until LIMIT p_n FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS forgotten = ROW_COUNT;
  DELETE FROM dedupe d USING (
    SELECT k.tenant, k.type, k.key FROM dedupe k WHERE k.until <= now AND (SELECT t.id FROM task t WHERE t.id = k.id) IS NULL
    ORDER BY k.until LIMIT p_n - forgotten FOR UPDATE SKIP LOCKED) k
  WHERE d.tenant = k.tenant AND d.type = k.type AND d.key = k.key AND d.until <= now;
  GET DIAGNOSTICS gone = ROW_COUNT;
  forgotten := forgotten + gone;
  DELETE FROM taken WHERE id = ANY (ARRAY(SELECT k.id FROM taken k WHERE k.until <= now ORDER BY k.until LIMIT p_n - forgotten FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN forgotten + gone;
END $$;

-- Lanes, shares and counters that nothing seems to need any more: a look at all of them, without the gate.
CREATE FUNCTION look_for_idle(p_n integer, p_now bigint, OUT lanes bigint[], OUT shares bigint[], OUT counters bigint[]) LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
BEGIN
  lanes := ARRAY(
    SELECT l.id FROM lane l WHERE l.top IS NULL AND (SELECT t.id FROM task t WHERE t.lane = l.id AND t.lane > 0 AND t.state > 0 LIMIT 1) IS NULL
      AND (SELECT t.id FROM task t WHERE t.lane = l.id AND t.lane > 0 AND t.state = 0 LIMIT 1) IS NULL LIMIT p_n);
  shares := ARRAY(SELECT s.id FROM share s WHERE s.top IS NULL AND (SELECT l.id FROM lane l WHERE l.queue = s.queue AND l.share = s.id LIMIT 1) IS NULL LIMIT p_n);
  counters := '{}';
  IF cardinality(lanes) < p_n THEN  -- as long as there are lanes to forget, they name their counters
    counters := ARRAY(SELECT c.id FROM counter c WHERE c.running = 0 AND c.idle_at <= now EXCEPT SELECT n FROM lane l, unnest(l.counters) n LIMIT p_n);
  END IF;
END $$;
ALTER FUNCTION look_for_idle SET search_path FROM CURRENT;
ALTER FUNCTION look_for_idle SET jit = off;

-- They are forgotten under the gate, when nobody has them in use: whoever is about to put a task into a lane has locked its row, and what has happened in one
-- is applied first. So are keys whose window has passed. None: the term is over.
CREATE FUNCTION forget(p_role text, p_holder text, p_number bigint, p_n integer, p_lanes bigint[], p_shares bigint[], p_counters bigint[], p_now bigint)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  forgotten integer;
  gone integer;
BEGIN
  IF NOT holds_term(p_role, p_holder, p_number) THEN
    RETURN NULL;
  END IF;
  forgotten := forget_keys(p_n, now);
  IF p_lanes || p_shares || p_counters = '{}' THEN
    RETURN forgotten;
  END IF;
  PERFORM gate();
  p_lanes := ARRAY(SELECT l.id FROM lane l WHERE l.id = ANY (p_lanes) AND l.top IS NULL ORDER BY l.id LIMIT p_n - forgotten FOR UPDATE SKIP LOCKED);
  DELETE FROM lane l WHERE l.id = ANY (p_lanes) AND NOT lane_in_use(l.id) AND l.id <> ALL (ARRAY(SELECT DISTINCT s.lane FROM stir s));
  GET DIAGNOSTICS gone = ROW_COUNT;
  forgotten := forgotten + gone;
  p_shares := ARRAY(SELECT s.id FROM share s WHERE s.id = ANY (p_shares) AND s.top IS NULL ORDER BY s.id LIMIT p_n - forgotten FOR UPDATE SKIP LOCKED);
  DELETE FROM share s WHERE s.id = ANY (p_shares) AND (SELECT l.id FROM lane l WHERE l.queue = s.queue AND l.share = s.id LIMIT 1) IS NULL
    AND (SELECT d.counter FROM stand d WHERE d.share = s.id LIMIT 1) IS NULL;
  GET DIAGNOSTICS gone = ROW_COUNT;
  forgotten := forgotten + gone;
  RETURN forgotten + forget_counters(p_counters, p_n - forgotten, now);
END $$;

CREATE FUNCTION lane_in_use(p_lane bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM task t WHERE t.lane = p_lane AND t.lane > 0 AND t.state > 0)
    OR EXISTS (SELECT 1 FROM task t WHERE t.lane = p_lane AND t.lane > 0 AND t.state = 0);
END $$;

-- A rate is remembered until its window, as long as it is now, has passed. Whoever makes a lane has locked the counters it names.
CREATE FUNCTION forget_counters(p_counters bigint[], p_n integer, now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  idle bigint[];
  gone integer;
BEGIN
  UPDATE counter c SET idle_at = s.at + c.span FROM (SELECT s.counter, max(s.at) AS at FROM start s WHERE s.counter = ANY (p_counters) GROUP BY s.counter) s
  WHERE c.id = s.counter AND s.at + c.span > now;
  idle := ARRAY(SELECT c.id FROM counter c WHERE c.id = ANY (p_counters) AND c.running = 0 AND c.idle_at <= now ORDER BY c.id LIMIT p_n FOR UPDATE SKIP LOCKED);
  IF idle = '{}' THEN
    RETURN 0;
  END IF;
  DELETE FROM counter c WHERE c.id = ANY (idle) AND (SELECT s.share FROM stand s WHERE s.counter = c.id LIMIT 1) IS NULL
    AND c.id <> ALL (ARRAY(SELECT n FROM lane l, unnest(l.counters) n WHERE idle[width_bucket(n, idle)] = n));
  GET DIAGNOSTICS gone = ROW_COUNT;
  DELETE FROM start s WHERE s.counter = ANY (idle) AND (SELECT c.id FROM counter c WHERE c.id = s.counter) IS NULL;
  RETURN gone;
END $$;

CALL harden('join_worker', 'leave_worker', 'heartbeat', 'recover', 'look_to_move', 'move_tasks', 'lead_role', 'holds_term', 'prune', 'prune_known', 'forget');
