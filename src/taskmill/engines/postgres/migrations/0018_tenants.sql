-- Keys of a tenant are its own: order keys, limits by key and shares of live tasks that have a tenant get the tenant before them, parted by chr(31), as submit writes them now.
-- Each task keeps its number and its age, and so its place. Nothing is over-admitted: who runs is counted anew, and a rate's log goes with every key made of it.

-- A key in its tenant's scope; one that is there already stays as it is.
CREATE FUNCTION scoped_key(p_tenant text, p_key text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_tenant = '' OR p_key = '' OR strpos(p_key, chr(31)) > 0 THEN p_key ELSE p_tenant || chr(31) || p_key END
$$;

CREATE FUNCTION scoped_limits(p_tenant text, p_limits text[]) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(array_agg(CASE WHEN strpos(l.name, ':') = 0 THEN l.name
    ELSE split_part(l.name, ':', 1) || ':' || scoped_key(p_tenant, substr(l.name, strpos(l.name, ':') + 1)) END ORDER BY l.place), '{}')
  FROM unnest(p_limits) WITH ORDINALITY l(name, place)
$$;

-- The meta of a task with its keys in scope. Its order of members is of no meaning.
CREATE FUNCTION scoped_meta(p_tenant text, p_meta text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  m jsonb := p_meta::jsonb;
BEGIN
  IF m ? 'order' THEN
    m := jsonb_set(m, '{order}', to_jsonb(scoped_key(p_tenant, m ->> 'order')));
  END IF;
  IF m ? 'share' AND m ->> 'share' <> p_tenant THEN
    m := jsonb_set(m, '{share}', to_jsonb(scoped_key(p_tenant, m ->> 'share')));
  END IF;
  IF m ? 'limits' THEN
    m := jsonb_set(m, '{limits}', to_jsonb(scoped_limits(p_tenant, ARRAY(SELECT jsonb_array_elements_text(m -> 'limits')))));
  END IF;
  RETURN m::text;
END $$;

CREATE FUNCTION scope_lanes() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  now bigint := moment(NULL);
  r record;
  target bigint;
  moved integer := 0;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM task t JOIN body b ON b.id = t.id WHERE t.lane > 0 AND b.tenant <> '') THEN
    RETURN 0;
  END IF;
  PERFORM gate();
  LOCK TABLE task IN SHARE ROW EXCLUSIVE MODE;
  WHILE apply_inboxes(now) LOOP
  END LOOP;
  FOR r IN
    SELECT t.id, t.seq, t.lane, t.flags, b.tenant, b.meta, l.queue, l.limits, l.counters, l.order_key, l.type, s.name AS share, scoped_limits(b.tenant, l.limits) AS new_limits,
      CASE WHEN s.name = b.tenant THEN s.name ELSE scoped_key(b.tenant, s.name) END AS new_share, scoped_key(b.tenant, l.order_key) AS new_order
    FROM task t JOIN body b ON b.id = t.id JOIN lane l ON l.id = t.lane JOIN share s ON s.id = l.share
    WHERE b.tenant <> '' ORDER BY t.seq
  LOOP
    CONTINUE WHEN (r.limits, r.share, r.order_key) IS NOT DISTINCT FROM (r.new_limits, r.new_share, r.new_order);
    target := lane_id(r.queue, r.new_share, r.new_limits, r.new_order, r.type);
    UPDATE task SET lane = target WHERE id = r.id;
    UPDATE body SET meta = scoped_meta(r.tenant, r.meta) WHERE id = r.id;
    UPDATE ordered SET lane = target WHERE lane = r.lane AND seq = r.seq;
    INSERT INTO start (counter, at, tasks)
    SELECT abs(n.id), s.at, s.tasks FROM unnest(r.counters, (SELECT counters FROM lane WHERE id = target)) n(old, id) JOIN start s ON s.counter = abs(n.old)
    WHERE n.old <> n.id ON CONFLICT DO NOTHING;
    INSERT INTO stir (lane) VALUES (r.lane), (target);
    moved := moved + 1;
  END LOOP;
  UPDATE counter c SET running = k.n, idle_at = greatest(c.idle_at, now + c.span) FROM (
    SELECT c2.id, (SELECT count(*) FROM task t JOIN lane l ON l.id = t.lane WHERE t.state = 3 AND (c2.id = ANY (l.counters) OR -c2.id = ANY (l.counters))) AS n FROM counter c2) k
  WHERE c.id = k.id AND c.running <> k.n;
  WHILE apply_inboxes(now) LOOP
  END LOOP;
  RETURN moved;
END $$;

DO $$ BEGIN PERFORM scope_lanes(); END $$;
