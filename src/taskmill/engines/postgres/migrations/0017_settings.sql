-- Settings: what many types declare together is applied once; a setting that no step obeys wakes nobody; a pause waits for claims; terms grow by the clock.

CREATE OR REPLACE FUNCTION setting_changed(p_kind text, p_name text, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM settings_changed(ARRAY[p_kind], ARRAY[p_name], now);
END $$;

-- These have changed: every following step obeys them. Whoever changes a limit has the gate, before all else.
CREATE FUNCTION settings_changed(p_kinds text[], p_names text[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  r record;
BEGIN
  PERFORM tell('setting.changed', u.kind || '/' || u.name, 0, now) FROM unnest(p_kinds, p_names) u(kind, name);
  IF p_kinds && ARRAY['type', 'limit', 'queue', 'pause', 'outbox'] THEN
    UPDATE store SET generation = generation + 1;
  END IF;
  IF p_kinds && ARRAY['queue', 'pause', 'outbox'] THEN
    PERFORM apply_settings();
  END IF;
  FOR r IN SELECT u.name FROM unnest(p_kinds, p_names) u(kind, name) WHERE u.kind = 'limit' LOOP
    PERFORM apply_limit(r.name);
    PERFORM wake(ARRAY(SELECT id FROM counter WHERE name = r.name OR (name >= r.name || ':' AND name < r.name || ';')), now);
  END LOOP;
  IF p_kinds && ARRAY['type', 'limit', 'queue', 'pause', 'schedule', 'outbox'] THEN
    PERFORM pg_notify(current_schema(), 'work');
  END IF;
END $$;

-- What an app declares: limits, types, schedules; never over one of a higher version. Most often nothing of it is new. A schedule that its own app no longer
-- declares is paused as orphaned; declared again, it goes on.
CREATE OR REPLACE FUNCTION declare_items(p_app text, p_version integer, p_kinds text[], p_names text[], p_values bytea[], now bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  kinds text[];
  names text[];
  befores jsonb[];
BEGIN
  IF NOT EXISTS (SELECT 1 FROM item WHERE kind = 'schedule' AND NOT operator AND app = p_app) AND NOT EXISTS (
    SELECT 1 FROM unnest(p_kinds, p_names, p_values) u(kind, name, value) LEFT JOIN item i ON i.kind = u.kind AND i.name = u.name AND NOT i.operator
    WHERE (i.app_version > p_version OR (i.value = u.value AND i.app_version = p_version)) IS NOT TRUE)
  THEN
    RETURN;
  END IF;
  PERFORM settings_turn(CASE WHEN 'limit' = ANY (p_kinds) THEN 'limit' ELSE 'type' END);
  DELETE FROM item i USING unnest(p_kinds, p_names) u(kind, name)
  WHERE u.kind = 'schedule' AND i.kind = 'pause' AND i.name = 'schedule:' || u.name AND NOT i.operator AND i.app_version <= p_version;
  WITH declared AS MATERIALIZED (
    SELECT DISTINCT ON (u.kind, u.name) u.kind, u.name, u.value, i.value AS was, setting_of(u.kind, u.name) AS before FROM (
      SELECT * FROM unnest(p_kinds, p_names, p_values) x(kind, name, value)
      UNION ALL
      SELECT 'pause', 'schedule:' || i.name, '{"reason":"orphaned"}'::bytea FROM item i
      WHERE i.kind = 'schedule' AND NOT i.operator AND i.app = p_app AND i.app_version <= p_version
        AND NOT EXISTS (SELECT 1 FROM unnest(p_kinds, p_names) x(kind, name) WHERE x.kind = 'schedule' AND x.name = i.name)) u
    LEFT JOIN item i ON i.kind = u.kind AND i.name = u.name AND NOT i.operator
    WHERE (i.app_version > p_version OR (i.value = u.value AND i.app_version = p_version)) IS NOT TRUE
  ), put AS (
    INSERT INTO item AS i (kind, name, operator, value, version, app, app_version) SELECT d.kind, d.name, false, d.value, 1, p_app, p_version FROM declared d
    ON CONFLICT (kind, name, operator) DO UPDATE
    SET value = excluded.value, version = i.version + (i.value <> excluded.value)::integer, app = excluded.app, app_version = excluded.app_version
  )
  SELECT array_agg(d.kind), array_agg(d.name), array_agg(d.before) INTO kinds, names, befores FROM declared d WHERE d.was IS DISTINCT FROM d.value;
  IF kinds IS NOT NULL THEN
    PERFORM settings_changed(kinds, names, now);
    PERFORM type_changed(u.name, u.before) FROM unnest(kinds, names, befores) u(kind, name, before) WHERE u.kind = 'type';
  END IF;
END $$;

-- Answers the version that holds now, and whether it is the caller's: not, where the caller has seen another.
CREATE OR REPLACE FUNCTION put_setting(p_kind text, p_name text, p_operator boolean, p_value bytea, p_version integer, p_now bigint, OUT done boolean, OUT version integer)
LANGUAGE plpgsql AS $$
DECLARE
  now bigint;
  old item;
  before jsonb;
BEGIN
  IF p_kind = 'pause' THEN  -- before all else: whoever waits for this may hold the gate
    PERFORM pg_advisory_xact_lock(pause_lock());
  END IF;
  PERFORM settings_turn(p_kind);
  now := moment(p_now);
  SELECT * INTO old FROM item i WHERE i.kind = p_kind AND i.name = p_name AND i.operator = p_operator;
  version := coalesce(old.version, 0);
  done := p_version IS NULL OR p_version = version OR (p_version + 1 = version AND old.value = p_value);
  IF NOT done OR p_version + 1 = version OR (p_version IS NULL AND old.value IS NOT DISTINCT FROM p_value) THEN
    RETURN;
  END IF;
  version := version + 1;
  before := setting_of('type', p_name);
  INSERT INTO item AS i (kind, name, operator, value, version, app, app_version) VALUES (p_kind, p_name, p_operator, p_value, put_setting.version, '', 0)
  ON CONFLICT ON CONSTRAINT item_pkey DO UPDATE SET value = excluded.value, version = excluded.version, app = excluded.app, app_version = excluded.app_version;
  PERFORM setting_changed(p_kind, p_name, now);
  IF p_kind = 'type' THEN
    PERFORM type_changed(p_name, before);
  END IF;
  IF p_operator THEN
    PERFORM owe('audit', p_kind || '/' || p_name, json_build_object('kind', p_kind, 'name', p_name, 'version', version), now);
  END IF;
END $$;

CREATE OR REPLACE FUNCTION lead_role(p_role text, p_holder text, p_lasts bigint, p_now bigint, p_mono bigint) RETURNS bigint LANGUAGE plpgsql AS $$
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
  t.number := greatest(t.number + 1, moment(p_now) - 1577836800000000);  -- as tokens: a store that was made anew never repeats one
  UPDATE term SET number = t.number, holder = p_holder, until = mono + p_lasts WHERE role = p_role;
  INSERT INTO event (kind, subject, version, at, data)
  SELECT 'leader.changed', p_role, t.number, moment(p_now), json_build_object('holder', p_holder)::text FROM store WHERE listen_until > moment(p_now);
  RETURN t.number;
END $$;

DROP FUNCTION declare_item;

CALL harden('join_worker', 'put_setting', 'drop_setting', 'lead_role');
