-- Lanes and limits: what is open, what is shut, and when it opens again; and edges as they fall. All of this is done under the gate.
--
-- A lane knows its next task (top its priority, head_at its age) and, when one of its limits was full at the last look, which one it stands at (shut).
-- A share knows the best top of its open lanes. The rules that make this live and exact:
--   1. shut is only a belief; the limit's numbers decide at claim. So a lane opened in vain is harmless and nothing is ever over-admitted.
--   2. While a limit has room for f more, the best f lanes that stand at it are open. It is kept by wake(): when slots return, when a window has passed, when
--      numbers change, when a lane that was opened for this room then met another full limit, and when it lost the task it was opened for.
--   3. A lane stands at one limit only, as closing and opening then cost the same whatever the number of limits.
--   4. An empty lane stands nowhere.

CREATE FUNCTION grain_of(span bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT greatest(1000, span / 1000) $$;

-- Times are rounded up to a thousandth of the window: never over, at most 0.1 % late, at most 1,000 rows.
CREATE FUNCTION rounded_up(at bigint, span bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT (at + grain_of(span) - 1) / grain_of(span) * grain_of(span) $$;

-- How many more may start now. The clock was set back: the log goes with it, as if no time had passed, so the window is never exceeded and never stands still.
CREATE FUNCTION room_of(c counter, now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  room integer := coalesce(c.cap - c.running, 1073741824);
  ahead bigint;
BEGIN
  IF c.rate IS NOT NULL THEN
    SELECT max(at) - rounded_up(now, c.span) INTO ahead FROM start WHERE counter = c.id;
    IF ahead > 0 THEN
      UPDATE start SET at = at - ahead - 4611686018427387904 WHERE counter = c.id;  -- far away first, so that no row meets another
      UPDATE start SET at = at + 4611686018427387904 WHERE counter = c.id;
    END IF;
    room := least(room, c.rate - (SELECT coalesce(sum(tasks), 0) FROM start WHERE counter = c.id AND at > now - c.span)::integer);
  END IF;
  RETURN greatest(room, 0);
END $$;

-- Starts in the window of a rate, which nothing takes back.
CREATE FUNCTION count_starts(c counter, n integer, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF c.rate IS NOT NULL THEN
    INSERT INTO start (counter, at, tasks) VALUES (c.id, rounded_up(now, c.span), n) ON CONFLICT (counter, at) DO UPDATE SET tasks = start.tasks + excluded.tasks;
    DELETE FROM start WHERE counter = c.id AND at <= now - c.span;
    UPDATE counter SET idle_at = greatest(idle_at, now + c.span + grain_of(c.span)) WHERE id = c.id;
  END IF;
END $$;

CREATE FUNCTION next_room_at(c counter, now bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT min(at) + c.span FROM start WHERE counter = c.id AND at > now - c.span);
END $$;

-- If only the passing of time brings room, note when.
CREATE FUNCTION arm(numbers bigint[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE counter c SET wake_at = next_room_at(c, now)
  WHERE c.id = ANY (numbers) AND c.rate IS NOT NULL AND c.rate <= (SELECT coalesce(sum(tasks), 0) FROM start s WHERE s.counter = c.id AND s.at > now - c.span);
END $$;

-- The best priority among the open lanes of these shares, by which a claim finds them.
CREATE FUNCTION refresh_shares(numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE share s SET top = n.top
  FROM unnest(numbers) u(id), LATERAL (SELECT (SELECT l.top FROM lane l WHERE l.share = u.id AND l.top IS NOT NULL AND l.shut IS NULL ORDER BY l.top DESC LIMIT 1) AS top) n
  WHERE s.id = ANY (ARRAY[u.id]) AND s.top IS DISTINCT FROM n.top;
END $$;

-- How shares stand at limits: with the best of their lanes that are shut there, or not at all. Pairs, each once.
CREATE FUNCTION stand_again(p_counters bigint[], p_shares bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH pair AS MATERIALIZED (
    SELECT u.counter, u.share,
      (SELECT l.top FROM lane l WHERE l.shut = u.counter AND l.share = u.share AND l.top IS NOT NULL AND l.shut IS NOT NULL ORDER BY l.top DESC LIMIT 1) AS top
    FROM (SELECT DISTINCT c AS counter, s AS share FROM unnest(p_counters, p_shares) x(c, s)) u
  ), gone AS (
    DELETE FROM stand d USING pair p WHERE d.counter = ANY (ARRAY[p.counter]) AND d.share = p.share AND p.top IS NULL
  )
  INSERT INTO stand (counter, share, queue, turn, top)
  SELECT p.counter, s.id, s.queue, s.turn, p.top FROM pair p JOIN share s ON s.id = ANY (ARRAY[p.share]) WHERE p.top IS NOT NULL
  ON CONFLICT (counter, share) DO UPDATE SET top = excluded.top, turn = excluded.turn WHERE (stand.top, stand.turn) IS DISTINCT FROM (excluded.top, excluded.turn);
END $$;

-- Open as many of the lanes that stand at these limits as they have room for: in every queue the best, and between shares in turn. How many were opened.
CREATE FUNCTION wake(numbers bigint[], now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  stood bigint[];
  rooms integer[];
  at_counters bigint[];
  at_shares bigint[];
  opened_shares bigint[];
  opened_queues bigint[];
  opened integer;
BEGIN
  SELECT array_agg(c.id), array_agg(least(room_of(c, now), 1000)) INTO stood, rooms
  FROM counter c WHERE c.id = ANY (numbers) AND (SELECT s.share FROM stand s WHERE s.counter = c.id LIMIT 1) IS NOT NULL;
  IF stood IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM arm(ARRAY(SELECT c FROM unnest(stood, rooms) u(c, room) WHERE room = 0), now);
  WITH best AS MATERIALIZED (
    SELECT u.counter, b.share, u.room, count(*) OVER (PARTITION BY u.counter, q.queue) AS shares
    FROM unnest(stood, rooms) u(counter, room), LATERAL (SELECT DISTINCT s.queue FROM stand s WHERE s.counter = u.counter) q,
      LATERAL (SELECT s.share FROM stand s WHERE s.counter = u.counter AND s.queue = q.queue ORDER BY s.top DESC, s.turn, s.share LIMIT u.room) b
    WHERE u.room > 0
  ), opening AS (
    UPDATE lane SET shut = NULL WHERE id = ANY (ARRAY(
      SELECT l.id FROM best b, LATERAL (
        SELECT l.id FROM lane l WHERE l.shut = b.counter AND l.share = b.share AND l.top IS NOT NULL AND l.shut IS NOT NULL
        ORDER BY l.top DESC, l.head_at, l.head_seq LIMIT (b.room + b.shares - 1) / b.shares) l))
    RETURNING share, queue
  )
  SELECT (SELECT array_agg(counter) FROM best), (SELECT array_agg(share) FROM best), array_agg(DISTINCT o.share), array_agg(DISTINCT o.queue), count(*)
  INTO at_counters, at_shares, opened_shares, opened_queues, opened FROM opening o;
  IF at_counters IS NOT NULL THEN
    PERFORM stand_again(at_counters, at_shares);
  END IF;
  IF opened > 0 THEN
    PERFORM refresh_shares(opened_shares);
    PERFORM announce(opened_queues);
  END IF;
  RETURN opened;
END $$;

-- Look again what is next in these lanes. An ordered lane's next is its first task that has not ended, if it is the one to run now: while it runs, retries,
-- sleeps or waits, nothing overtakes it. A lane that got better leaves the limit it stood at: if there is room, it belongs to the best. Answers the limits of the
-- lanes that changed: one that was opened for its best task may have lost it, and the room goes to whoever is best now.
-- `ats`: nothing that came to the lane since the last look is older than this; all else is behind what was next then, or of a lower priority.
CREATE FUNCTION refresh_lanes(numbers bigint[], ats bigint[], now bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  shares bigint[];
  left_counters bigint[];
  left_shares bigint[];
  limits bigint[];
BEGIN
  WITH head AS MATERIALIZED (
    SELECT l.id, l.share, l.counters, l.shut, h.top, h.head_at, h.head_seq, h.type, l.order_key FROM unnest(numbers, ats) u(id, at) JOIN lane l ON l.id = ANY (ARRAY[u.id])
    LEFT JOIN LATERAL (
      (SELECT t.priority AS top, t.ready_at AS head_at, t.seq AS head_seq, NULL::text AS type FROM generate_series(3, 0, -1) level, LATERAL (
         SELECT t.priority, t.ready_at, t.seq FROM task t
         WHERE l.order_key = '' AND t.lane = l.id AND t.lane > 0 AND t.state = 0 AND t.priority = level
           AND t.ready_at >= CASE WHEN level < l.top THEN 0 WHEN level = l.top THEN least(u.at, l.head_at) ELSE u.at END
         ORDER BY t.ready_at, t.seq LIMIT 1) t LIMIT 1)
      UNION ALL
      (SELECT t.priority, t.ready_at, t.seq, t.type FROM (
         SELECT o.id FROM ordered o WHERE l.order_key <> '' AND o.lane = l.id ORDER BY o.seq LIMIT 1) f JOIN task t ON t.id = ANY (ARRAY[f.id]) WHERE t.state + 0 = 0)
    ) h ON true
    WHERE (l.top, l.head_at, l.head_seq) IS DISTINCT FROM (h.top, h.head_at, h.head_seq)
  ), changed AS (
    UPDATE lane l SET top = h.top, head_at = h.head_at, head_seq = h.head_seq, needs = CASE WHEN h.order_key <> '' AND h.top IS NOT NULL THEN h.type ELSE l.needs END,
      shut = CASE WHEN h.top IS NULL OR (h.top, -h.head_at, -h.head_seq) > (l.top, -l.head_at, -l.head_seq) THEN NULL ELSE l.shut END
    FROM head h WHERE l.id = ANY (ARRAY[h.id])
    RETURNING l.share, l.counters, h.shut AS stood
  )
  SELECT array_agg(DISTINCT share), array_agg(stood) FILTER (WHERE stood IS NOT NULL), array_agg(share) FILTER (WHERE stood IS NOT NULL),
    (SELECT array_agg(DISTINCT n) FROM changed c2, unnest(c2.counters) n)
  INTO shares, left_counters, left_shares, limits FROM changed;
  IF shares IS NOT NULL THEN
    PERFORM refresh_shares(shares);
  END IF;
  IF left_counters IS NOT NULL THEN
    PERFORM stand_again(left_counters, left_shares);
  END IF;
  RETURN coalesce(limits, '{}');
END $$;

-- Where to begin in the inbox of lanes. An old snapshot that somebody holds keeps the entries of all that was ever in it, and a look from the start walks over
-- them; after one that did, this session begins where it last found something, for ten times as long as the look took (as in a plain line, see line_starts).
-- What commits later than that with a lower number is met by the next look from the start.
CREATE FUNCTION stir_start() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
  noted text := current_setting('taskmill.stirs', true);  -- until when, and from where
BEGIN
  IF noted IS NULL OR noted = '' THEN
    RETURN 0;
  END IF;
  RETURN CASE WHEN split_part(noted, ' ', 1)::bigint > moment(NULL) THEN split_part(noted, ' ', 2)::bigint ELSE 0 END;
END $$;

CREATE FUNCTION any_stir() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  start bigint := stir_start();
  entries bigint := pg_stat_get_xact_tuples_returned('stir_pkey'::regclass);
  began bigint := moment(NULL);
  first bigint := (SELECT s.number FROM stir s WHERE s.number >= start ORDER BY s.number LIMIT 1);
  until bigint;
BEGIN
  entries := pg_stat_get_xact_tuples_returned('stir_pkey'::regclass) - entries;
  IF start > 0 OR entries > 20000 THEN
    until := CASE WHEN start > 0 THEN split_part(current_setting('taskmill.stirs'), ' ', 1)::bigint ELSE moment(NULL) + 10 * (moment(NULL) - began) END;
    PERFORM set_config('taskmill.stirs', until || ' ' || greatest(start, coalesce(first, pg_sequence_last_value('stir_number_seq'::regclass), 0) - 5000), false);
  END IF;
  RETURN first IS NOT NULL;
END $$;

-- Take in up to 2,000 inbox rows of lanes: slots return, lanes look for their next task, room goes to whoever stands for it. False: nothing was there.
CREATE FUNCTION take_stirs(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  looks bigint[];
  ats bigint[];
  lanes bigint[];
  slots integer[];
  numbers bigint[];
  counts integer[];
  limits bigint[] := '{}';
BEGIN
  WITH gone AS (
    DELETE FROM stir WHERE number = ANY (ARRAY(SELECT number FROM stir WHERE number >= stir_start() ORDER BY number LIMIT 2000)) RETURNING stir.lane, stir.freed, stir.look, stir.at
  ), each AS (
    SELECT g.lane, sum(g.freed)::integer AS freed, bool_or(g.look) AS look, min(g.at) FILTER (WHERE g.look) AS at FROM gone g GROUP BY g.lane
  )
  SELECT array_agg(e.lane) FILTER (WHERE e.look), array_agg(e.at) FILTER (WHERE e.look), array_agg(e.lane) FILTER (WHERE e.freed > 0),
    array_agg(e.freed) FILTER (WHERE e.freed > 0)
  INTO looks, ats, lanes, slots FROM each e;
  IF looks IS NULL AND lanes IS NULL THEN
    RETURN false;
  END IF;
  IF lanes IS NOT NULL THEN
    SELECT array_agg(x.counter), array_agg(x.n) INTO numbers, counts FROM (
      SELECT c.counter, sum(u.n)::integer AS n FROM unnest(lanes, slots) u(lane, n) JOIN lane l ON l.id = ANY (ARRAY[u.lane]), unnest(l.counters) c(counter) GROUP BY c.counter) x;
    IF numbers IS NOT NULL THEN
      UPDATE counter c SET running = greatest(c.running - u.n, 0), idle_at = greatest(c.idle_at, now) FROM unnest(numbers, counts) u(id, n) WHERE c.id = ANY (ARRAY[u.id]);
      limits := numbers;
    END IF;
  END IF;
  IF looks IS NOT NULL THEN
    limits := limits || refresh_lanes(looks, ats, now);
  END IF;
  PERFORM wake(limits, now);
  RETURN true;
END $$;

-- Edges of these waiting tasks have fallen: they are counted, and what waits for nothing any more is ready; one whose edge failed is cancelled.
-- A task that somebody has locked is left in the inbox.
CREATE FUNCTION lower_edges(ids uuid[], counts integer[], fails boolean[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  locked uuid[];
  woken uuid[];
  lanes bigint[];
  ages bigint[];
  t task;
BEGIN
  locked := ARRAY(SELECT id FROM task WHERE id = ANY (ids) ORDER BY uuid_send(id) FOR UPDATE SKIP LOCKED);
  IF cardinality(locked) < cardinality(ids) THEN
    INSERT INTO lowering (id, edges, failed)
    SELECT u.id, u.n, u.bad FROM unnest(ids, counts, fails) u(id, n, bad) JOIN task w ON w.id = ANY (ARRAY[u.id]) WHERE u.id <> ALL (locked);
    UPDATE ended e SET open_edges = e.open_edges - u.n FROM unnest(ids, counts) u(id, n) WHERE e.id = ANY (ARRAY[u.id]);
    SELECT array_agg(u.id), array_agg(u.n), array_agg(u.bad) INTO ids, counts, fails FROM unnest(ids, counts, fails) u(id, n, bad) WHERE u.id = ANY (locked);
  END IF;
  UPDATE task w SET open_edges = w.open_edges - u.n FROM unnest(ids, counts) u(id, n) WHERE w.id = ANY (ARRAY[u.id]);
  -- What wake_up does to one, to all of them.
  WITH awake AS (
    UPDATE task w SET state = CASE WHEN w.executions = 0 AND b.run_at > now THEN 1 ELSE 0 END,
      ready_at = CASE WHEN w.executions = 0 AND b.run_at > now THEN b.run_at ELSE now END,
      token = CASE WHEN w.executions = 0 AND b.run_at > now THEN w.token END, worker = CASE WHEN w.executions = 0 AND b.run_at > now THEN w.worker END,
      request = NULL, awaits = NULL, version = w.version + 1, updated_at = now
    FROM unnest(ids, fails) u(id, bad), body b
    WHERE w.id = ANY (ARRAY[u.id]) AND b.id = ANY (ARRAY[u.id]) AND NOT u.bad AND w.state + 0 = 4 AND w.open_edges = 0 AND w.flags & (64 | 128) = 0
    RETURNING w.id, w.lane, w.ready_at)
  SELECT array_agg(id), array_agg(lane), array_agg(ready_at) INTO woken, lanes, ages FROM awake;
  IF woken IS NOT NULL THEN
    INSERT INTO stir (lane, at) SELECT u.lane, min(u.at) FROM unnest(lanes, ages) u(lane, at) WHERE u.lane > 0 GROUP BY u.lane;
    IF (SELECT listen_until > now FROM store) THEN
      PERFORM tell_task(kind_of(w.state), w.id, w.version, now) FROM task w WHERE w.id = ANY (woken) ORDER BY w.seq;
    END IF;
    PERFORM announce(ARRAY(SELECT DISTINCT queue_of(l.lane) FROM (SELECT DISTINCT u.lane FROM unnest(lanes) u(lane)) l));
  END IF;
  FOR t IN
    SELECT w.* FROM unnest(ids, fails) u(id, bad) JOIN task w ON w.id = ANY (ARRAY[u.id]) WHERE u.bad AND w.state + 0 = 4 ORDER BY w.seq
  LOOP
    PERFORM make_cancelled(t, now, '{"code":"edge_failed","message":"a task it waits for did not complete"}', 'edge_failed');
  END LOOP;
END $$;

-- A slice of the edges that are still to fall: at most 250 of one ended task, 1,000 ended tasks. False: nothing was there.
CREATE FUNCTION fall(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[];
  parents uuid[];
  counts integer[];
  fails boolean[];
BEGIN
  numbers := ARRAY(SELECT number FROM falling ORDER BY number LIMIT 1000);
  IF numbers = '{}' THEN
    RETURN false;
  END IF;
  WITH fell AS MATERIALIZED (
    SELECT f.number, f.state, e.number AS edge, e.parent, e.on_failure FROM falling f, LATERAL (
      SELECT e.number, e.parent, e.on_failure FROM edge e WHERE e.child = f.id AND e.number > f.after AND e.outcome IS NULL ORDER BY e.number LIMIT 250) e
    WHERE f.number = ANY (numbers)
  ), slice AS MATERIALIZED (
    SELECT number, max(edge) AS last FROM fell GROUP BY number HAVING count(*) = 250
  ), kept AS MATERIALIZED (  -- few: an array is looked through faster than a list is joined
    SELECT coalesce(array_agg(number), '{}') AS going_on FROM slice
  ), moved AS (
    UPDATE falling f SET after = s.last FROM slice s WHERE f.number = ANY (ARRAY[s.number])
  ), done AS (
    DELETE FROM falling f USING kept k WHERE f.number = ANY (numbers) AND f.number <> ALL (k.going_on)
  )
  SELECT array_agg(x.parent), array_agg(x.n), array_agg(x.bad) INTO parents, counts, fails FROM (
    SELECT parent, count(*)::integer AS n, bool_or(state <> 5 AND on_failure = 0) AS bad FROM fell WHERE state = 5 OR on_failure <> 2 GROUP BY parent) x;
  IF parents IS NOT NULL THEN
    PERFORM lower_edges(parents, counts, fails, now);
  END IF;
  RETURN true;
END $$;

-- Edges onto tasks that were there before them: such a task is told that somebody waits for it, and one that has ended lets its edge fall now.
-- A task that somebody has locked is left: it may be ending.
CREATE FUNCTION hook_late_edges(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[];
  children uuid[];
  locked uuid[];
  parents uuid[];
  counts integer[];
  fails boolean[];
BEGIN
  SELECT array_agg(l.edge), array_agg(DISTINCT e.child) INTO numbers, children
  FROM (SELECT edge FROM late_edge ORDER BY edge LIMIT 250) l JOIN edge e ON e.number = ANY (ARRAY[l.edge]);
  IF numbers IS NULL THEN
    DELETE FROM late_edge l WHERE (SELECT e.number FROM edge e WHERE e.number = l.edge) IS NULL;
    RETURN false;
  END IF;
  locked := ARRAY(SELECT id FROM task WHERE id = ANY (children) ORDER BY uuid_send(id) FOR UPDATE SKIP LOCKED);
  UPDATE task SET flags = flags | 32 WHERE id = ANY (locked) AND flags & 32 = 0;
  DELETE FROM late_edge l USING edge e WHERE l.edge = ANY (numbers) AND e.number = ANY (ARRAY[l.edge]) AND e.child = ANY (locked);
  WITH late AS MATERIALIZED (
    SELECT e.number, e.parent, e.child, e.on_failure, coalesce(d.state, k.state) AS state, d.result
    FROM unnest(numbers) u(number) JOIN late_edge l ON l.edge = ANY (ARRAY[u.number]) JOIN edge e ON e.number = ANY (ARRAY[u.number])
    LEFT JOIN ended d ON d.id = ANY (ARRAY[e.child]) LEFT JOIN known k ON k.id = ANY (ARRAY[e.child])
    WHERE e.child <> ALL (locked) AND (SELECT t.id FROM task t WHERE t.id = e.child) IS NULL
  ), done AS (
    DELETE FROM late_edge l USING late WHERE l.edge = ANY (ARRAY[late.number]) AND late.state IS NOT NULL
  ), fell AS (
    UPDATE edge e SET outcome = late.state, result = late.result FROM late WHERE e.number = ANY (ARRAY[late.number]) AND (late.state = 5 OR late.on_failure <> 2)
  ), held AS (  -- it falls when the child is opened again and completes
    UPDATE ended d SET flags = d.flags | 32 FROM late WHERE d.id = ANY (ARRAY[late.child]) AND late.state <> 5 AND late.on_failure = 2
  )
  SELECT array_agg(x.parent), array_agg(x.n), array_agg(x.bad) INTO parents, counts, fails FROM (
    SELECT parent, count(*)::integer AS n, bool_or(state <> 5 AND on_failure = 0) AS bad FROM late WHERE state = 5 OR state > 5 AND on_failure <> 2 GROUP BY parent) x;
  IF parents IS NOT NULL THEN
    PERFORM lower_edges(parents, counts, fails, now);
  END IF;
  RETURN parents IS NOT NULL OR locked <> '{}';
END $$;

-- Fallen edges that could not be counted before.
CREATE FUNCTION lower_again(now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  ids uuid[];
  counts integer[];
  fails boolean[];
BEGIN
  WITH gone AS (
    DELETE FROM lowering WHERE number = ANY (ARRAY(SELECT number FROM lowering ORDER BY number LIMIT 1000)) RETURNING id, edges, failed)
  SELECT array_agg(x.id), array_agg(x.n), array_agg(x.bad) INTO ids, counts, fails
  FROM (SELECT id, sum(edges)::integer AS n, bool_or(failed) AS bad FROM gone GROUP BY id) x;
  IF ids IS NOT NULL THEN
    PERFORM lower_edges(ids, counts, fails, now);
  END IF;
END $$;

-- What time alone has changed: delayed tasks in lanes that are due, deadlines of waits, windows that have room. Bounded; true if there may be more.
CREATE FUNCTION open_due(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  ids uuid[];
  lanes bigint[];
  passed bigint[];
BEGIN
  ids := ARRAY(SELECT id FROM task WHERE ((lane > 0 AND (state = 1 OR state = 2)) OR state = 4) AND ready_at <= now ORDER BY ready_at LIMIT 500 FOR UPDATE SKIP LOCKED);
  IF ids <> '{}' THEN
    -- A delayed task that came due reads as pending already: only the end of a wait is a change that others can see.
    PERFORM tell_task('task.ready', t.id, t.version + 1, now) FROM task t WHERE t.id = ANY (ids) AND t.state + 0 = 4 ORDER BY t.seq;
    UPDATE task SET version = version + (state = 4)::integer, ready_at = CASE state WHEN 4 THEN now ELSE ready_at END, state = 0, flags = flags & ~128, awaits = NULL
    WHERE id = ANY (ids);
    lanes := ARRAY(SELECT DISTINCT lane FROM task WHERE id = ANY (ids) AND lane > 0);
    PERFORM wake(refresh_lanes(lanes, array_fill(0::bigint, ARRAY[cardinality(lanes)]), now), now);
    PERFORM announce(ARRAY(SELECT DISTINCT queue_of(lane) FROM task WHERE id = ANY (ids)));
  END IF;
  passed := ARRAY(SELECT id FROM counter WHERE wake_at IS NOT NULL AND wake_at <= now ORDER BY wake_at LIMIT 500);
  IF passed <> '{}' THEN
    UPDATE counter SET wake_at = NULL WHERE id = ANY (passed);
    PERFORM wake(passed, now);
  END IF;
  RETURN cardinality(ids) = 500 OR cardinality(passed) = 500;
END $$;

-- Everything that is owed, in bounded pieces; true if there is more. The caller holds the gate.
CREATE FUNCTION apply_inboxes(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  more boolean;
BEGIN
  PERFORM hook_late_edges(now);
  PERFORM lower_again(now);
  PERFORM fall(now);
  more := open_due(now);
  PERFORM take_stirs(now);
  RETURN more OR EXISTS (SELECT 1 FROM falling) OR any_stir();
END $$;

-- Whether a step has left something to be applied, or time has.
CREATE FUNCTION anything_owed(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN any_stir() OR EXISTS (SELECT 1 FROM falling) OR EXISTS (SELECT 1 FROM late_edge) OR EXISTS (SELECT 1 FROM lowering)
    OR EXISTS (SELECT 1 FROM task WHERE ((lane > 0 AND (state = 1 OR state = 2)) OR state = 4) AND ready_at <= now)
    OR EXISTS (SELECT 1 FROM counter WHERE wake_at IS NOT NULL AND wake_at <= now);
END $$;

CREATE FUNCTION settle(p_now bigint DEFAULT NULL, p_wait boolean DEFAULT true) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  rounds integer := 0;
BEGIN
  IF NOT anything_owed(moment(p_now)) THEN
    RETURN false;
  END IF;
  IF p_wait THEN
    PERFORM gate();
  ELSIF NOT try_gate() THEN
    RETURN true;
  END IF;
  WHILE apply_inboxes(moment(p_now)) LOOP
    rounds := rounds + 1;
    IF rounds = 4 THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;

CALL harden('settle');
