-- The whole store. Integers for time (microseconds since 1970), for states and flags (see rows.py) and for lanes.
--
-- Who may write what:
--   a task's own rows (task, body, ended and what hangs on them) are written by whoever holds the lock on its row in task;
--   lanes, shares, counters, stands, starts, turns and the counts of edges are written under the gate (see settle), which is held inside one
--   function call that is a transaction of its own, never by a client and never in a user's transaction;
--   what a step owes to those is a row in an inbox (stir, falling, lowering, late_edge), applied by whoever comes next with the gate.
-- There are no foreign keys: their checks take row locks that wait.

CREATE TABLE store (
  one          boolean PRIMARY KEY DEFAULT true CHECK (one),
  generation   bigint  NOT NULL DEFAULT 0,       -- raised by every change of a setting, so that caches know
  listen_until bigint  NOT NULL DEFAULT 0,       -- events are kept while somebody listens
  wait_until   bigint  NOT NULL DEFAULT 0,       -- ends are announced while somebody waits
  paused_types text[]  NOT NULL DEFAULT '{}',    -- these two: settings that steps read, kept here by apply_settings()
  outbox_kinds text[]  NOT NULL DEFAULT '{}',
  mark_at      bigint  NOT NULL DEFAULT 0,       -- these two: when recovery last looked, and since when every lease has had its time
  fair_since   bigint  NOT NULL DEFAULT 0,
  newest_at    bigint  NOT NULL DEFAULT 0,       -- the latest time seen, so that a clock that was set back is noticed …
  settled_at   bigint  NOT NULL DEFAULT 0,       -- … and when the newest task was submitted, when that was last put right
  created_at   bigint  NOT NULL
) WITH (fillfactor = 10);
INSERT INTO store (created_at) VALUES ((extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

CREATE SEQUENCE seq;                             -- order of submission
CREATE SEQUENCE token;                           -- every lease's; lifted to the clock when a connection finds it behind (a restored store)

CREATE TABLE task (                              -- live tasks only: narrow, and gone when the task ends
  id         uuid     PRIMARY KEY,
  seq        bigint   NOT NULL,
  lane       bigint   NOT NULL,                  -- < 0: the plain line of a queue; > 0: a row of lane
  type       text     NOT NULL,
  state      smallint NOT NULL,
  priority   smallint NOT NULL,
  flags      integer  NOT NULL DEFAULT 0,
  size       integer  NOT NULL DEFAULT 0,        -- bytes of its payload
  version    integer  NOT NULL DEFAULT 1,
  executions integer  NOT NULL DEFAULT 0,
  failures   integer  NOT NULL DEFAULT 0,
  crashes    integer  NOT NULL DEFAULT 0,
  open_edges integer  NOT NULL DEFAULT 0,
  ready_at   bigint   NOT NULL,                  -- its age; of a task that waits, its deadline
  updated_at bigint   NOT NULL,
  expires_at bigint,
  token      bigint,                             -- these four: the lease, or the last one, where its holder ended it
  worker     text,
  request    bigint,
  claimed_at bigint,
  must_end   text,
  phase      text,
  progress   text,
  awaits     text,                               -- signals it waits for, and the last number it has seen: [seen, [names]]
  opened     integer                             -- the version a requeue found, so that its repeat is known
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- A task that can be claimed stands in the first of these or in the second.
CREATE INDEX task_plain  ON task (lane, priority DESC, ready_at, seq) WHERE lane < 0 AND state <= 2;
CREATE INDEX task_lane   ON task (lane, priority DESC, ready_at, seq) WHERE lane > 0 AND state = 0;
CREATE INDEX task_asleep ON task (lane) WHERE lane > 0 AND state > 0;           -- so that its lane stays
CREATE INDEX task_due    ON task (ready_at) WHERE (lane > 0 AND (state = 1 OR state = 2)) OR state = 4;
CREATE INDEX task_held   ON task (worker, request) WHERE state = 3;

CREATE TABLE body (                              -- what never changes after submit, live or ended, until it is pruned
  id          uuid   PRIMARY KEY,
  seq         bigint NOT NULL,
  type        text   NOT NULL,
  queue       text   NOT NULL,
  tenant      text   NOT NULL,
  priority    smallint NOT NULL,
  created_at  bigint NOT NULL,
  run_at      bigint NOT NULL,
  expires_at  bigint,
  timeout     bigint NOT NULL,
  max_crashes integer NOT NULL,
  retry       text,                              -- NULL: the default
  meta        text,                              -- headers, keys, limits: NULL where there are none (see rows.py)
  tags        jsonb,                             -- NULL where there are none
  payload     json   NOT NULL
) WITH (autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX body_seq ON body (seq);
CREATE INDEX body_type   ON body (type, seq);
CREATE INDEX body_tenant ON body (tenant, seq) WHERE tenant <> '';
CREATE INDEX body_tags   ON body USING gin (tags jsonb_path_ops) WHERE tags IS NOT NULL;

CREATE TABLE ended (                             -- the row of an ended task, with the attempt that ended it
  id          uuid     PRIMARY KEY,
  seq         bigint   NOT NULL,
  state       smallint NOT NULL,
  flags       integer  NOT NULL,
  version     integer  NOT NULL,
  executions  integer  NOT NULL,
  failures    integer  NOT NULL,
  crashes     integer  NOT NULL,
  open_edges  integer  NOT NULL,
  finished_at bigint   NOT NULL,
  token       bigint,
  worker      text,
  claimed_at  bigint,
  started_at  bigint,
  must_end    text,
  phase       text,
  progress    text,
  opened      integer,
  result      json,
  error       json,
  updated_at  bigint                             -- NULL: when it finished; a restored record may say otherwise
) WITH (autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ended_at     ON ended (state, finished_at);
CREATE INDEX ended_failed ON ended (state, seq) WHERE state >= 6;

CREATE TABLE task_attempts (                     -- all but the one that ended the task, which lies in its own row
  id         uuid    NOT NULL,
  number     integer NOT NULL,
  worker     text    NOT NULL,
  token      bigint  NOT NULL,
  started_at bigint  NOT NULL,
  ended_at   bigint  NOT NULL,
  outcome    text    NOT NULL,
  error      json,
  PRIMARY KEY (id, number, token)
);

CREATE TABLE queue (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text    NOT NULL UNIQUE,
  paused     boolean NOT NULL DEFAULT false,     -- these three: settings, kept here by apply_settings()
  priorities integer[],                          -- weights, critical first; NULL: strict
  weights    jsonb   NOT NULL DEFAULT '{}',      -- of its shares, by name
  turn       bigint  NOT NULL DEFAULT 0,         -- virtual time of the share served last
  levels     bigint[] NOT NULL DEFAULT '{0,0,0,0}', -- virtual times of its priorities (low first), where they have weights
  idle       boolean NOT NULL DEFAULT false      -- a claim found nothing: the next arrival is announced
) WITH (fillfactor = 50);

CREATE TABLE share (
  id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue bigint NOT NULL,
  name  text   NOT NULL,
  turn  bigint NOT NULL DEFAULT 0,               -- virtual time: 1e6 / weight a task
  top   smallint,                                -- the best priority in its open lanes; NULL: nothing
  UNIQUE (queue, name)
) WITH (fillfactor = 50);
CREATE INDEX share_open ON share (queue, top DESC, turn, id) WHERE top IS NOT NULL;

CREATE TABLE lane (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue     bigint NOT NULL,
  share     bigint NOT NULL,
  limits    text[] NOT NULL,                     -- names of its limits, sorted
  counters  bigint[] NOT NULL,                   -- the rows of counter in the same order
  order_key text   NOT NULL,
  type      text   NOT NULL,                     -- of tasks moved here because a claim could not take them
  needs     text   NOT NULL DEFAULT '',          -- the type a worker must know to be served from here
  top       smallint,                            -- priority and age of its next task; NULL: nothing is ready
  head_at   bigint,
  head_seq  bigint,
  shut      bigint,                              -- the counter it stands at; NULL: open
  UNIQUE (queue, share, limits, order_key, type)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lane_open ON lane (share, top DESC, head_at, head_seq) WHERE top IS NOT NULL AND shut IS NULL;
CREATE INDEX lane_shut ON lane (shut, share, top DESC, head_at, head_seq) WHERE top IS NOT NULL AND shut IS NOT NULL;
CREATE INDEX lane_needs ON lane (queue) WHERE needs <> '' AND top IS NOT NULL AND shut IS NULL AND limits <> '{}';
CREATE INDEX lane_idle ON lane (id) WHERE top IS NULL;

CREATE TABLE ordered (                           -- tasks with an order key that have not ended
  lane bigint NOT NULL,
  seq  bigint NOT NULL,
  id   uuid   NOT NULL,
  PRIMARY KEY (lane, seq)
);

CREATE TABLE expiry (                            -- when to look whether a task has expired
  at bigint NOT NULL,
  id uuid   NOT NULL,
  PRIMARY KEY (at, id)
);

CREATE TABLE stand (                             -- shares that have lanes shut at a limit, so that its room goes round in turn
  counter bigint   NOT NULL,
  share   bigint   NOT NULL,
  queue   bigint   NOT NULL,
  turn    bigint   NOT NULL,                     -- the share's
  top     smallint NOT NULL,                     -- the best priority of those lanes
  PRIMARY KEY (counter, share)
);
CREATE INDEX stand_best ON stand (counter, queue, top DESC, turn, share);
CREATE INDEX stand_share ON stand (share);

CREATE TABLE counter (                           -- one per limit in use: what is counted against it
  id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name    text    NOT NULL UNIQUE,
  rate    integer,                               -- these three: its numbers, kept here by apply_settings()
  span    bigint  NOT NULL DEFAULT 1000000,      -- the length of its window
  cap     integer,
  running integer NOT NULL DEFAULT 0,
  idle_at bigint  NOT NULL DEFAULT 0,            -- when its window is empty, if nothing starts before
  wake_at bigint                                 -- when its window has room again and a lane stands at it
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX counter_wake ON counter (wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE start (                             -- the run-length log of a rate: how many started at which (rounded up) time
  counter bigint  NOT NULL,
  at      bigint  NOT NULL,
  tasks   integer NOT NULL,
  PRIMARY KEY (counter, at)
);

CREATE TABLE taken (                             -- answers of take, for its repeats
  id       text PRIMARY KEY,
  granted  boolean NOT NULL,
  retry_at bigint,
  until    bigint NOT NULL
);
CREATE INDEX taken_until ON taken (until);

CREATE TABLE edge (
  number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  parent     uuid     NOT NULL,                  -- who waits
  child      uuid     NOT NULL,                  -- for whom
  on_failure smallint NOT NULL,
  outcome    smallint,                           -- NULL: it is open, or fell with what the child's own record says; else what it fell with
  result     json,                               -- … and this is the child's result then
  UNIQUE (parent, child)
) WITH (fillfactor = 90);
CREATE INDEX edge_order ON edge (parent, number);
CREATE INDEX edge_child ON edge (child, number);

-- The inboxes.
CREATE TABLE stir (                              -- what happened in a lane: slots returned, tasks came or left
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  lane   bigint  NOT NULL,
  freed  integer NOT NULL DEFAULT 0,
  look   boolean NOT NULL DEFAULT true,          -- tasks came or left: what is next in it may have changed
  at     bigint  NOT NULL DEFAULT 0              -- nothing that came is older than this; so a look need not begin with what is long gone
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE falling (                           -- ended tasks whose edges are still to fall, in slices
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id     uuid     NOT NULL,
  state  smallint NOT NULL,
  after  bigint   NOT NULL DEFAULT 0             -- the last edge done
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX falling_id ON falling (id);
CREATE TABLE lowering (                          -- fallen edges that somebody's lock on the waiting task kept from being counted
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id     uuid    NOT NULL,
  edges  integer NOT NULL,
  failed boolean NOT NULL                        -- one of them means the end of the task
);
CREATE TABLE late_edge (                         -- edges to tasks that were there before: they may have ended, or end now
  edge bigint PRIMARY KEY
);

CREATE TABLE checkpoint (
  id    uuid  NOT NULL,
  name  text  NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (id, name)
);

CREATE TABLE signal (
  id        uuid    NOT NULL,
  number    integer NOT NULL,
  signal_id text    NOT NULL,
  name      text    NOT NULL,
  data      bytea   NOT NULL,
  at        bigint  NOT NULL,
  PRIMARY KEY (id, number),
  UNIQUE (id, signal_id)
);

CREATE TABLE dedupe (                            -- idempotency keys; they outlive their task
  tenant text   NOT NULL,
  type   text   NOT NULL,
  key    text   NOT NULL,
  id     uuid   NOT NULL,
  hash   bytea  NOT NULL,
  until  bigint NOT NULL,
  PRIMARY KEY (tenant, type, key)
);
CREATE INDEX dedupe_until ON dedupe (until);

CREATE TABLE known (                             -- ids whose record is gone (their final state), or only reserved (state NULL)
  id      uuid PRIMARY KEY,
  state   smallint,
  version integer NOT NULL DEFAULT 0,            -- the one it was deleted at, so that the repeat is known
  hash    bytea  NOT NULL,
  until   bigint NOT NULL
);
CREATE INDEX known_until ON known (until);

CREATE TABLE held (                              -- unique keys, each with the task that holds it
  tenant text NOT NULL,
  type   text NOT NULL,
  key    text NOT NULL,
  id     uuid NOT NULL,
  PRIMARY KEY (tenant, type, key)
);
CREATE INDEX held_id ON held (id);

CREATE TABLE moving (                            -- types that got limits: their older tasks are moved into lanes, in slices
  type  text PRIMARY KEY,
  after bigint NOT NULL DEFAULT 0,               -- the last one looked at
  again boolean NOT NULL DEFAULT false           -- somebody held one of them: look at all of them once more
);

CREATE TABLE workers (
  id        text PRIMARY KEY,
  queues    text[] NOT NULL,
  types     text[] NOT NULL,
  lease     bigint NOT NULL,
  joined_at bigint NOT NULL,
  beat_at   bigint NOT NULL,
  request   bigint NOT NULL DEFAULT 0,           -- the last that took tasks
  oldest    bigint NOT NULL DEFAULT 0,           -- of its requests before this one it holds nothing any more
  info      text   NOT NULL
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE item (
  kind        text    NOT NULL,
  name        text    NOT NULL,
  operator    boolean NOT NULL,                  -- put by a person, stands over what code declares
  value       bytea   NOT NULL,
  version     integer NOT NULL,
  app         text    NOT NULL DEFAULT '',       -- which app declared it, at which version
  app_version integer NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name, operator)
);

CREATE TABLE term (
  role   text PRIMARY KEY,
  number bigint NOT NULL,
  holder text,                                   -- NULL: resigned
  until  bigint NOT NULL                         -- another may lead from then on
) WITH (fillfactor = 30);

CREATE TABLE outbox (
  number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind    text   NOT NULL,
  subject text   NOT NULL,
  data    bytea  NOT NULL,
  at      bigint NOT NULL,
  xact    xid8   NOT NULL DEFAULT pg_current_xact_id()  -- its transaction: entries are read up to the oldest one still running, so none is passed over
);
CREATE INDEX outbox_kind ON outbox (kind, number);
CREATE INDEX outbox_subject ON outbox (subject);

CREATE TABLE event (                             -- a ring, filled only while somebody listens
  number  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind    text    NOT NULL,
  subject text    NOT NULL,
  version integer NOT NULL,
  at      bigint  NOT NULL,
  data    text,
  xact    xid8    NOT NULL DEFAULT pg_current_xact_id()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX event_at ON event (at);

-- What every entry point carries: its own search path, and plans that are made once and go by the indexes.
--
-- Which index is for the statements to say. Live tasks come and go, so their table is often looked at (ANALYZE) while it is empty; for a long time after that the
-- planner takes it for one row, and reads all of it in the order of an index rather than look for rows one by one. So in every statement
--   rows are joined to what names them by `id = ANY (ARRAY[u.id])`, which can only be a look for each, and whether there is one is asked by a subquery that
--   gives a value (`(SELECT id …) IS NULL`), not by EXISTS, which is a join as well;
--   what is locked in the order of ids is sorted by uuid_send(id), the same order, which no index has;
--   `+ 0` keeps a partial index on a column (state, top, shut) away from those who come by the id.
CREATE PROCEDURE harden(VARIADIC names text[]) LANGUAGE plpgsql AS $$
DECLARE
  name text;
  setting text;
BEGIN
  FOREACH name IN ARRAY names LOOP
    EXECUTE format('ALTER FUNCTION %I.%I SET search_path FROM CURRENT', current_schema(), name);
    FOREACH setting IN ARRAY ARRAY['plan_cache_mode = force_generic_plan', 'jit = off', 'enable_seqscan = off', 'enable_mergejoin = off', 'enable_bitmapscan = off'] LOOP
      EXECUTE format('ALTER FUNCTION %I.%I SET %s', current_schema(), name, setting);
    END LOOP;
  END LOOP;
END $$;

-- The store's clock; a test passes its own.
CREATE FUNCTION moment(given bigint) RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN coalesce(given, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
