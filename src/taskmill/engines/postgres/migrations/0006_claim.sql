-- Claim: priority, then turn between shares, then age (promise 12), and only what every limit admits.
--
-- Most queues have nothing but their plain line: one ordered read that skips what others have locked, one update, no gate. Where lanes are open the claim holds
-- the gate, and picks from a share's oldest open lanes together: every lane is visited for up to 8 tasks, the visits stand in the order of their first task's age,
-- the plain line among them. A task in the way that this claim may not take (a type the worker does not know or has no room for) is moved into a lane
-- of its own type, once; one that has expired is ended. Both are bounded, and `more` says when a bound was reached.

CREATE TYPE picking AS (
  worker  text,
  request bigint,
  now     bigint,
  slots   integer,
  bytes   bigint,     -- that the answer may still have; it has at least one task
  stuffed boolean,
  passed  integer,    -- tasks moved out of the way or expired
  more    boolean,
  opened  boolean,    -- room that was left opened a lane: what was dry may have something again
  types   text[],     -- that may be taken
  rooms   jsonb,      -- how many more of a type, where that is bounded; NULL: nowhere
  dry     bigint[],   -- share * 4 + priority of what has nothing left for this claim
  picked  uuid[],     -- of the last look
  taken   uuid[],
  gated   boolean     -- it holds the gate; if not, what stands under limits is not for it, also when it opens meanwhile
);

CREATE FUNCTION can_go_on(p picking) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT p.slots > 0 AND NOT p.stuffed AND p.passed < 1000 $$;

-- Out of the way of claims it is not for: whoever may take it finds it in the lane of its type at its age, and nobody meets it again in vain.
CREATE FUNCTION move_aside(t task, now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  l lane;
  target bigint;
BEGIN
  IF t.lane < 0 THEN
    target := lane_id(-t.lane, '', '{}', '', t.type);
  ELSE
    SELECT * INTO l FROM lane WHERE id = t.lane;
    target := lane_id(l.queue, (SELECT name FROM share WHERE id = l.share), l.limits, '', t.type);
  END IF;
  UPDATE task SET lane = target, state = CASE WHEN ready_at <= now THEN 0 ELSE state END WHERE id = t.id;
  INSERT INTO stir (lane, at) SELECT number, t.ready_at FROM unnest(ARRAY[target, t.lane]) number WHERE number > 0;
  PERFORM announce(ARRAY[queue_of(target)]);
END $$;

-- Of these locked rows, in this order, take up to `most` that may be taken, and get the rest out of the way.
CREATE FUNCTION sort_out(p picking, ids uuid[], most integer) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  r record;
  room integer;
BEGIN
  p.picked := '{}';
  FOR r IN SELECT t FROM unnest(ids) WITH ORDINALITY u(id, place) JOIN task t ON t.id = ANY (ARRAY[u.id]) ORDER BY u.place LOOP
    room := CASE WHEN (r.t).type <> ALL (p.types) THEN 0 ELSE coalesce((p.rooms ->> (r.t).type)::integer, 1) END;
    IF (r.t).expires_at <= p.now AND (r.t).must_end IS NULL THEN
      PERFORM make_cancelled(r.t, p.now, '{"code":"expired","message":"its time was over before it could run"}', 'expired');
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

-- So many new tokens, each higher than those before. A session's first are not behind the clock either: its server may have been a standby until now, that never
-- heard of the last tokens its primary gave. Nobody lifts them while others count on.
CREATE FUNCTION new_tokens(n integer, now bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('taskmill.tokens', true) IS DISTINCT FROM 'lifted' THEN
    PERFORM lift_tokens(now);
    PERFORM set_config('taskmill.tokens', 'lifted', false);
  END IF;
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('taskmill tokens of ' || current_schema(), 0));
  RETURN ARRAY(SELECT nextval('token') FROM generate_series(1, n));
END $$;

-- What was picked is running, under new tokens; a unique key held only until the start is free.
CREATE FUNCTION start_picked(p picking) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  tokens bigint[] := new_tokens(cardinality(p.picked), p.now);
BEGIN
  UPDATE task t SET state = 3, token = tokens[u.place], worker = p.worker, request = p.request, claimed_at = p.now, updated_at = p.now,
    version = t.version + 1, executions = t.executions + 1
  FROM unnest(p.picked) WITH ORDINALITY u(id, place) WHERE t.id = ANY (ARRAY[u.id]);
  p.taken := p.taken || p.picked;
  p.slots := p.slots - cardinality(p.picked);
  RETURN p;
END $$;

-- Where to begin in the plain line of a queue, for each priority. An old snapshot that somebody holds keeps the entries of all that was claimed since in the
-- index, and a look from the start walks over them. After a look that did, this session begins where it last found something, for ten times as long as the look
-- took: a tenth of its time goes into walking, however long the snapshot is held. It begins a second earlier than it found something, for the sake of those who
-- have yet to commit; what comes back with an older age meanwhile is met by the next look from the start.
CREATE FUNCTION line_starts(queue_number bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE AS $$
DECLARE
  noted text := current_setting('taskmill.line_' || queue_number, true);  -- of each priority until when and from where: 8 numbers
  now bigint;
  n bigint[];
BEGIN
  IF noted IS NULL OR noted = '' THEN
    RETURN '{0,0,0,0}';
  END IF;
  n := string_to_array(noted, ' ');
  now := moment(NULL);
  RETURN ARRAY(SELECT CASE WHEN n[2 * place - 1] > now THEN n[2 * place] ELSE 0 END FROM generate_series(1, 4) place ORDER BY place);
END $$;

CREATE FUNCTION entries_read() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  RETURN pg_stat_get_xact_tuples_returned('task_plain'::regclass);
END $$;

-- After a look: where it began, how many entries it met, when it began, and what it found first of each priority that it looked at (NULL: it did not).
CREATE FUNCTION note_lines(queue_number bigint, starts bigint[], entries bigint, began bigint, firsts bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  name text := 'taskmill.line_' || queue_number;
  now bigint := moment(NULL);
  n bigint[];
BEGIN
  IF entries <= 20000 AND starts = '{0,0,0,0}' THEN
    RETURN;
  END IF;
  n := coalesce(string_to_array(nullif(current_setting(name, true), ''), ' '), '{0,0,0,0,0,0,0,0}');
  FOR place IN 1 .. 4 LOOP
    IF starts[place] = 0 AND entries > 20000 AND firsts[place] IS NOT NULL THEN
      n[2 * place - 1] := now + 10 * (now - began);
    END IF;
    n[2 * place] := greatest(firsts[place] - 1000000, starts[place]);
  END LOOP;
  PERFORM set_config(name, array_to_string(n, ' '), false);
END $$;

CREATE FUNCTION of_level(level integer, value bigint) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  n bigint[] := '{NULL,NULL,NULL,NULL}';
BEGIN
  n[level + 1] := value;
  RETURN n;
END $$;

-- Up to `most` of the plain line of a queue at one priority, past what is not for this worker.
CREATE FUNCTION pick_plain(p picking, queue_number bigint, level integer, most integer) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  starts bigint[];
  entries bigint;
  began bigint;
  first_at bigint;
  ids uuid[];
  odd boolean;
  size bigint;
BEGIN
  p.picked := '{}';
  WHILE p.picked = '{}' AND p.passed < 1000 LOOP
    starts := line_starts(queue_number);
    entries := entries_read();
    began := moment(NULL);
    SELECT array_agg(x.id), bool_or(x.type <> ALL (p.types) OR (x.expires_at <= p.now AND x.must_end IS NULL)), sum(x.size), min(x.ready_at) INTO ids, odd, size, first_at
    FROM (
      SELECT t.id, t.type, t.expires_at, t.must_end, t.size, t.ready_at FROM task t
      WHERE t.lane = -queue_number AND t.lane < 0 AND t.state <= 2 AND t.priority = level AND t.ready_at BETWEEN starts[level + 1] AND p.now
      ORDER BY t.ready_at, t.seq LIMIT most FOR UPDATE SKIP LOCKED) x;
    PERFORM note_lines(queue_number, starts, entries_read() - entries, began, of_level(level, coalesce(first_at, p.now)));
    EXIT WHEN ids IS NULL;
    IF odd OR p.rooms IS NOT NULL OR size > p.bytes THEN
      p := sort_out(p, ids, most);
      EXIT WHEN p.stuffed;
    ELSE
      p.picked := ids;
      p.bytes := p.bytes - size;
    END IF;
  END LOOP;
  IF p.picked <> '{}' THEN
    p := start_picked(p);
  END IF;
  RETURN p;
END $$;

-- What was started in lanes is counted against their limits; the lanes look for their next task, and those at a full limit are shut.
CREATE FUNCTION charge(p picking, lanes bigint[]) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[];
  counts integer[];
  limits bigint[];
BEGIN
  SELECT array_agg(x.counter), array_agg(x.n) INTO numbers, counts FROM (
    SELECT c.counter, sum(y.n)::integer AS n
    FROM (SELECT t.lane, count(*) AS n FROM task t WHERE t.id = ANY (p.picked) AND t.lane > 0 GROUP BY t.lane) y
    JOIN lane l ON l.id = ANY (ARRAY[y.lane]), unnest(l.counters) c(counter) GROUP BY c.counter) x;
  IF numbers IS NOT NULL THEN
    UPDATE counter c SET running = c.running + u.n, idle_at = greatest(c.idle_at, p.now) FROM unnest(numbers, counts) u(id, n) WHERE c.id = ANY (ARRAY[u.id]);
    PERFORM count_starts(c, u.n, p.now) FROM unnest(numbers, counts) u(id, n) JOIN counter c ON c.id = ANY (ARRAY[u.id]) WHERE c.rate IS NOT NULL;
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
CREATE FUNCTION shut_full(lanes bigint[], now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  fulls bigint[];
  shares bigint[];
BEGIN
  WITH full_one AS MATERIALIZED (
    SELECT l.id, (SELECT c.id FROM unnest(l.counters) u(id) JOIN counter c ON c.id = ANY (ARRAY[u.id]) WHERE (c.cap IS NOT NULL OR c.rate IS NOT NULL) AND room_of(c, now) = 0 LIMIT 1) AS at
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
CREATE FUNCTION pick_share(p picking, queue_number bigint, share_number bigint, level integer, most integer, with_plain boolean) RETURNS picking LANGUAGE plpgsql AS $$
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
        coalesce((SELECT min(room_of(c, p.now)) FROM unnest(l.counters) u(id) JOIN counter c ON c.id = ANY (ARRAY[u.id])), 1073741824) AS room
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
-- age. Behind the last lane that was read (last_at, last_seq; NULL: these are all) there may be older ones. No limit gets more than it has room for.
CREATE FUNCTION next_visits(p picking, queue_number bigint, level integer, want integer, with_plain boolean, lanes bigint[], rooms integer[], last_at bigint, last_seq bigint)
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
    SELECT c.id, room_of(c, p.now) AS room FROM counter c WHERE c.id = ANY (ARRAY(
      SELECT u.counter FROM unnest(lanes) n(id) JOIN lane l ON l.id = ANY (ARRAY[n.id]), unnest(l.counters) u(counter) GROUP BY u.counter HAVING count(*) > 1))) x;
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
      FROM placed o JOIN lane l ON l.id = ANY (ARRAY[o.lane]), unnest(l.counters) c(counter), unnest(shared, shared_rooms) s(id, room) WHERE shared IS NOT NULL AND s.id = c.counter) r
    WHERE r.n > r.room
  )
  SELECT array_agg(o.id ORDER BY o.place), (SELECT min(c.ready_at) FROM candidate c WHERE c.lane = 0) INTO ids, first_at FROM (
    SELECT o.id, o.place FROM placed o WHERE o.id NOT IN (SELECT v.id FROM over v) ORDER BY o.place LIMIT want) o;
  IF with_plain THEN
    PERFORM note_lines(queue_number, starts, entries_read() - entries, began, of_level(level, coalesce(first_at, p.now)));
  END IF;
  RETURN ids;
END $$;

-- Tasks of this priority from the share whose turn it is. Turns below the queue's own count as the queue's: idling earns no credit.
CREATE FUNCTION serve(p picking, q queue, level integer, want integer) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  names text[];
  unnamed bigint;
  s record;
  turn_now bigint;
  next_turn bigint;
  has_plain boolean;
BEGIN
  p.picked := '{}';
  WHILE can_go_on(p) LOOP
    SELECT array_agg(x.name), max(x.id) INTO names, unnamed FROM (SELECT k.id, k.name FROM share k WHERE k.queue = q.id AND k.top IS NOT NULL LIMIT 2) x;
    IF names IS NULL OR NOT p.gated THEN  -- no lane is open, or none was when this claim looked whether it needs the gate
      p.more := p.more OR names IS NOT NULL;
      RETURN pick_plain(p, q.id, level, want);
    END IF;
    IF names = '{""}' THEN  -- nobody takes turns
      RETURN pick_share(p, q.id, unnamed, level, want, true);
    END IF;
    has_plain := EXISTS (SELECT 1 FROM task t WHERE t.lane = -q.id AND t.lane < 0 AND t.state <= 2 AND t.priority = level
      AND t.ready_at BETWEEN (line_starts(q.id))[level + 1] AND p.now);
    IF has_plain THEN
      PERFORM share_id(q.id, '');
    END IF;
    SELECT turn INTO turn_now FROM queue WHERE id = q.id;
    SELECT x.id, x.name, greatest(x.turn, turn_now) AS turn INTO s FROM (
      (SELECT k.id, k.name, k.turn FROM share k WHERE k.queue = q.id AND k.top IS NOT NULL AND k.top = level AND k.id * 4 + level <> ALL (p.dry) ORDER BY k.turn, k.id LIMIT 1)
      UNION
      (SELECT k.id, k.name, k.turn FROM share k WHERE has_plain AND k.queue = q.id AND k.name = '' AND k.id * 4 + level <> ALL (p.dry))
      UNION  -- those that stand under a higher priority because of tasks which are foreign to this worker
      (SELECT k.id, k.name, k.turn FROM share k WHERE k.id = ANY (ARRAY(SELECT d / 4 FROM unnest(p.dry) d)) AND k.queue = q.id AND k.id * 4 + level <> ALL (p.dry)
         AND EXISTS (SELECT 1 FROM lane l WHERE l.share = k.id AND l.top = level AND l.top IS NOT NULL AND l.shut IS NULL))) x
    ORDER BY greatest(x.turn, turn_now), x.id LIMIT 1;
    IF NOT FOUND THEN
      RETURN p;
    END IF;
    p := pick_share(p, q.id, s.id, level, least(want, 8), s.name = '');
    IF p.picked <> '{}' THEN
      next_turn := s.turn + cardinality(p.picked) * 1000000::bigint / greatest(coalesce((q.weights ->> s.name)::integer, 1), 1);
      UPDATE share SET turn = next_turn WHERE id = s.id;
      UPDATE queue SET turn = s.turn WHERE id = q.id AND turn <> s.turn;
      UPDATE stand SET turn = next_turn WHERE share = s.id;
      RETURN p;
    END IF;
    p.dry := p.dry || (s.id * 4 + level);
  END LOOP;
  RETURN p;
END $$;

-- Open lanes that are not for this worker must not keep the room of their limits from those that are: as many more are opened.
CREATE FUNCTION pass_over_foreign(p picking, queue_number bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[];
BEGIN
  LOOP
    numbers := ARRAY(SELECT DISTINCT c FROM (
      SELECT l.counters FROM lane l WHERE l.queue = queue_number AND l.needs <> '' AND l.top IS NOT NULL AND l.shut IS NULL AND l.limits <> '{}'
        AND l.needs <> ALL (p.types) LIMIT 100) x, unnest(x.counters) c);
    EXIT WHEN numbers = '{}' OR wake(numbers, p.now) = 0;
  END LOOP;
END $$;

-- Up to `want` tasks of one queue: by priority, or by turns of its priorities where they have weights (one that had nothing for a while has earned nothing).
CREATE FUNCTION pick_queue(p picking, q queue, want integer) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  level integer := 3;
  left_levels integer[] := '{0,1,2,3}';
  turns bigint[] := q.levels;
  base bigint;
  took integer;
  piece integer := CASE WHEN q.priorities IS NULL THEN want ELSE least(want, 8) END;
BEGIN
  IF p.gated THEN
    PERFORM pass_over_foreign(p, q.id);
  END IF;
  p.dry := '{}';
  WHILE want > 0 AND can_go_on(p) LOOP
    IF q.priorities IS NOT NULL THEN
      SELECT l INTO level FROM unnest(left_levels) l ORDER BY turns[l + 1], -l LIMIT 1;
    END IF;
    EXIT WHEN level IS NULL OR level < 0;
    p.opened := false;
    p := serve(p, q, level, least(want, p.slots, piece));
    took := cardinality(p.picked);
    want := want - took;
    IF p.opened THEN
      PERFORM pass_over_foreign(p, q.id);
      p.dry := '{}';
    END IF;
    IF took > 0 AND q.priorities IS NOT NULL THEN
      base := turns[level + 1];
      turns[level + 1] := base + took * 1000000::bigint / greatest(q.priorities[4 - level], 1);
      turns := ARRAY(SELECT CASE WHEN n - 1 = ANY (left_levels) THEN greatest(x, base) ELSE x END FROM unnest(turns) WITH ORDINALITY u(x, n) ORDER BY n);
    ELSIF p.opened THEN
      level := 3;
      left_levels := '{0,1,2,3}';
    ELSIF took = 0 THEN
      left_levels := array_remove(left_levels, level);
      level := level - 1;
    END IF;
  END LOOP;
  IF q.priorities IS NOT NULL AND turns <> q.levels THEN
    UPDATE queue SET levels = turns WHERE id = q.id;
  END IF;
  RETURN p;
END $$;

-- Up to `most` of a queue that has nothing but its plain line, locked, the best priority first; NULL if something is in the way.
CREATE FUNCTION next_plain(p picking, queue_number bigint, most integer) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
  starts bigint[] := line_starts(queue_number);
  entries bigint := entries_read();
  began bigint := moment(NULL);
  ids uuid[];
  odd boolean;
  size bigint;
BEGIN
  SELECT coalesce(array_agg(x.id), '{}'), bool_or(x.type <> ALL (p.types) OR x.expires_at <= p.now OR x.flags & 4 <> 0), sum(x.size) INTO ids, odd, size
  FROM (
    SELECT n.* FROM (VALUES (3), (2), (1), (0)) l(level), LATERAL (
      SELECT t.id, t.type, t.expires_at, t.flags, t.size FROM task t
      WHERE t.lane = -queue_number AND t.lane < 0 AND t.state <= 2 AND t.priority = l.level AND t.ready_at BETWEEN starts[l.level + 1] AND p.now
      ORDER BY t.ready_at, t.seq LIMIT most FOR UPDATE SKIP LOCKED) n
    LIMIT most) x;
  entries := entries_read() - entries;
  IF entries > 20000 OR starts <> '{0,0,0,0}' THEN
    PERFORM note_lines(queue_number, starts, entries, began, (
      SELECT array_agg(CASE WHEN cardinality(ids) < most OR level >= f.lowest THEN coalesce(f.first_at[level + 1], p.now) END ORDER BY level)
      FROM generate_series(0, 3) level, (
        SELECT min(t.priority) AS lowest, ARRAY(
          SELECT min(t.ready_at) FILTER (WHERE t.priority = l) FROM generate_series(0, 3) l, task t WHERE t.id = ANY (ids) GROUP BY l ORDER BY l) AS first_at
        FROM task t WHERE t.id = ANY (ids)) f));
  END IF;
  RETURN CASE WHEN odd OR size > p.bytes THEN NULL ELSE ids END;
END $$;

-- Every queue gets an equal part first, then what others leave; the one that goes first changes with the request. Then a few more of the plain lines.
CREATE FUNCTION pick_all(p picking, numbers bigint[], prefetch integer) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  part integer := (p.slots + cardinality(numbers) - 1) / cardinality(numbers);
  share integer;
  q queue;
  level integer;
  slots integer;
BEGIN
  FOREACH share IN ARRAY CASE WHEN cardinality(numbers) = 1 THEN ARRAY[p.slots] ELSE ARRAY[part, p.slots] END LOOP
    FOR q IN SELECT k.* FROM unnest(numbers) WITH ORDINALITY u(id, place) JOIN queue k ON k.id = u.id ORDER BY u.place LOOP
      p := pick_queue(p, q, least(share, p.slots));
    END LOOP;
  END LOOP;
  slots := p.slots;
  FOR q IN SELECT k.* FROM unnest(numbers) WITH ORDINALITY u(id, place) JOIN queue k ON k.id = u.id WHERE prefetch > 0 ORDER BY u.place LOOP
    FOR level IN REVERSE 3..0 LOOP
      LOOP
        EXIT WHEN prefetch <= 0 OR p.stuffed OR p.passed >= 1000;
        p := pick_plain(p, q.id, level, prefetch);
        EXIT WHEN p.picked = '{}';
        prefetch := prefetch - cardinality(p.picked);
      END LOOP;
    END LOOP;
  END LOOP;
  p.slots := slots;
  RETURN p;
END $$;

-- When something may become claimable that is not now.
CREATE FUNCTION next_claimable(numbers bigint[], now bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT min(at) FROM (
    (SELECT ready_at AS at FROM task WHERE (lane > 0 AND (state = 1 OR state = 2)) OR state = 4 ORDER BY ready_at LIMIT 1)
    UNION ALL
    (SELECT wake_at FROM counter WHERE wake_at IS NOT NULL ORDER BY wake_at LIMIT 1)
    UNION ALL
    SELECT n.ready_at FROM unnest(numbers) q(id), generate_series(0, 3) level, LATERAL (
      SELECT t.ready_at FROM task t WHERE t.lane = -q.id AND t.lane < 0 AND t.state <= 2 AND t.priority = level AND t.ready_at > now ORDER BY t.ready_at LIMIT 1) n) x
  WHERE at < 4611686018427387904);
END $$;

-- The whole verb. One row for each task (their order is that of their tokens), and one more at the end with id NULL, whose type says what became of the request: claimed, repeated,
-- unknown_worker or idle (nothing was found, and the next arrival will be announced: look once more before you sleep); token: when to come again; flags: 1 if
-- not everything was looked at.
CREATE FUNCTION claim(p_worker text, p_request bigint, p_queues text[], p_slots integer, p_rooms jsonb, p_prefetch integer, p_bytes bigint, p_now bigint)
RETURNS TABLE (id text, type text, queue text, payload text, token bigint, attempt integer, claimed_at bigint, priority smallint, failures integer, crashes integer,
  max_crashes integer, version integer, created_at bigint, retry text, timeout bigint, expires_at bigint, tenant text, limits text[], flags integer,
  must_end text, phase text, meta text, ready_at bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  w workers;
  p picking;
  types text[];
  numbers bigint[];
  now bigint;
  next_at bigint;
  how text := 'claimed';
  listening boolean;
  weighed boolean;
  gated boolean;
  plain uuid[];
  tokens bigint[];
BEGIN
  SELECT * INTO w FROM workers k WHERE k.id = p_worker FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    type := 'unknown_worker';
    RETURN NEXT;
    RETURN;
  END IF;
  now := moment(p_now);  -- not before: it may have waited
  IF p_request <= w.request THEN  -- asked again: what it still holds of that request; never anything new
    RETURN QUERY SELECT * FROM claimed(ARRAY(SELECT t.id FROM task t WHERE t.worker = p_worker AND t.request = p_request AND t.state = 3 ORDER BY t.token));
    type := 'repeated';
    flags := 1;
    RETURN NEXT;
    RETURN;
  END IF;
  SELECT s.listen_until > now, ARRAY(SELECT n FROM unnest(w.types) n WHERE n <> ALL (s.paused_types) AND coalesce((p_rooms ->> n)::integer, 1) > 0),
    coalesce(q.numbers, '{}'), coalesce(q.weighed, false), anything_owed(now) OR EXISTS (SELECT 1 FROM share k WHERE k.queue = ANY (q.numbers) AND k.top IS NOT NULL)
  INTO listening, types, numbers, weighed, gated
  FROM store s, (
    SELECT array_agg(q.id ORDER BY (u.place - 1 + n - p_request % n) % n) AS numbers, bool_or(q.priorities IS NOT NULL) AS weighed
    FROM unnest(p_queues) WITH ORDINALITY u(name, place) JOIN queue q ON q.name = u.name, greatest(cardinality(p_queues), 1) n WHERE NOT q.paused) q;
  p := (p_worker, p_request, now, p_slots, p_bytes, false, 0, false, false, types, p_rooms, '{}', '{}', '{}', false)::picking;
  IF gated THEN
    PERFORM gate();
    now := moment(p_now);  -- read after the lock: every limit is judged by it
    p.now := now;
    p.gated := true;
    p.more := apply_inboxes(now);
  END IF;
  IF cardinality(numbers) = 1 AND NOT gated AND NOT weighed AND NOT listening AND p_rooms IS NULL THEN
    plain := next_plain(p, numbers[1], p_slots + p_prefetch);
  END IF;
  IF plain <> '{}' THEN  -- nothing is in the way: started and answered in one statement
    p.slots := p.slots - cardinality(plain);
    UPDATE workers k SET request = p_request WHERE k.id = p_worker;
    tokens := new_tokens(cardinality(plain), now);
    RETURN QUERY UPDATE task t SET state = 3, token = tokens[u.place], worker = p_worker, request = p_request, claimed_at = now, updated_at = now,
        version = t.version + 1, executions = t.executions + 1
      FROM unnest(plain) WITH ORDINALITY u(id, place), body b WHERE t.id = ANY (ARRAY[u.id]) AND b.id = ANY (ARRAY[u.id])
      RETURNING t.id::text, t.type, b.queue, b.payload::text, t.token, t.executions, t.claimed_at, t.priority, t.failures, t.crashes, b.max_crashes, t.version,
        b.created_at, b.retry, b.timeout, t.expires_at, b.tenant, NULL::text[], t.flags, t.must_end, t.phase, b.meta, t.ready_at;
  ELSIF plain IS NULL AND numbers <> '{}' THEN
    p := pick_all(p, numbers, p_prefetch);
    p.more := p.more OR p.passed >= 1000;
  END IF;
  IF p.taken <> '{}' THEN
    UPDATE workers k SET request = p_request WHERE k.id = p_worker;
    DELETE FROM held h WHERE h.id = ANY (ARRAY(SELECT t.id FROM task t WHERE t.id = ANY (p.taken) AND t.flags & 4 <> 0));
    IF listening THEN
      PERFORM tell_task('task.started', t.id, t.version, now, json_build_object('worker', p_worker, 'attempt', t.executions))
      FROM unnest(p.taken) WITH ORDINALITY u(id, place) JOIN task t ON t.id = ANY (ARRAY[u.id]) ORDER BY u.place;
    END IF;
    RETURN QUERY SELECT * FROM claimed(p.taken);
  ELSIF coalesce(plain, '{}') = '{}' AND NOT p.more THEN
    IF plain = '{}' THEN  -- nothing but the mark is written, and one that a crash forgets is nothing: everybody asks anew after it
      PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    UPDATE queue q SET idle = true WHERE q.id = ANY (ARRAY(SELECT k.id FROM queue k WHERE k.id = ANY (numbers) AND NOT k.idle FOR NO KEY UPDATE SKIP LOCKED));
    IF FOUND THEN
      how := 'idle';
    END IF;
  END IF;
  IF NOT p.more AND p.slots > 0 AND p.taken = '{}' AND coalesce(plain, '{}') = '{}' THEN
    next_at := next_claimable(numbers, now);
  END IF;
  id := NULL;
  type := how;
  token := next_at;
  flags := p.more::integer;
  RETURN NEXT;
END $$;

-- Everything that handlers need of these tasks, in this order.
CREATE FUNCTION claimed(ids uuid[]) RETURNS TABLE (id text, type text, queue text, payload text, token bigint, attempt integer, claimed_at bigint, priority smallint,
  failures integer, crashes integer, max_crashes integer, version integer, created_at bigint, retry text, timeout bigint, expires_at bigint, tenant text,
  limits text[], flags integer, must_end text, phase text, meta text, ready_at bigint) LANGUAGE sql STABLE AS $$
  SELECT t.id::text, b.type, b.queue, b.payload::text, t.token, t.executions, t.claimed_at, t.priority, t.failures, t.crashes, b.max_crashes, t.version, b.created_at,
    b.retry, b.timeout, t.expires_at, b.tenant, CASE WHEN t.lane > 0 THEN (SELECT l.limits FROM lane l WHERE l.id = t.lane) END, t.flags, t.must_end, t.phase, b.meta, t.ready_at
  FROM unnest(ids) WITH ORDINALITY u(id, place) JOIN task t ON t.id = ANY (ARRAY[u.id]) JOIN body b ON b.id = ANY (ARRAY[u.id]) ORDER BY u.place
$$;

CALL harden('claim');
