-- earlier: 2fb86146dc12cda675d919248b41b519ecf1161bfdcf869b825223fab096032b
-- Steps inside a user's own transaction, over whichever driver it was begun with: one text goes in, one comes out. And the inbox of those who consume messages.

CREATE TABLE inbox (                             -- messages that a committed transaction has dealt with
  source text   NOT NULL,
  id     text   NOT NULL,
  at     bigint NOT NULL,
  PRIMARY KEY (source, id)
);
CREATE INDEX inbox_at ON inbox (at);

-- First time? A message that somebody's open transaction deals with is waited for, not for ever: NULL.
CREATE FUNCTION first_time(p_source text, p_id text, p_patience integer, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  patience text := current_setting('lock_timeout');
  is_first boolean;
BEGIN
  PERFORM set_config('lock_timeout', p_patience::text, true);
  INSERT INTO inbox (source, id, at) VALUES (p_source, p_id, moment(p_now)) ON CONFLICT DO NOTHING;
  is_first := FOUND;
  PERFORM set_config('lock_timeout', patience, true);
  RETURN is_first;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  RETURN NULL;
END $$;

-- Messages that were dealt with longer ago than `p_kept` are forgotten, at most `p_n` of them; how many, NULL when the term is over.
CREATE FUNCTION prune_inbox(p_role text, p_holder text, p_number bigint, p_n integer, p_kept bigint, p_now bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  gone integer;
BEGIN
  IF NOT holds_term(p_role, p_holder, p_number) THEN
    RETURN NULL;
  END IF;
  DELETE FROM inbox i USING (SELECT source, id FROM inbox WHERE at < moment(p_now) - p_kept ORDER BY at LIMIT p_n FOR UPDATE SKIP LOCKED) old
  WHERE i.source = old.source AND i.id = old.id;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END $$;

-- What one of these verbs answers, as a list of rows. A step that goes through here does not announce: the transaction is its user's.
CREATE FUNCTION answer_of(p_verb text, c json) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
  patience text := current_setting('lock_timeout');
  found_rows json;
BEGIN
  CASE p_verb
    WHEN 'submit' THEN
      SELECT json_agg(json_build_array(v.place, v.status, v.id, v.reserved, v.code, v.message)) INTO found_rows
      FROM submit_document(c -> 'batch', (c ->> 'generation')::bigint, (c ->> 'patience')::integer, false, (c ->> 'now')::bigint) v;
    WHEN 'finish' THEN
      SELECT json_agg(json_build_array(e.task, e.token, e.code, e.message, e.state)) INTO found_rows
      FROM json_to_record(c) x(worker text, ids uuid[], tokens bigint[], started bigint[], results text[], rest json, generation bigint, patience integer, now bigint),
        LATERAL finish(x.worker, x.ids, x.tokens, x.started, x.results, x.rest, x.generation, x.patience, false, x.now) e;
    WHEN 'settings' THEN
      SELECT json_agg(json_build_array(s.generation, i.kind, i.name, convert_from(i.value, 'UTF8')) ORDER BY i.kind, i.name, i.operator) INTO found_rows
      FROM store s LEFT JOIN item i ON i.kind IN ('type', 'limit', 'queue', 'pause', 'outbox');
    WHEN 'items' THEN
      SELECT json_agg(json_build_array(i.name, convert_from(i.value, 'UTF8'), i.version, i.operator)) INTO found_rows
      FROM (SELECT DISTINCT ON (name) * FROM item WHERE kind = c ->> 'kind' ORDER BY name, operator DESC) i;
    WHEN 'inbox' THEN
      found_rows := json_build_array(json_build_array(first_time(c ->> 'source', c ->> 'id', (c ->> 'patience')::integer, (c ->> 'now')::bigint)));
    WHEN 'names' THEN
      PERFORM set_config('lock_timeout', c ->> 'patience', true);
      PERFORM make_names(c -> 'lines');
      PERFORM set_config('lock_timeout', patience, true);
  END CASE;
  RETURN json_build_object('rows', coalesce(found_rows, '[]'));
END $$;

-- The entry point. `p_call` names the store that its caller means, by when it was made. Whatever goes wrong in here is answered, with its SQLSTATE, and leaves the
-- user's transaction as it was: a statement that fails would take it down.
CREATE FUNCTION through(p_verb text, p_call text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  IF (p_call::json ->> 'store')::bigint <> (SELECT created_at FROM store) THEN
    RETURN '{"other":true}';
  END IF;
  RETURN answer_of(p_verb, p_call::json)::text;
EXCEPTION WHEN OTHERS THEN
  RETURN json_build_object('state', SQLSTATE, 'error', SQLERRM)::text;
END $$;

-- There is work in these queues, since a user's transaction has committed.
CREATE FUNCTION hint_work(p_queues text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM announce(ARRAY(SELECT id FROM queue WHERE name = ANY (p_queues)));
END $$;

CALL harden('through', 'hint_work', 'prune_inbox');
