-- Submit: every task of a batch is stored once, or told why not. One call, set by set; nothing here takes the gate but a task that is to be rejected at its limit.
--
-- A batch comes as arrays, one element a task; an array that no task of the batch needs is NULL. What tasks have in common (type, queue, priority, lane …) is a
-- line of `p_lines`, and `p_line` says which one. Places count from 1. The answer has a row for every task that was not simply created:
--   duplicate, replaced, conflict   `id` is the task that exists; with code `compare` the caller judges by the payload (or 'hash:…') that `message` holds
--   rejected, refused               `code` and `message` say why
--   busy                            somebody's open transaction holds its id or its key: to be submitted again, alone
-- or, when nothing was done, one row with place 0: `settings` (read them anew), `names` (call make_names first), `unknown` (there is no task `id` to unseal).
--
-- The order of the sets is that of the locks they may wait for: names, ids, keys, unique keys, parents; the gate last.

CREATE TYPE verdict AS (place integer, status text, id text, reserved boolean, code text, message text);

CREATE FUNCTION read_lines(p_lines json) RETURNS TABLE (line bigint, type text, queue text, tenant text, priority smallint, timeout bigint, max_crashes integer,
  retry text, share text, limits text[], order_key text, rejects boolean, span bigint) LANGUAGE sql IMMUTABLE ROWS 100 AS $$
  SELECT x.line, x.type, x.queue, coalesce(x.tenant, ''), x.priority, x.timeout, x.max_crashes, x.retry, coalesce(x.share, ''),
    coalesce(x.limits, '{}'), coalesce(x.order_key, ''), coalesce(x.rejects, false), coalesce(x.span, 259200000000)
  FROM ROWS FROM (json_to_recordset(p_lines) AS (type text, queue text, tenant text, priority smallint, timeout bigint, max_crashes integer, retry text,
    share text, limits text[], order_key text, rejects boolean, span bigint))
    WITH ORDINALITY AS x(type, queue, tenant, priority, timeout, max_crashes, retry, share, limits, order_key, rejects, span, line)
$$;

-- Makes the queues, shares, counters and lanes of these lines that are missing, in one order for all who do so at once. A line whose names are too long for an
-- index is left out.
CREATE FUNCTION make_names(p_lines json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  PERFORM queue_id(q.name) FROM (SELECT DISTINCT queue AS name FROM read_lines(p_lines) ORDER BY 1) q;
  PERFORM counter_id(c.name) FROM (SELECT DISTINCT n.name FROM read_lines(p_lines) x, unnest(x.limits) n(name) ORDER BY 1) c;
  FOR r IN
    SELECT DISTINCT queue_id(queue) AS queue, share, CASE WHEN rejects THEN '{}' ELSE limits END AS limits, order_key FROM read_lines(p_lines) ORDER BY 1, 2, 3, 4
  LOOP
    BEGIN
      PERFORM lane_id(r.queue, r.share, r.limits, r.order_key, '');
    EXCEPTION WHEN program_limit_exceeded THEN
    END;
  END LOOP;
END $$;

-- The keys of these tasks, each for the first that names it, unless it was there before: how many are new. `busy`: the places of those that somebody's open
-- transaction holds back.
CREATE FUNCTION hold_keys(p_places integer[], p_tenants text[], p_types text[], p_keys text[], p_ids uuid[], p_hashes bytea[], p_untils bigint[], p_patience integer,
  OUT added integer, OUT busy integer[]) LANGUAGE plpgsql AS $$
DECLARE
  n integer := cardinality(p_places);
  half integer := n / 2;
BEGIN
  PERFORM set_config('lock_timeout', p_patience::text, true);
  INSERT INTO dedupe (tenant, type, key, id, hash, until)
  SELECT DISTINCT ON (u.tenant COLLATE "C", u.type COLLATE "C", u.key COLLATE "C") u.tenant, u.type, u.key, u.id, u.hash, u.until
  FROM unnest(p_places, p_tenants, p_types, p_keys, p_ids, p_hashes, p_untils) u(place, tenant, type, key, id, hash, until)
  ORDER BY u.tenant COLLATE "C", u.type COLLATE "C", u.key COLLATE "C", u.place
  ON CONFLICT (tenant, type, key) DO NOTHING;
  GET DIAGNOSTICS added = ROW_COUNT;
  busy := '{}';
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  added := 0;
  busy := p_places;
  IF n > 1 THEN
    SELECT a.added + b.added, a.busy || b.busy INTO added, busy
    FROM hold_keys(p_places[:half], p_tenants[:half], p_types[:half], p_keys[:half], p_ids[:half], p_hashes[:half], p_untils[:half], least(p_patience, 10)) a,
      hold_keys(p_places[half + 1:], p_tenants[half + 1:], p_types[half + 1:], p_keys[half + 1:], p_ids[half + 1:], p_hashes[half + 1:], p_untils[half + 1:],
        least(p_patience, 10)) b;
  END IF;
END $$;

-- A task whose key was there before it: NULL where the key has run out and is its own now.
CREATE FUNCTION judge_key(p_place integer, p_tenant text, p_type text, p_key text, p_id uuid, p_hash bytea, p_until bigint, p_now bigint) RETURNS verdict
LANGUAGE plpgsql AS $$
DECLARE
  d dedupe;
  reserved boolean;
BEGIN
  LOOP
    SELECT * INTO d FROM dedupe WHERE tenant = p_tenant AND type = p_type AND key = p_key;
    IF NOT FOUND THEN
      INSERT INTO dedupe (tenant, type, key, id, hash, until) VALUES (p_tenant, p_type, p_key, p_id, p_hash, p_until) ON CONFLICT DO NOTHING;
      CONTINUE;
    END IF;
    IF d.id = p_id THEN
      RETURN NULL;
    END IF;
    IF d.until > p_now OR EXISTS (SELECT 1 FROM task WHERE task.id = d.id) THEN
      IF d.hash <> p_hash THEN
        RETURN (p_place, 'conflict', d.id::text, false, 'conflict', NULL)::verdict;
      END IF;
      reserved := EXISTS (SELECT 1 FROM known WHERE known.id = d.id AND known.state IS NULL) AND NOT EXISTS (SELECT 1 FROM body WHERE body.id = d.id);
      RETURN (p_place, 'duplicate', d.id::text, reserved, NULL, NULL)::verdict;
    END IF;
    UPDATE dedupe SET id = p_id, hash = p_hash, until = p_until WHERE tenant = p_tenant AND type = p_type AND key = p_key AND id = d.id;
  END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  RETURN (p_place, 'busy', p_id::text, false, 'key_in_flight', NULL)::verdict;
END $$;

-- The holder of a unique key takes the new one's payload, priority and time; it keeps its id, its line and its edges. False: it runs.
CREATE FUNCTION replace_task(t task, p_payload json, p_run_at bigint, p_priority smallint, p_own boolean, now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF t.state = 3 THEN
    RETURN false;
  END IF;
  PERFORM leave_lane(t, 0);
  UPDATE task SET state = CASE WHEN t.state = 4 THEN 4 WHEN p_run_at > now THEN 1 ELSE 0 END,
    ready_at = CASE WHEN t.state = 4 THEN ready_at WHEN p_run_at > now THEN p_run_at ELSE now END,
    priority = p_priority, size = octet_length(p_payload::text), version = version + 1, updated_at = now WHERE id = t.id;
  UPDATE body SET payload = p_payload, run_at = p_run_at, priority = p_priority WHERE id = t.id;
  PERFORM tell_task('task.replaced', t.id, t.version + 1, now);
  IF p_own THEN
    PERFORM announce(ARRAY[queue_of(t.lane)]);
  END IF;
  RETURN true;
END $$;

-- A task with a unique key: NULL where it holds it now; code `joins` where one of its own batch does, which is not stored yet.
CREATE FUNCTION hold_unique(p_place integer, p_tenant text, p_type text, p_key text, p_id uuid, p_replaces boolean, p_payload text, p_run_at bigint,
  p_priority smallint, p_batch uuid[], p_own boolean, now bigint) RETURNS verdict LANGUAGE plpgsql AS $$
DECLARE
  holder uuid;
  t task;
BEGIN
  LOOP
    INSERT INTO held (tenant, type, key, id) VALUES (p_tenant, p_type, p_key, p_id) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      RETURN NULL;
    END IF;
    SELECT id INTO holder FROM held WHERE tenant = p_tenant AND type = p_type AND key = p_key;
    CONTINUE WHEN NOT FOUND;
    IF holder = ANY (p_batch) THEN
      RETURN (p_place, CASE WHEN p_replaces THEN 'replaced' ELSE 'duplicate' END, holder::text, false, 'joins', NULL)::verdict;
    END IF;
    IF NOT p_replaces THEN
      RETURN (p_place, 'duplicate', holder::text, false, NULL, NULL)::verdict;
    END IF;
    SELECT * INTO t FROM task WHERE id = holder FOR UPDATE;
    CONTINUE WHEN NOT FOUND OR NOT EXISTS (SELECT 1 FROM held WHERE id = holder AND tenant = p_tenant AND type = p_type AND key = p_key);
    IF replace_task(t, p_payload::json, p_run_at, p_priority, p_own, now) THEN
      RETURN (p_place, 'replaced', holder::text, false, NULL, NULL)::verdict;
    END IF;
    RETURN (p_place, 'conflict', holder::text, false, 'unique_runs', NULL)::verdict;
  END LOOP;
EXCEPTION
  WHEN lock_not_available OR deadlock_detected THEN
    RETURN (p_place, 'busy', p_id::text, false, 'key_in_flight', NULL)::verdict;
  WHEN data_exception THEN
    RETURN (p_place, 'refused', p_id::text, false, 'invalid_json', SQLERRM)::verdict;
END $$;

-- May it be counted against all of these limits now? The caller holds the gate.
CREATE FUNCTION count_or_reject(p_limits text[], now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[] := ARRAY(SELECT counter_id(name) FROM unnest(p_limits) u(name));
BEGIN
  IF EXISTS (SELECT 1 FROM counter c WHERE c.id = ANY (numbers) AND room_of(c, now) = 0) THEN
    RETURN false;
  END IF;
  PERFORM count_starts(c, 1, now) FROM counter c WHERE c.id = ANY (numbers);
  RETURN true;
END $$;

-- The seal falls with the last batch; broken again, it stays broken. Edges that are still open, or were made just now, are counted in open_edges.
CREATE FUNCTION break_seals(p_tasks uuid[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  t task;
BEGIN
  FOR t IN SELECT * FROM task WHERE id = ANY (p_tasks) ORDER BY uuid_send(id) FOR UPDATE LOOP
    CONTINUE WHEN t.flags & 64 = 0;
    t.flags := t.flags & ~64;
    IF t.state = 4 AND t.open_edges = 0 THEN
      PERFORM wake_up(t, now);
    ELSE
      UPDATE task SET flags = t.flags WHERE id = t.id;
    END IF;
  END LOOP;
END $$;

-- Tasks whose edges name one that does not exist, and in turn those that wait for them. `p_at`: where the other one stands in this batch; `p_alive`: still to be stored.
CREATE FUNCTION judge_edges(p_of integer[], p_to uuid[], p_at integer[], p_kind smallint[], p_alive boolean[], p_busy boolean[], now bigint) RETURNS SETOF verdict
LANGUAGE plpgsql AS $$
DECLARE
  found_bad boolean := true;
  v verdict;
BEGIN
  PERFORM 1 FROM task t WHERE t.id = ANY (ARRAY(
    SELECT DISTINCT e.other FROM unnest(p_of, p_to, p_at, p_kind) e(place, other, at, kind) WHERE e.kind >= 10 AND p_alive[e.place] AND p_alive[e.at] IS NOT TRUE))
  ORDER BY uuid_send(t.id) FOR UPDATE;
  -- A record that is waited for is not pruned before the edge is there.
  PERFORM 1 FROM ended d WHERE d.id = ANY (ARRAY(
    SELECT DISTINCT e.other FROM unnest(p_of, p_to, p_at, p_kind) e(place, other, at, kind) WHERE e.kind < 10 AND p_alive[e.place] AND p_alive[e.at] IS NOT TRUE))
  ORDER BY uuid_send(d.id) FOR KEY SHARE;
  WHILE found_bad LOOP
    found_bad := false;
    FOR v IN
      SELECT DISTINCT ON (x.place) x.place, CASE WHEN x.code = 'key_in_flight' THEN 'busy' ELSE 'refused' END, NULL, false, x.code, x.other::text FROM (
        SELECT e.place, e.other, e.number, CASE
          WHEN p_busy[e.at] THEN 'key_in_flight'
          WHEN e.kind < 10 AND (SELECT b.id FROM body b WHERE b.id = e.other) IS NULL
            AND (SELECT k.id FROM known k WHERE k.id = e.other AND k.until > now) IS NULL THEN 'unknown_edge'
          WHEN e.kind >= 10 AND (SELECT b.id FROM body b WHERE b.id = e.other) IS NULL THEN 'unknown_edge'
          WHEN e.kind >= 10 AND (SELECT t.id FROM task t WHERE t.id = e.other AND t.state + 0 = 4 AND t.flags & 64 <> 0) IS NULL THEN 'no_seal' END AS code
        FROM unnest(p_of, p_to, p_at, p_kind) WITH ORDINALITY e(place, other, at, kind, number)
        WHERE p_alive[e.place] AND p_alive[e.at] IS NOT TRUE) x
      WHERE x.code IS NOT NULL ORDER BY x.place, x.number
    LOOP
      found_bad := true;
      p_alive[v.place] := false;
      p_busy[v.place] := v.status = 'busy';
      RETURN NEXT v;
    END LOOP;
  END LOOP;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  RETURN QUERY SELECT DISTINCT e.place, 'busy', NULL, false, 'parent_in_flight', NULL
    FROM unnest(p_of, p_at, p_kind) e(place, at, kind) WHERE e.kind >= 10 AND p_alive[e.place] AND p_alive[e.at] IS NOT TRUE;
END $$;

CREATE FUNCTION with_element(p_all anyarray, p_into integer, p_from integer) RETURNS anyarray LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  p_all[p_into] := p_all[p_from];
  RETURN p_all;
END $$;

CREATE FUNCTION submit(p_ids uuid[], p_payloads text[], p_line integer[], p_lines json,
  p_run_at bigint[], p_delay bigint[], p_expires_at bigint[], p_meta text[], p_tags text[],
  p_key text[], p_hash bytea[],                                                          -- idempotency keys, and the hash of the payload of each task that has one
  p_unique json,                                                                         -- [{"place", "key", "flag": 4 until started, 8 until ended, "replaces"}]
  p_edge_of integer[], p_edge_to uuid[], p_edge_at integer[], p_edge_kind smallint[],    -- kind 0, 1, 2: the task at `of` waits for `to`; 10, 11, 12: `to` waits for it
  p_sealed integer[], p_unseal uuid[],
  p_generation bigint, p_patience integer, p_own boolean, p_now bigint)
RETURNS SETOF verdict LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  n integer := coalesce(cardinality(p_ids), 0);
  now bigint := moment(p_now);
  patience text := current_setting('lock_timeout');
  lanes bigint[];
  types text[];
  queues text[];
  tenants text[];
  priorities smallint[];
  timeouts bigint[];
  crashes integer[];
  retries text[];
  limiting text[];
  spans bigint[];
  orders boolean[];
  numbers bigint[];
  all_plain boolean;
  listening boolean;
  alive boolean[];
  busy boolean[];
  flags integer[];
  opens integer[];
  seqs bigint[];
  moved integer[];
  uniques uuid[] := '{}';
  rejected integer[] := '{}';
  parents uuid[] := '{}';
  verdicts verdict[] := '{}';
  v verdict;
  r record;
  stack integer[];
  low integer;
  high integer;
  stored integer := 0;
  put integer;
BEGIN
  IF p_generation <> (SELECT generation FROM store) THEN
    RETURN NEXT (0, 'settings', NULL, false, NULL, NULL)::verdict;
    RETURN;
  END IF;
  IF NOT p_own THEN
    PERFORM set_config('taskmill.quiet', 'on', true);
  END IF;
  IF p_unseal IS NOT NULL THEN
    SELECT 0, 'unknown', u.id::text, false, NULL, NULL INTO v FROM unnest(p_unseal) u(id) WHERE (SELECT b.id FROM body b WHERE b.id = u.id) IS NULL AND u.id <> ALL (p_ids) LIMIT 1;
    IF FOUND THEN
      RETURN NEXT v;
      RETURN;
    END IF;
  END IF;
  IF n > 0 THEN
    FOR attempt IN 1 .. 2 LOOP
      -- Each lane is held, so that nobody removes it before this transaction has ended.
      SELECT array_agg(type), array_agg(queue), array_agg(tenant), array_agg(priority), array_agg(timeout), array_agg(max_crashes), array_agg(retry), array_agg(span),
        array_agg(order_key <> ''), array_agg(queue_number), CASE WHEN bool_or(rejects) THEN array_agg(CASE WHEN rejects THEN array_to_json(limits)::text END) END,
        array_agg(CASE WHEN share = '' AND order_key = '' AND (limits = '{}' OR rejects) THEN -queue_number ELSE (
          SELECT l.id FROM lane l WHERE l.queue = x.queue_number AND l.share = (SELECT s.id FROM share s WHERE s.queue = x.queue_number AND s.name = x.share)
            AND l.limits = CASE WHEN x.rejects THEN '{}' ELSE x.limits END AND l.order_key = x.order_key AND l.type = '' FOR KEY SHARE) END)
      INTO types, queues, tenants, priorities, timeouts, crashes, retries, spans, orders, numbers, limiting, lanes
      FROM (SELECT r.*, (SELECT q.id FROM queue q WHERE q.name = r.queue) AS queue_number FROM read_lines(p_lines) r ORDER BY r.line) x;
      EXIT WHEN attempt = 2 OR array_position(lanes, NULL) IS NULL;
      IF NOT p_own THEN
        RETURN NEXT (0, 'names', NULL, false, NULL, NULL)::verdict;
        RETURN;
      END IF;
      PERFORM make_names(p_lines);
    END LOOP;
    all_plain := 0 > ALL (lanes);
    LOCK TABLE body, task, dedupe, held, edge IN ROW EXCLUSIVE MODE;  -- before numbers are given: see horizon()
    SELECT ARRAY(SELECT nextval('seq') FROM generate_series(1, n)), set_config('lock_timeout', p_patience::text, true) INTO seqs;
  END IF;

  -- Who is there already, or cannot be there?
  IF array_position(lanes, NULL) IS NOT NULL OR limiting IS NOT NULL AND NOT p_own THEN
    alive := array_fill(true, ARRAY[n]);
    FOR v IN
      SELECT u.place, 'refused', NULL, false, CASE WHEN lanes[u.line] IS NULL THEN 'names_too_long' ELSE 'reject_in_transaction' END, NULL
      FROM unnest(p_line) WITH ORDINALITY u(line, place) WHERE lanes[u.line] IS NULL OR limiting[u.line] IS NOT NULL AND NOT p_own
    LOOP
      alive[v.place] := false;
      verdicts := verdicts || v;
    END LOOP;
  END IF;
  IF EXISTS (SELECT 1 FROM known) THEN
    alive := coalesce(alive, array_fill(true, ARRAY[n]));
    DELETE FROM known WHERE id = ANY (p_ids) AND state IS NULL;
    FOR v IN
      SELECT u.place, 'duplicate', u.id::text, false, 'compare', 'hash:' || encode(k.hash, 'hex')
      FROM unnest(p_ids) WITH ORDINALITY u(id, place) JOIN known k ON k.id = ANY (ARRAY[u.id]) WHERE k.until > now
    LOOP
      alive[v.place] := false;
      verdicts := verdicts || v;
    END LOOP;
  END IF;
  IF p_key IS NOT NULL OR p_unique IS NOT NULL OR p_edge_of IS NOT NULL THEN
    alive := coalesce(alive, array_fill(true, ARRAY[n]));
    busy := array_fill(false, ARRAY[n]);
    FOR v IN
      SELECT u.place, 'duplicate', u.id::text, false, 'compare', b.payload::text FROM unnest(p_ids) WITH ORDINALITY u(id, place) JOIN body b ON b.id = ANY (ARRAY[u.id]) WHERE alive[u.place]
    LOOP
      alive[v.place] := false;
      verdicts := verdicts || v;
    END LOOP;
  END IF;
  IF p_key IS NOT NULL THEN
    SELECT h.added, h.busy, cardinality(k.places) INTO put, stack, high FROM (
      SELECT array_agg(u.place::integer) AS places, array_agg(tenants[u.line]) AS tenants, array_agg(types[u.line]) AS types, array_agg(u.key) AS keys, array_agg(u.id) AS ids,
        array_agg(u.hash) AS hashes, array_agg(now + spans[u.line]) AS untils
      FROM unnest(p_ids, p_line, p_key, p_hash) WITH ORDINALITY u(id, line, key, hash, place) WHERE u.key IS NOT NULL AND alive[u.place]) k,
      LATERAL hold_keys(k.places, k.tenants, k.types, k.keys, k.ids, k.hashes, k.untils, p_patience) h WHERE k.places IS NOT NULL;
    FOREACH low IN ARRAY coalesce(stack, '{}') LOOP
      alive[low] := false;
      busy[low] := true;
      verdicts := verdicts || (low, 'busy', NULL, false, 'key_in_flight', NULL)::verdict;
    END LOOP;
    FOR r IN
      SELECT u.place::integer AS place, u.id, tenants[u.line] AS tenant, types[u.line] AS type, u.key, u.hash, now + spans[u.line] AS until
      FROM unnest(p_ids, p_line, p_key, p_hash) WITH ORDINALITY u(id, line, key, hash, place)
      WHERE put < high AND u.key IS NOT NULL AND alive[u.place] AND (
        SELECT d.id FROM dedupe d WHERE d.tenant = tenants[u.line] AND d.type = types[u.line] AND d.key = u.key AND d.id = u.id) IS NULL
    LOOP
      v := judge_key(r.place, r.tenant, r.type, r.key, r.id, r.hash, r.until, now);
      IF v.place IS NOT NULL THEN
        alive[v.place] := false;
        busy[v.place] := v.status = 'busy';
        verdicts := verdicts || v;
      END IF;
    END LOOP;
  END IF;
  IF p_unique IS NOT NULL THEN
    flags := array_fill(0, ARRAY[n]);
    FOR r IN SELECT x.place, x.key, x.flag, x.replaces FROM json_to_recordset(p_unique) x(place integer, key text, flag integer, replaces boolean) ORDER BY x.place LOOP
      CONTINUE WHEN NOT alive[r.place];
      v := hold_unique(r.place, tenants[p_line[r.place]], types[p_line[r.place]], r.key, p_ids[r.place], r.replaces, p_payloads[r.place],
        coalesce(now + p_delay[r.place], p_run_at[r.place], now), priorities[p_line[r.place]], uniques, p_own, now);
      IF v.place IS NULL THEN
        flags[r.place] := r.flag;
        uniques := uniques || p_ids[r.place];
        CONTINUE;
      END IF;
      alive[v.place] := false;
      busy[v.place] := v.status = 'busy';
      IF v.status = 'replaced' AND v.code = 'joins' THEN  -- the earlier one is stored with what this one brings
        low := array_position(p_ids, v.id::uuid);
        p_payloads[low] := p_payloads[v.place];
        p_line[low] := p_line[v.place];
        p_run_at := with_element(p_run_at, low, v.place);
        p_delay := with_element(p_delay, low, v.place);
        p_expires_at := with_element(p_expires_at, low, v.place);
        p_meta := with_element(p_meta, low, v.place);
        p_tags := with_element(p_tags, low, v.place);
        flags[low] := r.flag;
        IF p_edge_of IS NOT NULL THEN
          p_edge_of := array_replace(array_replace(p_edge_of, low, 0), v.place, low);
        END IF;
        p_sealed := array_replace(array_remove(p_sealed, low), v.place, low);
      END IF;
      v.code := nullif(v.code, 'joins');
      verdicts := verdicts || v;
      IF p_key[v.place] IS NOT NULL AND v.status IN ('duplicate', 'replaced') THEN  -- its key leads to the holder
        UPDATE dedupe SET id = v.id::uuid WHERE tenant = tenants[p_line[v.place]] AND type = types[p_line[v.place]] AND key = p_key[v.place] AND id = p_ids[v.place];
      END IF;
    END LOOP;
  END IF;
  IF p_edge_of IS NOT NULL THEN
    moved := array_fill(NULL::integer, ARRAY[n]);
    FOREACH v IN ARRAY verdicts LOOP
      IF v.status IN ('duplicate', 'replaced') THEN
        moved[v.place] := array_position(p_ids, v.id::uuid);
        p_edge_to := ARRAY(SELECT CASE WHEN u.at = v.place THEN v.id::uuid ELSE u.other END FROM unnest(p_edge_to, p_edge_at) WITH ORDINALITY u(other, at, place) ORDER BY u.place);
      END IF;
    END LOOP;
    p_edge_at := ARRAY(SELECT coalesce(moved[u.at], u.at) FROM unnest(p_edge_at) WITH ORDINALITY u(at, place) ORDER BY u.place);
    FOR v IN SELECT * FROM judge_edges(p_edge_of, p_edge_to, p_edge_at, p_edge_kind, alive, busy, now) LOOP
      alive[v.place] := false;
      verdicts := verdicts || v;
    END LOOP;
  END IF;

  -- Into the store. That all ids are new is assumed, not looked up. Where one row cannot be written, halves are tried, so that it alone is left out.
  stack := CASE WHEN n > 0 THEN ARRAY[1, n] END;
  WHILE cardinality(stack) > 0 LOOP
    low := stack[cardinality(stack) - 1];
    high := stack[cardinality(stack)];
    stack := stack[:cardinality(stack) - 2];
    BEGIN
      INSERT INTO body (id, seq, type, queue, tenant, priority, created_at, run_at, expires_at, timeout, max_crashes, retry, meta, tags, payload)
      SELECT u.id, u.seq, types[u.line], queues[u.line], tenants[u.line], priorities[u.line], now, coalesce(now + u.delay, u.run_at, now), u.expires_at,
        timeouts[u.line], crashes[u.line], retries[u.line], u.meta, u.tags::jsonb, u.payload::json
      FROM unnest(p_ids, seqs, p_line, p_run_at, p_delay, p_expires_at, p_meta, p_tags, p_payloads) WITH ORDINALITY
        u(id, seq, line, run_at, delay, expires_at, meta, tags, payload, place)
      WHERE u.place BETWEEN low AND high AND (alive IS NULL OR alive[u.place]);
      GET DIAGNOSTICS put = ROW_COUNT;
      stored := stored + put;
    EXCEPTION WHEN unique_violation OR lock_not_available OR deadlock_detected OR data_exception OR program_limit_exceeded THEN
      PERFORM set_config('lock_timeout', least(p_patience, 10)::text, true);
      alive := coalesce(alive, array_fill(true, ARRAY[n]));
      put := cardinality(verdicts);
      FOR v IN
        SELECT u.place, 'duplicate', u.id::text, false, 'compare', b.payload::text
        FROM unnest(p_ids, seqs) WITH ORDINALITY u(id, seq, place) JOIN body b ON b.id = ANY (ARRAY[u.id]) WHERE SQLSTATE = '23505' AND alive[u.place] AND b.seq <> u.seq
      LOOP
        alive[v.place] := false;
        verdicts := verdicts || v;
      END LOOP;
      IF put < cardinality(verdicts) THEN
        stack := stack || ARRAY[low, high];
      ELSIF low < high THEN
        stack := stack || ARRAY[(low + high) / 2 + 1, high, low, (low + high) / 2];
      ELSE
        alive[low] := false;
        IF SQLSTATE IN ('23505', '55P03', '40P01') THEN
          verdicts := verdicts || (low, 'busy', NULL, false, 'id_in_flight', NULL)::verdict;
        ELSE
          verdicts := verdicts || (low, 'refused', NULL, false, 'invalid_json', SQLERRM)::verdict;
        END IF;
      END IF;
    END;
  END LOOP;
  SELECT s.listen_until > now, set_config('lock_timeout', patience, true) INTO listening FROM store s;
  IF p_key IS NOT NULL OR p_unique IS NOT NULL THEN
    FOREACH v IN ARRAY verdicts LOOP
      IF v.status IN ('refused', 'busy') OR v.code = 'unique_runs' THEN
        DELETE FROM dedupe WHERE tenant = tenants[p_line[v.place]] AND type = types[p_line[v.place]] AND key = p_key[v.place] AND id = p_ids[v.place];
        DELETE FROM held WHERE id = p_ids[v.place];
      END IF;
    END LOOP;
  END IF;
  IF p_sealed IS NOT NULL THEN
    flags := coalesce(flags, array_fill(0, ARRAY[n]));
    FOREACH low IN ARRAY p_sealed LOOP
      flags[low] := flags[low] | 64;
    END LOOP;
  END IF;
  IF p_edge_of IS NOT NULL THEN
    flags := coalesce(flags, array_fill(0, ARRAY[n]));
    opens := array_fill(0, ARRAY[n]);
    FOR r IN
      SELECT CASE WHEN e.kind < 10 THEN e.place ELSE e.at END AS waiter, CASE WHEN e.kind < 10 THEN e.at ELSE e.place END AS child, count(*) AS same, min(e.number) AS number
      FROM unnest(p_edge_of, p_edge_to, p_edge_at, p_edge_kind) WITH ORDINALITY e(place, other, at, kind, number) WHERE alive[e.place]
      GROUP BY 1, 2, CASE WHEN e.kind < 10 THEN e.other ELSE p_ids[e.place] END, CASE WHEN e.kind < 10 THEN p_ids[e.place] ELSE e.other END
    LOOP
      IF alive[r.waiter] THEN
        opens[r.waiter] := opens[r.waiter] + 1;
        flags[r.waiter] := flags[r.waiter] | 16;
      END IF;
      IF alive[r.child] THEN
        flags[r.child] := flags[r.child] | 32;
      END IF;
    END LOOP;
    parents := ARRAY(SELECT DISTINCT e.other FROM unnest(p_edge_of, p_edge_to, p_edge_at, p_edge_kind) e(place, other, at, kind)
      WHERE e.kind >= 10 AND alive[e.place] AND alive[e.at] IS NOT TRUE);
    FOR r IN
      WITH made AS (
        INSERT INTO edge (parent, child, on_failure)
        SELECT CASE WHEN e.kind < 10 THEN p_ids[e.place] ELSE e.other END, CASE WHEN e.kind < 10 THEN e.other ELSE p_ids[e.place] END, e.kind % 10
        FROM unnest(p_edge_of, p_edge_to, p_edge_at, p_edge_kind) WITH ORDINALITY e(place, other, at, kind, number) WHERE alive[e.place] ORDER BY e.number
        ON CONFLICT (parent, child) DO NOTHING RETURNING parent)
      SELECT parent, count(*)::integer AS n FROM made WHERE parent = ANY (parents) GROUP BY parent ORDER BY parent
    LOOP
      UPDATE task SET open_edges = open_edges + r.n, flags = task.flags | 16 WHERE id = r.parent;
    END LOOP;
    INSERT INTO late_edge (edge)
    SELECT d.number FROM unnest(p_edge_of, p_edge_to, p_edge_at, p_edge_kind) e(place, other, at, kind) JOIN edge d ON d.parent = ANY (ARRAY[p_ids[e.place]]) AND d.child = e.other
    WHERE e.kind < 10 AND alive[e.place] AND alive[e.at] IS NOT TRUE ON CONFLICT DO NOTHING;
  END IF;
  IF limiting IS NOT NULL AND p_own THEN
    PERFORM settle(p_now);
    PERFORM gate();
    now := moment(p_now);
    FOR low IN SELECT u.place FROM unnest(p_line) WITH ORDINALITY u(line, place) WHERE limiting[u.line] IS NOT NULL AND (alive IS NULL OR alive[u.place]) ORDER BY u.place LOOP
      IF NOT count_or_reject(ARRAY(SELECT json_array_elements_text(limiting[p_line[low]]::json)), now) THEN
        rejected := rejected || low;
      END IF;
    END LOOP;
    IF rejected <> '{}' THEN
      alive := coalesce(alive, array_fill(true, ARRAY[n]));
      FOREACH low IN ARRAY rejected LOOP
        alive[low] := false;
        PERFORM reject_task(p_ids[low], seqs[low], coalesce(flags[low], 0) | orders[p_line[low]]::integer | 2048, coalesce(opens[low], 0), now);
        verdicts := verdicts || (low, 'rejected', NULL, false, 'rate_limited', NULL)::verdict;
      END LOOP;
    END IF;
  END IF;
  INSERT INTO task (id, seq, lane, type, state, priority, flags, size, open_edges, ready_at, updated_at, expires_at)
  SELECT u.id, u.seq, lanes[u.line], types[u.line],
    CASE WHEN opens[u.place] > 0 OR flags[u.place] & 64 <> 0 THEN 4 WHEN coalesce(now + u.delay, u.run_at, now) > now THEN 1 ELSE 0 END,
    priorities[u.line], coalesce(flags[u.place], 0) | orders[u.line]::integer | CASE WHEN limiting[u.line] IS NOT NULL THEN 2048 ELSE 0 END, octet_length(u.payload), coalesce(opens[u.place], 0),
    CASE WHEN opens[u.place] > 0 OR flags[u.place] & 64 <> 0 THEN 4611686018427387904 ELSE greatest(coalesce(now + u.delay, u.run_at, now), now) END, now, u.expires_at
  FROM unnest(p_ids, seqs, p_line, p_run_at, p_delay, p_expires_at, p_payloads) WITH ORDINALITY u(id, seq, line, run_at, delay, expires_at, payload, place)
  WHERE alive IS NULL OR alive[u.place];
  IF NOT all_plain THEN
    INSERT INTO stir (lane, at) SELECT DISTINCT lanes[u.line], now FROM unnest(p_line) WITH ORDINALITY u(line, place) WHERE lanes[u.line] > 0 AND (alive IS NULL OR alive[u.place]);
    INSERT INTO ordered (lane, seq, id)
    SELECT lanes[u.line], u.seq, u.id FROM unnest(p_ids, seqs, p_line) WITH ORDINALITY u(id, seq, line, place) WHERE orders[u.line] AND (alive IS NULL OR alive[u.place]);
  END IF;
  IF p_expires_at IS NOT NULL THEN
    INSERT INTO expiry (at, id)
    SELECT u.at, u.id FROM unnest(p_ids, p_expires_at) WITH ORDINALITY u(id, at, place) WHERE u.at IS NOT NULL AND (alive IS NULL OR alive[u.place]) ON CONFLICT DO NOTHING;
  END IF;
  IF listening THEN
    INSERT INTO event (kind, subject, version, at, data)
    SELECT CASE WHEN u.place = ANY (rejected) THEN 'task.dead' ELSE 'task.submitted' END, u.id::text, 1, now,
      facts(types[u.line], queues[u.line], tenants[u.line], CASE WHEN u.place = ANY (rejected) THEN json_build_object('error', 'rate_limited') END)
    FROM unnest(p_ids, p_line) WITH ORDINALITY u(id, line, place) WHERE alive IS NULL OR alive[u.place] OR u.place = ANY (rejected);
  END IF;
  IF p_unseal IS NOT NULL THEN
    PERFORM break_seals(p_unseal, now);
  END IF;
  IF p_own AND stored > 0 THEN
    PERFORM announce(numbers);
  END IF;
  RETURN QUERY SELECT * FROM unnest(verdicts);
END $$;

-- Over its limit when it was submitted: its record is that of a dead task.
CREATE FUNCTION reject_task(p_id uuid, p_seq bigint, p_flags integer, p_open_edges integer, now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  owed json;
BEGIN
  INSERT INTO ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, error)
  VALUES (p_id, p_seq, 6, p_flags & ~64, 1, 0, 0, 0, p_open_edges, now, '{"code":"rate_limited","message":"over its limit when it was submitted"}');
  DELETE FROM held WHERE p_flags & (4 | 8) <> 0 AND id = p_id;
  INSERT INTO falling (id, state) SELECT p_id, 6 WHERE p_flags & 32 <> 0;
  SELECT json_build_object('id', b.id, 'type', b.type, 'queue', b.queue, 'state', 'dead', 'version', 1) INTO owed FROM body b WHERE b.id = p_id;
  PERFORM owe('ended', p_id::text, owed, now), owe('dead', p_id::text, owed, now);
END $$;

-- The same for callers that have no arrays: one document, its members named as the parameters are.
CREATE FUNCTION submit_document(p_batch json, p_generation bigint, p_patience integer, p_own boolean, p_now bigint) RETURNS SETOF verdict LANGUAGE sql AS $$
  SELECT s.* FROM json_to_record(p_batch) b(ids uuid[], payloads text[], line integer[], lines json, run_at bigint[], delay bigint[], expires_at bigint[],
    meta text[], tags text[], key text[], hash text[], uniques json, edge_of integer[], edge_to uuid[], edge_at integer[], edge_kind smallint[],
    sealed integer[], unseal uuid[]),
    LATERAL submit(b.ids, b.payloads, b.line, b.lines, b.run_at, b.delay, b.expires_at, b.meta, b.tags, b.key,
      (SELECT array_agg(decode(h, 'hex') ORDER BY place) FROM unnest(b.hash) WITH ORDINALITY u(h, place)), b.uniques, b.edge_of, b.edge_to, b.edge_at, b.edge_kind,
      b.sealed, b.unseal, p_generation, p_patience, p_own, p_now) s
$$;

-- Remember id and key, for a log that will bring the task. Answers a row for each: created, duplicate or conflict.
CREATE FUNCTION reserve(p_ids uuid[], p_types text[], p_tenants text[], p_keys text[], p_hashes bytea[], p_windows bigint[], p_patience integer, p_now bigint)
RETURNS SETOF verdict LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(p_now);
  v verdict;
  r record;
BEGIN
  PERFORM set_config('lock_timeout', p_patience::text, true);
  FOR r IN
    SELECT u.place::integer AS place, u.id, u.type, u.tenant, u.key, u.hash, now + coalesce(u.span, 259200000000) AS until
    FROM unnest(p_ids, p_types, p_tenants, p_keys, p_hashes, p_windows) WITH ORDINALITY u(id, type, tenant, key, hash, span, place)
  LOOP
    v := NULL;
    IF r.key IS NOT NULL THEN
      v := judge_key(r.place, r.tenant, r.type, r.key, r.id, r.hash, r.until, now);
    END IF;
    IF v.place IS NULL THEN
      INSERT INTO known (id, state, hash, until) SELECT r.id, NULL, r.hash, r.until WHERE NOT EXISTS (SELECT 1 FROM body b WHERE b.id = r.id)
      ON CONFLICT (id) DO UPDATE SET state = NULL, hash = excluded.hash, until = excluded.until WHERE known.until <= now;
      v := (r.place, CASE WHEN FOUND THEN 'created' ELSE 'duplicate' END, r.id::text,
        EXISTS (SELECT 1 FROM known k WHERE k.id = r.id AND k.state IS NULL) AND NOT EXISTS (SELECT 1 FROM body b WHERE b.id = r.id), NULL, NULL)::verdict;
    END IF;
    RETURN NEXT v;
  END LOOP;
END $$;

CALL harden('submit', 'submit_document', 'reserve', 'make_names');
