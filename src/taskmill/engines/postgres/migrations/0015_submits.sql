-- Submit: what on_limit=reject means for keys and repeats; no edge is written before the step is whole.

-- When each of the rates that are full among these limits has room again; NULL: none is full.
CREATE FUNCTION full_until(limit_names text[], now bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT max(next_room_at(c, now)) FROM counter c
    WHERE c.name = ANY (limit_names) AND c.rate <= (SELECT coalesce(sum(tasks), 0) FROM start s WHERE s.counter = c.id AND s.at > now - c.span));
END $$;

-- Counts a task in the rates of its limits, unless one of them, or a cap, is full: then false. The caller holds the gate.

CREATE OR REPLACE FUNCTION count_or_reject(p_limits text[], now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[] := ARRAY(SELECT counter_id(name) FROM unnest(p_limits) u(name));
BEGIN
  IF EXISTS (SELECT 1 FROM counter c WHERE c.id = ANY (numbers) AND room_of(c, now) = 0) THEN
    RETURN false;
  END IF;
  PERFORM count_starts(c, 1, now) FROM counter c WHERE c.id = ANY (numbers);
  RETURN true;
END $$;

-- A record that is there already: the caller compares payloads. One that was rejected and never ran is rejected again; the code says now, and when to come back.
CREATE FUNCTION repeat_of(p_place integer, p_id uuid, p_limits text, p_payload text, now bigint) RETURNS verdict LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF (SELECT e.id FROM ended e WHERE e.id = p_id AND e.flags & 4096 <> 0) IS NULL THEN
    RETURN (p_place, 'duplicate', p_id::text, false, 'compare', p_payload)::verdict;
  END IF;
  RETURN (p_place, 'rejected', p_id::text, false, concat_ws(' ', now, full_until(ARRAY(SELECT json_array_elements_text(p_limits::json)), now)), p_payload)::verdict;
END $$;

-- A rejected task holds no key. Those of its batch that met it as the holder of theirs are to be asked again, without it.
CREATE FUNCTION without_keys(verdicts verdict[], p_id uuid) RETURNS verdict[] LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM dedupe WHERE id = p_id AND (tenant, type) = (SELECT b.tenant, b.type FROM body b WHERE b.id = p_id)
    AND key = (SELECT b.meta::json ->> 'key' FROM body b WHERE b.id = p_id);
  DELETE FROM held WHERE id = p_id;
  RETURN ARRAY(
    SELECT CASE WHEN v.status IN ('duplicate', 'conflict', 'replaced') AND v.id = p_id::text THEN (v.place, 'busy', NULL, false, 'key_in_flight', NULL)::verdict
      ELSE (v.place, v.status, v.id, v.reserved, v.code, v.message)::verdict END
    FROM unnest(verdicts) WITH ORDINALITY v(place, status, id, reserved, code, message, number) ORDER BY v.number);
END $$;

CREATE OR REPLACE FUNCTION submit(p_ids uuid[], p_payloads text[], p_line integer[], p_lines json,
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
  awaited boolean;
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
        array_agg(CASE WHEN share = '' AND order_key = '' AND placed = '{}' THEN -queue_number ELSE (
          SELECT l.id FROM lane l WHERE l.queue = x.queue_number AND l.share = (SELECT s.id FROM share s WHERE s.queue = x.queue_number AND s.name = x.share)
            AND l.limits = x.placed AND l.order_key = x.order_key AND l.type = '' FOR KEY SHARE) END)
      INTO types, queues, tenants, priorities, timeouts, crashes, retries, spans, orders, numbers, limiting, lanes
      FROM (SELECT r.*, CASE WHEN r.rejects THEN caps_of(r.limits) ELSE r.limits END AS placed, (SELECT q.id FROM queue q WHERE q.name = r.queue) AS queue_number FROM read_lines(p_lines) r ORDER BY r.line) x;
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
    DELETE FROM known k USING unnest(p_ids, p_hash) u(id, hash) WHERE k.id = ANY (ARRAY[u.id]) AND k.state IS NULL AND (k.hash = u.hash OR k.until <= now);
    FOR v IN  -- one that was reserved is stored when its hash is that of the reservation: without a hash, the caller compares first
      SELECT u.place, CASE WHEN k.state IS NULL AND u.hash IS NULL THEN 'busy' ELSE 'duplicate' END, u.id::text, k.state IS NULL, 'compare', 'hash:' || encode(k.hash, 'hex')
      FROM unnest(p_ids, p_hash) WITH ORDINALITY u(id, hash, place) JOIN known k ON k.id = ANY (ARRAY[u.id]) WHERE k.until > now
    LOOP
      alive[v.place] := false;
      verdicts := verdicts || v;
    END LOOP;
  END IF;
  IF p_key IS NOT NULL OR p_unique IS NOT NULL OR p_edge_of IS NOT NULL THEN
    alive := coalesce(alive, array_fill(true, ARRAY[n]));
    busy := array_fill(false, ARRAY[n]);
    FOR v IN
      SELECT (repeat_of(u.place::integer, u.id, limiting[p_line[u.place]], b.payload::text, now)).*
      FROM unnest(p_ids) WITH ORDINALITY u(id, place) JOIN body b ON b.id = ANY (ARRAY[u.id]) WHERE alive[u.place]
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
        SELECT (repeat_of(u.place::integer, u.id, limiting[p_line[u.place]], b.payload::text, now)).*
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
  SELECT s.listen_until > now, EXISTS (SELECT 1 FROM late_edge WHERE absent), set_config('lock_timeout', patience, true) INTO listening, awaited FROM store s;
  IF awaited THEN
    PERFORM have_come(p_ids);
  END IF;
  IF p_key IS NOT NULL OR p_unique IS NOT NULL THEN
    FOREACH v IN ARRAY verdicts LOOP
      IF v.status IN ('refused', 'busy') OR v.code = 'unique_runs' THEN
        DELETE FROM dedupe WHERE tenant = tenants[p_line[v.place]] AND type = types[p_line[v.place]] AND key = p_key[v.place] AND id = p_ids[v.place];
        DELETE FROM held WHERE id = p_ids[v.place];
      END IF;
    END LOOP;
  END IF;
  IF limiting IS NOT NULL AND p_own THEN  -- before edges are written: what settle finds must be whole
    PERFORM settle(p_now);
    PERFORM gate();
    now := moment(p_now);
    FOR low IN SELECT u.place FROM unnest(p_line) WITH ORDINALITY u(line, place) WHERE limiting[u.line] IS NOT NULL AND (alive IS NULL OR alive[u.place]) ORDER BY u.place LOOP
      UPDATE body SET created_at = now, run_at = coalesce(now + p_delay[low], p_run_at[low], now) WHERE id = p_ids[low];
      IF NOT count_or_reject(ARRAY(SELECT json_array_elements_text(limiting[p_line[low]]::json)), now) THEN
        rejected := rejected || low;
        verdicts := without_keys(verdicts, p_ids[low])
          || (low, 'rejected', p_ids[low]::text, false, concat_ws(' ', now, full_until(ARRAY(SELECT json_array_elements_text(limiting[p_line[low]]::json)), now)), NULL)::verdict;
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
  IF rejected <> '{}' THEN
    alive := coalesce(alive, array_fill(true, ARRAY[n]));
    FOREACH low IN ARRAY rejected LOOP
      alive[low] := false;
      PERFORM reject_task(p_ids[low], seqs[low], coalesce(flags[low], 0) | orders[p_line[low]]::integer | 4096 | 8192, coalesce(opens[low], 0), now);
    END LOOP;
  END IF;
  INSERT INTO task (id, seq, lane, type, state, priority, flags, size, open_edges, ready_at, updated_at, expires_at)
  SELECT u.id, u.seq, lanes[u.line], types[u.line],
    CASE WHEN opens[u.place] > 0 OR flags[u.place] & 64 <> 0 THEN 4 WHEN coalesce(now + u.delay, u.run_at, now) > now THEN 1 ELSE 0 END,
    priorities[u.line], coalesce(flags[u.place], 0) | orders[u.line]::integer | CASE WHEN limiting[u.line] IS NOT NULL THEN 8192 ELSE 0 END, octet_length(u.payload) + coalesce(octet_length(u.meta), 0), coalesce(opens[u.place], 0),
    CASE WHEN opens[u.place] > 0 OR flags[u.place] & 64 <> 0 THEN 4611686018427387904 ELSE greatest(coalesce(now + u.delay, u.run_at, now), now) END, now, u.expires_at
  FROM unnest(p_ids, seqs, p_line, p_run_at, p_delay, p_expires_at, p_payloads, p_meta) WITH ORDINALITY u(id, seq, line, run_at, delay, expires_at, payload, meta, place)
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

-- Remember id and key, for a log that will bring the task. Answers a row for each: created, duplicate or conflict.
CREATE OR REPLACE FUNCTION reserve(p_ids uuid[], p_types text[], p_tenants text[], p_keys text[], p_hashes bytea[], p_windows bigint[], p_patience integer, p_now bigint)
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
      IF FOUND THEN
        v := (r.place, 'created', r.id::text, true, NULL, NULL)::verdict;
      ELSE  -- another payload under the same id is a conflict, as the caller finds by comparing
        SELECT r.place, 'duplicate', r.id::text, b.id IS NULL AND k.state IS NULL, 'compare', coalesce(b.payload::text, 'hash:' || encode(k.hash, 'hex'))
        INTO v FROM (SELECT r.id AS id) u LEFT JOIN body b ON b.id = u.id LEFT JOIN known k ON k.id = u.id;
      END IF;
    END IF;
    RETURN NEXT v;
  END LOOP;
END $$;

-- Over its limit when it was submitted: its record is that of a dead task.
CREATE OR REPLACE FUNCTION reject_task(p_id uuid, p_seq bigint, p_flags integer, p_open_edges integer, now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  owed json;
BEGIN
  INSERT INTO ended (id, seq, state, flags, version, executions, failures, crashes, open_edges, finished_at, error)
  VALUES (p_id, p_seq, 6, p_flags & ~64, 1, 0, 0, 0, p_open_edges, now, '{"code":"rate_limited","message":"over its limit when it was submitted"}');
  INSERT INTO falling (id, state) SELECT p_id, 6 WHERE p_flags & 32 <> 0;
  SELECT json_build_object('id', b.id, 'type', b.type, 'queue', b.queue, 'state', 'dead', 'version', 1) INTO owed FROM body b WHERE b.id = p_id;
  PERFORM owe('ended', p_id::text, owed, now), owe('dead', p_id::text, owed, now);
END $$;

-- What was counted at its submit has another flag now, and what was rejected then holds no key.
UPDATE task SET flags = flags & ~2048 | 8192 WHERE flags & 2048 <> 0;
UPDATE ended SET flags = flags & ~2048 | 8192 | CASE WHEN state = 6 AND executions = 0 AND error::text ~ '^."code" ?: ?"rate_limited"' THEN 4096 ELSE 0 END WHERE flags & 2048 <> 0;
DELETE FROM dedupe d USING ended e WHERE e.id = d.id AND e.flags & 4096 <> 0;

CALL harden('submit', 'make_names', 'reserve');
