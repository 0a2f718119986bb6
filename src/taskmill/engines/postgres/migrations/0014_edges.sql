-- Edges onto tasks that are not there yet (reserved, or to be restored), and waiting tasks that nothing would wake.

ALTER TABLE late_edge ADD COLUMN absent boolean NOT NULL DEFAULT false;  -- its child is not there: looked at again when it comes
CREATE INDEX late_edge_near ON late_edge (edge) WHERE NOT absent;
CREATE INDEX late_edge_absent ON late_edge (edge) WHERE absent;
CREATE INDEX task_waits ON task (id) WHERE state = 4;
CREATE INDEX lowering_id ON lowering (id);

-- Edges onto tasks that were there before them: such a task is told that somebody waits for it, and one that has ended lets its edge fall now.
-- A task that somebody has locked is left: it may be ending. One that is not there is left until it comes.
CREATE OR REPLACE FUNCTION hook_late_edges(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  numbers bigint[];
  children uuid[];
  locked uuid[];
  parents uuid[];
  counts integer[];
  fails boolean[];
BEGIN
  SELECT array_agg(l.edge), array_agg(DISTINCT e.child) INTO numbers, children
  FROM (SELECT edge FROM late_edge WHERE NOT absent ORDER BY edge LIMIT 250) l JOIN edge e ON e.number = ANY (ARRAY[l.edge]);
  IF numbers IS NULL THEN
    DELETE FROM late_edge l WHERE NOT l.absent AND (SELECT e.number FROM edge e WHERE e.number = l.edge) IS NULL;
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
  ), away AS (
    UPDATE late_edge l SET absent = true FROM late
    WHERE l.edge = ANY (ARRAY[late.number]) AND late.state IS NULL AND (SELECT b.id FROM body b WHERE b.id = late.child) IS NULL
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
  RETURN cardinality(numbers) = 250 AND (parents IS NOT NULL OR locked <> '{}');
END $$;

-- Everything that is owed, in bounded pieces; true if there is more. The caller holds the gate.
CREATE OR REPLACE FUNCTION apply_inboxes(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  more boolean;
BEGIN
  more := hook_late_edges(now);
  PERFORM lower_again(now);
  PERFORM fall(now);
  more := open_due(now) OR more;
  PERFORM take_stirs(now);
  RETURN more OR EXISTS (SELECT 1 FROM falling) OR any_stir();
END $$;

-- Whether a step has left something to be applied, or time has.
CREATE OR REPLACE FUNCTION anything_owed(now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN any_stir() OR EXISTS (SELECT 1 FROM falling) OR EXISTS (SELECT 1 FROM late_edge WHERE NOT absent) OR EXISTS (SELECT 1 FROM lowering)
    OR EXISTS (SELECT 1 FROM task WHERE ((lane > 0 AND (state = 1 OR state = 2)) OR state = 4) AND ready_at <= now)
    OR EXISTS (SELECT 1 FROM counter WHERE wake_at IS NOT NULL AND wake_at <= now);
END $$;

-- These tasks have come: edges that waited for them are looked at.
CREATE FUNCTION have_come(p_ids uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE late_edge l SET absent = false FROM edge e WHERE e.child = ANY (p_ids) AND l.edge = ANY (ARRAY[e.number]) AND l.absent;
END $$;

-- Whether a waiting task has nothing left to wait for, and nothing in the inboxes that would say so.
CREATE FUNCTION is_stuck(t task) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN t.state = 4 AND t.ready_at >= 4611686018427387904 AND t.flags & (64 | 128) = 0
    AND (SELECT l.number FROM lowering l WHERE l.id = t.id LIMIT 1) IS NULL
    AND (SELECT e.number FROM edge e WHERE e.parent = t.id AND (
        (SELECT l.edge FROM late_edge l WHERE l.edge = e.number) IS NOT NULL OR (SELECT f.number FROM falling f WHERE f.id = e.child LIMIT 1) IS NOT NULL
        OR e.outcome IS NULL AND (SELECT d.id FROM ended d WHERE d.id = e.child AND (d.state + 0 = 5 OR e.on_failure <> 2)) IS NULL) LIMIT 1) IS NULL;
END $$;

-- Such among the next n waiting tasks behind this id; and the id where to go on, NULL at the end.
CREATE FUNCTION look_for_stuck(p_after uuid, p_n integer, OUT ids uuid[], OUT last uuid) LANGUAGE plpgsql STABLE AS $$
DECLARE
  looked uuid[] := ARRAY(SELECT t.id FROM task t WHERE t.state = 4 AND t.id > coalesce(p_after, '00000000-0000-0000-0000-000000000000') ORDER BY t.id LIMIT p_n);
BEGIN
  ids := ARRAY(SELECT t.id FROM task t WHERE t.id = ANY (looked) AND is_stuck(t));
  last := CASE WHEN cardinality(looked) = p_n THEN looked[p_n] END;
END $$;

-- They become ready; one that an edge has failed is cancelled. Also edges whose child came unseen are looked at again. How many there were, and where to go on.
CREATE FUNCTION free_stuck(p_after uuid, p_n integer, p_now bigint, OUT freed integer, OUT last uuid) LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  found_ids uuid[];
  t task;
BEGIN
  freed := 0;
  UPDATE late_edge l SET absent = false FROM (SELECT k.edge FROM late_edge k WHERE k.absent ORDER BY k.edge LIMIT p_n) k
  WHERE l.edge = ANY (ARRAY[k.edge]) AND (SELECT b.id FROM edge e JOIN body b ON b.id = ANY (ARRAY[e.child]) WHERE e.number = k.edge) IS NOT NULL;
  SELECT s.ids, s.last INTO found_ids, last FROM look_for_stuck(p_after, p_n) s;
  IF found_ids = '{}' THEN
    RETURN;
  END IF;
  PERFORM gate();
  now := moment(p_now);
  FOR t IN SELECT * FROM task k WHERE k.id = ANY (found_ids) ORDER BY uuid_send(k.id) FOR UPDATE SKIP LOCKED LOOP
    CONTINUE WHEN NOT is_stuck(t);
    t.open_edges := 0;
    IF EXISTS (SELECT 1 FROM edge e LEFT JOIN ended d ON d.id = ANY (ARRAY[e.child]) WHERE e.parent = t.id AND coalesce(e.outcome, d.state) <> 5 AND e.on_failure = 0) THEN
      PERFORM make_cancelled(t, now, '{"code":"edge_failed","message":"a task it waits for did not complete"}', 'edge_failed');
    ELSE
      PERFORM wake_up(t, now);
    END IF;
    freed := freed + 1;
  END LOOP;
END $$;

CALL harden('settle', 'have_come', 'look_for_stuck', 'free_stuck');
