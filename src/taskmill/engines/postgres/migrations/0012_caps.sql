-- on_limit=reject under caps, a pause that holds from its answer on, and times that are read after the locks of their step.
--
-- A task that is rejected at a full limit or counted at once waits in a lane under the caps of its limits alone. Such a lane names them as `cap api:42`, and has the
-- number of their counter below zero: every number in lane.counters, lane.shut and stand.counter is read so. Rates and caps of one limit are one counter.
-- flags: 2048 suspect, 4096 rejected at its submit, 8192 counted at its submit.

-- As before, for every function of a name: those of the program before may stand beside it.
CREATE OR REPLACE PROCEDURE harden(VARIADIC names text[]) LANGUAGE plpgsql AS $$
DECLARE
  which regprocedure;
  setting text;
BEGIN
  FOR which IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = ANY (names) LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path FROM CURRENT', which);
    FOREACH setting IN ARRAY ARRAY['plan_cache_mode = force_generic_plan', 'jit = off', 'enable_seqscan = off', 'enable_mergejoin = off', 'enable_bitmapscan = off'] LOOP
      EXECUTE format('ALTER FUNCTION %s SET %s', which, setting);
    END LOOP;
  END LOOP;
END $$;

-- The limits of a lane for tasks that were counted at their submit: the caps among these.
CREATE FUNCTION caps_of(limit_names text[]) RETURNS text[] LANGUAGE sql STABLE AS $$
  SELECT coalesce(array_agg('cap ' || u.name ORDER BY u.place), '{}') FROM unnest(limit_names) WITH ORDINALITY u(name, place)
  WHERE (SELECT convert_from(i.value, 'UTF8')::json ->> 'cap' FROM item i WHERE i.kind = 'limit' AND i.name = split_part(u.name, ':', 1) ORDER BY i.operator DESC LIMIT 1) IS NOT NULL
$$;

CREATE FUNCTION counter_number(limit_name text) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE WHEN limit_name LIKE 'cap %' THEN -counter_id(substr(limit_name, 5)) ELSE counter_id(limit_name) END;
END $$;

-- The lane of such tasks: the plain line of the queue where nothing sets them apart.
CREATE OR REPLACE FUNCTION lane_id(queue_number bigint, share_name text, limit_names text[], key text, type_name text) RETURNS bigint LANGUAGE plpgsql AS $$
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
      ARRAY(SELECT counter_number(name) FROM unnest(limit_names) WITH ORDINALITY u(name, place) ORDER BY place), key, type_name, type_name)
    ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN found_id;
END $$;

-- Makes the queues, shares, counters and lanes of these lines that are missing, in one order for all who do so at once. A line whose names are too long for an
-- index is left out.
CREATE OR REPLACE FUNCTION make_names(p_lines json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  PERFORM queue_id(q.name) FROM (SELECT DISTINCT queue AS name FROM read_lines(p_lines) ORDER BY 1) q;
  PERFORM counter_id(c.name) FROM (SELECT DISTINCT n.name FROM read_lines(p_lines) x, unnest(x.limits) n(name) ORDER BY 1) c;
  FOR r IN
    SELECT DISTINCT queue_id(queue) AS queue, share, CASE WHEN rejects THEN caps_of(limits) ELSE limits END AS limits, order_key FROM read_lines(p_lines) ORDER BY 1, 2, 3, 4
  LOOP
    BEGIN
      PERFORM lane_id(r.queue, r.share, r.limits, r.order_key, '');
    EXCEPTION WHEN program_limit_exceeded THEN
    END;
  END LOOP;
END $$;

-- How many more may start by this number of a counter: below zero, its cap alone decides.
CREATE FUNCTION room_at(number bigint, c counter, now bigint) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  RETURN CASE WHEN number < 0 THEN greatest(coalesce(c.cap - c.running, 1073741824), 0) ELSE room_of(c, now) END;
END $$;

-- Open as many of the lanes that stand at these limits, or at their caps alone, as they have room for: in every queue the best, and between shares in turn. How many were opened.
CREATE OR REPLACE FUNCTION wake(numbers bigint[], now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  stood bigint[];
  rooms integer[];
  at_counters bigint[];
  at_shares bigint[];
  opened_shares bigint[];
  opened_queues bigint[];
  opened integer;
BEGIN
  SELECT array_agg(u.number), array_agg(least(room_at(u.number, c, now), 1000)) INTO stood, rooms
  FROM (SELECT DISTINCT n.number FROM unnest(numbers || ARRAY(SELECT -k FROM unnest(numbers) k)) n(number)
      WHERE (SELECT s.share FROM stand s WHERE s.counter = n.number LIMIT 1) IS NOT NULL) u
    JOIN counter c ON c.id = ANY (ARRAY[abs(u.number)]);
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

-- Take in up to 2,000 inbox rows of lanes: slots return, lanes look for their next task, room goes to whoever stands for it. False: nothing was there.
CREATE OR REPLACE FUNCTION take_stirs(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
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
      SELECT abs(c.counter) AS counter, sum(u.n)::integer AS n FROM unnest(lanes, slots) u(lane, n) JOIN lane l ON l.id = ANY (ARRAY[u.lane]), unnest(l.counters) c(counter) GROUP BY 1) x;
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

-- What was started in lanes is counted against their limits; the lanes look for their next task, and those at a full limit are shut.
CREATE OR REPLACE FUNCTION charge(p picking, lanes bigint[]) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[];
  counts integer[];
  starts integer[];
  limits bigint[];
BEGIN
  SELECT array_agg(x.counter), array_agg(x.n), array_agg(x.starts) INTO numbers, counts, starts FROM (
    SELECT abs(c.counter) AS counter, sum(y.n)::integer AS n, (sum(y.n) FILTER (WHERE c.counter > 0))::integer AS starts
    FROM (SELECT t.lane, count(*) AS n FROM task t WHERE t.id = ANY (p.picked) AND t.lane > 0 GROUP BY t.lane) y
    JOIN lane l ON l.id = ANY (ARRAY[y.lane]), unnest(l.counters) c(counter) GROUP BY 1) x;
  IF numbers IS NOT NULL THEN
    UPDATE counter c SET running = c.running + u.n, idle_at = greatest(c.idle_at, p.now) FROM unnest(numbers, counts) u(id, n) WHERE c.id = ANY (ARRAY[u.id]);
    PERFORM count_starts(c, u.n, p.now) FROM unnest(numbers, starts) u(id, n) JOIN counter c ON c.id = ANY (ARRAY[u.id]) WHERE c.rate IS NOT NULL AND u.n > 0;
  END IF;
  limits := refresh_lanes(lanes, array_fill(9223372036854775807, ARRAY[coalesce(cardinality(lanes), 0)]), p.now);
  IF numbers IS NOT NULL THEN
    PERFORM shut_full(lanes, p.now);
    limits := limits || numbers;
  END IF;
  IF wake(limits, p.now) > 0 THEN
    p.opened := true;
  END IF;
  RETURN p;
END $$;

-- Those of these lanes that have a full limit stand at it until it has room. How many there are.
CREATE OR REPLACE FUNCTION shut_full(lanes bigint[], now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  fulls bigint[];
  shares bigint[];
BEGIN
  WITH full_one AS MATERIALIZED (
    SELECT l.id, (SELECT u.id FROM unnest(l.counters) u(id) JOIN counter c ON c.id = ANY (ARRAY[abs(u.id)]) WHERE (c.cap IS NOT NULL OR c.rate IS NOT NULL) AND room_at(u.id, c, now) = 0 LIMIT 1) AS at
    FROM lane l WHERE l.id = ANY (lanes) AND l.top + 0 IS NOT NULL AND l.shut + 0 IS NULL
  ), shutting AS (
    UPDATE lane l SET shut = f.at FROM full_one f WHERE l.id = ANY (ARRAY[f.id]) AND f.at IS NOT NULL RETURNING l.shut, l.share
  )
  SELECT array_agg(s.shut), array_agg(s.share) INTO fulls, shares FROM shutting s;
  IF fulls IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM stand_again(fulls, shares);
  PERFORM refresh_shares(ARRAY(SELECT DISTINCT s FROM unnest(shares) s));
  PERFORM arm(ARRAY(SELECT DISTINCT f FROM unnest(fulls) f), now);
  RETURN cardinality(fulls);
END $$;

-- Up to `most` tasks of one priority from a share's oldest open lanes, and from the plain line where the share is the one without a name. So many lanes are read
-- together as give that much if every visit gives 8 tasks, or as few as the visits before have given.
CREATE OR REPLACE FUNCTION pick_share(p picking, queue_number bigint, share_number bigint, level integer, most integer, with_plain boolean) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  want integer := most;
  piece integer := (most + 7) / 8 + 1;
  all_picked uuid[] := '{}';
  lanes bigint[];
  rooms integer[];
  last_at bigint;
  last_seq bigint;
  ids uuid[];
  odd boolean;
  size bigint;
  passed_before integer;
BEGIN
  WHILE want > 0 AND p.passed < 1000 AND NOT p.stuffed LOOP
    SELECT array_agg(x.id), array_agg(x.room), max(x.head_at), max(x.head_seq) FILTER (WHERE x.n = piece) INTO lanes, rooms, last_at, last_seq
    FROM (
      SELECT l.id, l.head_at, l.head_seq, row_number() OVER (ORDER BY l.head_at, l.head_seq) AS n,
        coalesce((SELECT min(room_at(u.id, c, p.now)) FROM unnest(l.counters) u(id) JOIN counter c ON c.id = ANY (ARRAY[abs(u.id)])), 1073741824) AS room
      FROM (
        SELECT k.id, k.counters, k.head_at, k.head_seq FROM lane k
        WHERE k.share = share_number AND k.top = level AND k.top IS NOT NULL AND k.shut IS NULL AND (k.needs = '' OR k.needs = ANY (p.types))
        ORDER BY k.head_at, k.head_seq LIMIT piece) l
      ORDER BY l.head_at, l.head_seq) x;
    IF 0 = ANY (rooms) THEN
      PERFORM shut_full(ARRAY(SELECT u.id FROM unnest(lanes, rooms) u(id, room) WHERE u.room = 0), p.now);
      IF wake(ARRAY(SELECT DISTINCT c FROM lane l, unnest(l.counters) c WHERE l.id = ANY (lanes)), p.now) > 0 THEN
        p.opened := true;
      END IF;
      CONTINUE;
    END IF;
    ids := next_visits(p, queue_number, level, want, with_plain, lanes, rooms, last_at, last_seq);
    EXIT WHEN ids IS NULL;
    SELECT array_agg(x.id), bool_or(x.type <> ALL (p.types) OR (x.expires_at <= p.now AND x.must_end IS NULL)), sum(x.size) INTO ids, odd, size
    FROM (
      SELECT t.id, t.type, t.expires_at, t.must_end, t.size FROM unnest(ids) WITH ORDINALITY u(id, place) JOIN task t ON t.id = ANY (ARRAY[u.id]) AND t.state + 0 <= 2
      ORDER BY u.place FOR UPDATE OF t SKIP LOCKED) x;
    EXIT WHEN ids IS NULL;  -- others hold what is left
    passed_before := p.passed;
    IF odd OR p.rooms IS NOT NULL OR size > p.bytes THEN
      p := sort_out(p, ids, want);
    ELSE
      p.picked := ids;
      p.bytes := p.bytes - size;
    END IF;
    IF p.picked <> '{}' THEN
      p := start_picked(p);
      all_picked := all_picked || p.picked;
      want := want - cardinality(p.picked);
      piece := greatest(piece, (want * cardinality(lanes) + cardinality(p.picked) - 1) / cardinality(p.picked) + 1);
      p := charge(p, lanes);
    END IF;
    IF p.passed > passed_before THEN
      PERFORM take_stirs(p.now);
    END IF;
    EXIT WHEN p.opened AND all_picked <> '{}';  -- better ones may stand there now
  END LOOP;
  p.picked := all_picked;
  RETURN p;
END $$;

-- The next tasks of these lanes and of the plain line, in order: each lane is visited for up to 8 tasks, and the visits stand in the order of their first task's
-- age. Behind the last lane that was read (last_at, last_seq; NULL: these are all) there may be older ones. No limit gets more than it has room for: what a
-- lane under rate and cap gets counts for lanes under the cap alone.
CREATE OR REPLACE FUNCTION next_visits(p picking, queue_number bigint, level integer, want integer, with_plain boolean, lanes bigint[], rooms integer[], last_at bigint, last_seq bigint)
RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
  starts bigint[] := line_starts(queue_number);
  entries bigint := entries_read();
  began bigint := moment(NULL);
  first_at bigint;
  shared bigint[];
  shared_rooms integer[];
  ids uuid[];
BEGIN
  SELECT array_agg(x.id), array_agg(x.room) INTO shared, shared_rooms FROM (
    SELECT m.number AS id, room_at(m.number, c, p.now) AS room FROM (
      SELECT abs(u.counter) AS id, min(u.counter) AS least FROM unnest(lanes) n(id) JOIN lane l ON l.id = ANY (ARRAY[n.id]), unnest(l.counters) u(counter)
      GROUP BY 1 HAVING count(*) > 1) s
    JOIN counter c ON c.id = ANY (ARRAY[s.id]), LATERAL (SELECT s.id AS number UNION ALL SELECT -s.id WHERE s.least < 0) m) x;
  WITH candidate AS (
    SELECT l.id AS lane, t.id, t.ready_at, t.seq, row_number() OVER (PARTITION BY u.id ORDER BY t.ready_at, t.seq) AS n
    FROM unnest(lanes, rooms) u(id, room) JOIN lane l ON l.id = ANY (ARRAY[u.id]), LATERAL (
      (SELECT t.id, t.ready_at, t.seq FROM task t
       WHERE l.order_key = '' AND t.lane = l.id AND t.lane > 0 AND t.state = 0 AND t.priority = level AND t.ready_at >= l.head_at
       ORDER BY t.ready_at, t.seq LIMIT least(want, u.room))
      UNION ALL
      (SELECT t.id, t.ready_at, t.seq FROM (SELECT o.id FROM ordered o WHERE l.order_key <> '' AND o.lane = l.id ORDER BY o.seq LIMIT 1) f
       JOIN task t ON t.id = ANY (ARRAY[f.id]) WHERE t.state + 0 = 0)) t
    UNION ALL
    SELECT 0, t.id, t.ready_at, t.seq, row_number() OVER (ORDER BY t.ready_at, t.seq)
    FROM (SELECT t.id, t.ready_at, t.seq FROM task t
          WHERE with_plain AND t.lane = -queue_number AND t.lane < 0 AND t.state <= 2 AND t.priority = level AND t.ready_at BETWEEN starts[level + 1] AND p.now
          ORDER BY t.ready_at, t.seq LIMIT want) t
  ), visit AS (
    SELECT c.*, first_value(c.ready_at) OVER w AS visit_at, first_value(c.seq) OVER w AS visit_seq FROM candidate c WINDOW w AS (PARTITION BY c.lane, (c.n - 1) / 8 ORDER BY c.n)
  ), placed AS MATERIALIZED (
    SELECT v.id, v.lane, row_number() OVER (ORDER BY v.visit_at, v.visit_seq, v.n) AS place FROM visit v
    WHERE last_seq IS NULL OR (v.visit_at, v.visit_seq) <= (last_at, last_seq)
  ), over AS (
    SELECT r.id FROM (
      SELECT o.id, s.room, row_number() OVER (PARTITION BY s.id ORDER BY o.place) AS n
      FROM placed o JOIN lane l ON l.id = ANY (ARRAY[o.lane]), unnest(l.counters) c(counter), unnest(shared, shared_rooms) s(id, room) WHERE shared IS NOT NULL AND (s.id = c.counter OR s.id < 0 AND s.id = -c.counter)) r
    WHERE r.n > r.room
  )
  SELECT array_agg(o.id ORDER BY o.place), (SELECT min(c.ready_at) FROM candidate c WHERE c.lane = 0) INTO ids, first_at FROM (
    SELECT o.id, o.place FROM placed o WHERE o.id NOT IN (SELECT v.id FROM over v) ORDER BY o.place LIMIT want) o;
  IF with_plain THEN
    PERFORM note_lines(queue_number, starts, entries_read() - entries, began, of_level(level, coalesce(first_at, p.now)));
  END IF;
  RETURN ids;
END $$;

-- Lanes, shares and counters that nothing seems to need any more: a look at all of them, without the gate.
CREATE OR REPLACE FUNCTION look_for_idle(p_n integer, p_now bigint, OUT lanes bigint[], OUT shares bigint[], OUT counters bigint[]) LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
BEGIN
  lanes := ARRAY(
    SELECT l.id FROM lane l WHERE l.top IS NULL AND (SELECT t.id FROM task t WHERE t.lane = l.id AND t.lane > 0 AND t.state > 0 LIMIT 1) IS NULL
      AND (SELECT t.id FROM task t WHERE t.lane = l.id AND t.lane > 0 AND t.state = 0 LIMIT 1) IS NULL LIMIT p_n);
  shares := ARRAY(SELECT s.id FROM share s WHERE s.top IS NULL AND (SELECT l.id FROM lane l WHERE l.queue = s.queue AND l.share = s.id LIMIT 1) IS NULL LIMIT p_n);
  counters := '{}';
  IF cardinality(lanes) < p_n THEN  -- as long as there are lanes to forget, they name their counters
    counters := ARRAY(SELECT c.id FROM counter c WHERE c.running = 0 AND c.idle_at <= now EXCEPT SELECT abs(n) FROM lane l, unnest(l.counters) n LIMIT p_n);
  END IF;
END $$;

ALTER FUNCTION look_for_idle SET search_path FROM CURRENT;
ALTER FUNCTION look_for_idle SET jit = off;

-- A rate is remembered until its window, as long as it is now, has passed. Whoever makes a lane has locked the counters it names.
CREATE OR REPLACE FUNCTION forget_counters(p_counters bigint[], p_n integer, now bigint) RETURNS integer LANGUAGE plpgsql AS $$
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
  DELETE FROM counter c WHERE c.id = ANY (idle) AND (SELECT s.share FROM stand s WHERE s.counter IN (c.id, -c.id) LIMIT 1) IS NULL
    AND c.id <> ALL (ARRAY(SELECT abs(n) FROM lane l, unnest(l.counters) n WHERE idle[width_bucket(abs(n), idle)] = abs(n)));
  GET DIAGNOSTICS gone = ROW_COUNT;
  DELETE FROM start s WHERE s.counter = ANY (idle) AND (SELECT c.id FROM counter c WHERE c.id = s.counter) IS NULL;
  RETURN gone;
END $$;
