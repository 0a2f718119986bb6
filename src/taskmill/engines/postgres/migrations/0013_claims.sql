-- Claims: a pause holds from its answer on; the time of a claim is read after its locks; shares of a tenant have its weight.

ALTER TYPE picking ADD ATTRIBUTE given bigint;  -- the clock of a test; NULL: the server's

-- What was picked is running, under new tokens.
CREATE OR REPLACE FUNCTION start_picked(p picking) RETURNS picking LANGUAGE plpgsql AS $$
DECLARE
  tokens bigint[];
BEGIN
  p.now := moment(p.given);  -- the rows are locked: no attempt and no slot that this one follows has ended after it
  tokens := new_tokens(cardinality(p.picked), p.now);
  UPDATE task t SET state = 3, token = tokens[u.place], worker = p.worker, request = p.request, claimed_at = p.now, updated_at = p.now,
    version = t.version + 1, executions = t.executions + 1
  FROM unnest(p.picked) WITH ORDINALITY u(id, place) WHERE t.id = ANY (ARRAY[u.id]);
  p.taken := p.taken || p.picked;
  p.slots := p.slots - cardinality(p.picked);
  RETURN p;
END $$;

-- Tasks of this priority from the share whose turn it is. Turns below the queue's own count as the queue's: idling earns no credit.
CREATE OR REPLACE FUNCTION serve(p picking, q queue, level integer, want integer) RETURNS picking LANGUAGE plpgsql AS $$
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
      next_turn := s.turn + cardinality(p.picked) * 1000000::bigint / weight_of(q.weights, s.name);
      UPDATE share SET turn = next_turn WHERE id = s.id;
      UPDATE queue SET turn = s.turn WHERE id = q.id AND turn <> s.turn;
      UPDATE stand SET turn = next_turn WHERE share = s.id;
      RETURN p;
    END IF;
    p.dry := p.dry || (s.id * 4 + level);
  END LOOP;
  RETURN p;
END $$;

-- By the whole name of the share; where it belongs to a tenant, by the tenant.
CREATE FUNCTION weight_of(weights jsonb, share_name text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT greatest(coalesce((weights ->> share_name)::integer, (weights ->> split_part(share_name, chr(31), 1))::integer, 1), 1)
$$;

-- Up to `most` of a queue that has nothing but its plain line, locked, the best priority first; NULL if something is in the way.
CREATE OR REPLACE FUNCTION next_plain(p picking, queue_number bigint, most integer) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
  starts bigint[] := line_starts(queue_number);
  entries bigint := entries_read();
  began bigint := moment(NULL);
  ids uuid[];
  odd boolean;
  size bigint;
BEGIN
  SELECT coalesce(array_agg(x.id), '{}'), bool_or(x.type <> ALL (p.types) OR x.expires_at <= p.now), sum(x.size) INTO ids, odd, size
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

-- There may be work in these queues: told to those who found nothing before. The mark is lowered where nobody else is writing it; told it is in any case, because
-- what another step tells at its commit may come before this one's. Never in a user's transaction (taskmill.quiet), which would hold the queue's row.
CREATE OR REPLACE FUNCTION announce(queues bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('taskmill.quiet', true) = 'on' OR NOT EXISTS (SELECT 1 FROM queue WHERE id = ANY (queues) AND idle) THEN
    RETURN;
  END IF;
  UPDATE queue SET idle = false WHERE id = ANY (ARRAY(SELECT id FROM queue WHERE id = ANY (queues) AND idle FOR NO KEY UPDATE SKIP LOCKED));
  PERFORM pg_notify(current_schema(), 'work');
END $$;

-- Claims hold it from before they read what is paused until they commit, and a pause waits for them: none of them is answered after it with a paused task.
CREATE FUNCTION pause_lock() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT hashtextextended('taskmill pauses of ' || current_schema(), 0) $$;

-- The whole verb. One row for each task (their order is that of their tokens), and one more at the end with id NULL, whose type says what became of the request: claimed, repeated,
-- unknown_worker or idle (nothing was found, and the next arrival will be announced: look once more before you sleep); token: when to come again; flags: 1 if
-- not everything was looked at.
CREATE OR REPLACE FUNCTION claim(p_worker text, p_request bigint, p_queues text[], p_slots integer, p_rooms jsonb, p_prefetch integer, p_bytes bigint, p_now bigint)
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
  PERFORM pg_advisory_xact_lock_shared(pause_lock());
  SELECT s.listen_until > now, ARRAY(SELECT n FROM unnest(w.types) n WHERE n <> ALL (s.paused_types) AND coalesce((p_rooms ->> n)::integer, 1) > 0),
    coalesce(q.numbers, '{}'), coalesce(q.weighed, false), anything_owed(now) OR EXISTS (SELECT 1 FROM share k WHERE k.queue = ANY (q.numbers) AND k.top IS NOT NULL)
  INTO listening, types, numbers, weighed, gated
  FROM store s, (
    SELECT array_agg(q.id ORDER BY (u.place - 1 + n - p_request % n) % n) AS numbers, bool_or(q.priorities IS NOT NULL) AS weighed
    FROM unnest(p_queues) WITH ORDINALITY u(name, place) JOIN queue q ON q.name = u.name, greatest(cardinality(p_queues), 1) n WHERE NOT q.paused) q;
  p := (p_worker, p_request, now, p_slots, p_bytes, false, 0, false, false, types, p_rooms, '{}', '{}', '{}', false, p_now)::picking;
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
    now := moment(p_now);  -- read after the locks, as start_picked does
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
    IF listening THEN
      PERFORM tell_task('task.started', t.id, t.version, t.claimed_at, json_build_object('worker', p_worker, 'attempt', t.executions))
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

CALL harden('claim');
