-- The whole store. Integers for time (microseconds since 1970), for states (see rows.py) and for lanes.
-- A hot row is narrow and is updated in place; what never changes after submit lies in body, what ended in ending.

CREATE TABLE taskmill_store (
  one          INTEGER PRIMARY KEY CHECK (one = 1),
  token        INTEGER NOT NULL,            -- the last one given; each is the larger of this + 1 and the microseconds since 2020
  seq          INTEGER NOT NULL DEFAULT 0,  -- the last one given; never given again, also when its task is gone
  generation   INTEGER NOT NULL DEFAULT 0,  -- raised by every change of a setting, so that caches know
  listen_until INTEGER NOT NULL DEFAULT 0,  -- events are kept while somebody listens
  created_at   INTEGER NOT NULL
);

CREATE TABLE taskmill_task (
  seq          INTEGER PRIMARY KEY,         -- order of submission
  id           TEXT    NOT NULL UNIQUE,
  type         TEXT    NOT NULL,
  queue        TEXT    NOT NULL,
  tenant       TEXT    NOT NULL,
  lane         INTEGER NOT NULL,            -- < 0: the plain line of a queue; > 0: a row of lane
  state        INTEGER NOT NULL,
  priority     INTEGER NOT NULL,
  ready_at     INTEGER NOT NULL,            -- its age; of a task that waits, its deadline
  version      INTEGER NOT NULL DEFAULT 1,
  executions   INTEGER NOT NULL DEFAULT 0,
  failures     INTEGER NOT NULL DEFAULT 0,
  crashes      INTEGER NOT NULL DEFAULT 0,
  flags        INTEGER NOT NULL DEFAULT 0,
  open_edges   INTEGER NOT NULL DEFAULT 0,
  created_at   INTEGER NOT NULL,
  updated_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  finished_at  INTEGER,
  token        INTEGER,                     -- these five: the lease, or the attempt that ended it
  worker       TEXT,
  request      INTEGER,
  claimed_at   INTEGER,
  started_at   INTEGER,
  must_end     TEXT,
  phase        TEXT,
  progress     TEXT,
  awaits       TEXT,                        -- signals it waits for, and the last number it has seen
  opened       INTEGER                      -- the version a requeue found, so that its repeat is known
);
-- A task that can be claimed stands in the first of these or in the second.
CREATE INDEX taskmill_task_plain ON taskmill_task (lane, priority DESC, ready_at, seq) WHERE lane < 0 AND state <= 2;
CREATE INDEX taskmill_task_lane  ON taskmill_task (lane, priority DESC, ready_at, seq) WHERE lane > 0 AND state = 0;
CREATE INDEX taskmill_task_asleep ON taskmill_task (lane) WHERE lane > 0 AND state > 0 AND state < 5 AND state <> 3;
CREATE INDEX taskmill_task_due   ON taskmill_task (ready_at) WHERE lane > 0 AND state > 0 AND state < 3 OR state = 4;
CREATE INDEX taskmill_task_held  ON taskmill_task (worker, request) WHERE state = 3;
CREATE INDEX taskmill_task_ended ON taskmill_task (state, finished_at) WHERE state >= 5;
CREATE INDEX taskmill_task_failed ON taskmill_task (state, seq) WHERE state >= 6;
CREATE INDEX taskmill_task_type  ON taskmill_task (type, seq);
CREATE INDEX taskmill_task_tenant ON taskmill_task (tenant, seq) WHERE tenant <> '';

CREATE TABLE taskmill_body (
  seq         INTEGER PRIMARY KEY,
  payload     BLOB    NOT NULL,
  retry       TEXT,                         -- NULL: the default
  timeout     INTEGER NOT NULL,
  max_crashes INTEGER NOT NULL,
  run_at      INTEGER NOT NULL,
  meta        TEXT                          -- headers, tags, keys: NULL where there are none
);

CREATE TABLE taskmill_ending (
  seq    INTEGER PRIMARY KEY,
  result BLOB,
  error  TEXT
);

CREATE TABLE taskmill_attempt (                      -- all but the one that ended the task, which lies in its row
  seq        INTEGER NOT NULL,
  number     INTEGER NOT NULL,
  worker     TEXT    NOT NULL,
  token      INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at   INTEGER NOT NULL,
  outcome    TEXT    NOT NULL,
  error      TEXT,
  PRIMARY KEY (seq, number, token)
) WITHOUT ROWID;

CREATE TABLE taskmill_queue (
  id   INTEGER PRIMARY KEY,
  name TEXT    NOT NULL UNIQUE,
  turn   INTEGER NOT NULL DEFAULT 0,        -- virtual time of the share served last
  levels TEXT    NOT NULL DEFAULT '[0,0,0,0]' -- virtual times of its priorities, where they have weights
);

CREATE TABLE taskmill_share (
  id    INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  name  TEXT    NOT NULL,
  turn  INTEGER NOT NULL DEFAULT 0,         -- virtual time: 1e6 / weight a task
  top   INTEGER,                            -- the best priority in its open lanes; NULL: nothing
  UNIQUE (queue, name)
);
CREATE INDEX taskmill_share_open ON taskmill_share (queue, top DESC, turn, id) WHERE top IS NOT NULL;

CREATE TABLE taskmill_lane (
  id        INTEGER PRIMARY KEY,
  queue     INTEGER NOT NULL,
  share     INTEGER NOT NULL,
  limits    TEXT    NOT NULL,               -- names of its limits, a JSON array
  order_key TEXT    NOT NULL,
  type      TEXT    NOT NULL,               -- of tasks moved here because a claim could not take them
  needs     TEXT    NOT NULL DEFAULT '',    -- the type a worker must know to be served from here
  top       INTEGER,                        -- priority and age of its next task; NULL: nothing is ready
  head_at   INTEGER,
  head_seq  INTEGER,
  shut      INTEGER,                        -- the limit it stands at; NULL: open
  UNIQUE (queue, share, limits, order_key, type)
);
CREATE INDEX taskmill_lane_open ON taskmill_lane (share, top DESC, head_at, head_seq) WHERE top IS NOT NULL AND shut IS NULL;
CREATE INDEX taskmill_lane_shut ON taskmill_lane (shut, share, top DESC, head_at, head_seq) WHERE top IS NOT NULL AND shut IS NOT NULL;
CREATE INDEX taskmill_lane_needs ON taskmill_lane (queue) WHERE needs <> '' AND top IS NOT NULL AND shut IS NULL AND limits <> '[]';
CREATE INDEX taskmill_lane_idle ON taskmill_lane (id) WHERE top IS NULL;

-- These two are no indexes of task, because every update of a task pays for each of its partial indexes, whether it stands in it or not.
CREATE TABLE taskmill_ordered (             -- tasks with an order key that have not ended
  lane INTEGER NOT NULL,
  seq  INTEGER NOT NULL,
  PRIMARY KEY (lane, seq)
) WITHOUT ROWID;

CREATE TABLE taskmill_expiry (              -- when to look whether a task has expired
  at  INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (at, seq)
) WITHOUT ROWID;

CREATE TABLE taskmill_stand (               -- shares that have lanes shut at a limit, so that its room goes round in turn
  counter INTEGER NOT NULL,
  share   INTEGER NOT NULL,
  queue   INTEGER NOT NULL,
  turn    INTEGER NOT NULL,                 -- the share's
  top     INTEGER NOT NULL,                 -- the best priority of those lanes
  PRIMARY KEY (counter, share)
) WITHOUT ROWID;
CREATE INDEX taskmill_stand_best ON taskmill_stand (counter, queue, top DESC, turn, share);
CREATE INDEX taskmill_stand_share ON taskmill_stand (share);

CREATE TABLE taskmill_counter (                      -- one per limit in use: what is counted against it
  id      INTEGER PRIMARY KEY,
  name    TEXT    NOT NULL UNIQUE,
  running INTEGER NOT NULL DEFAULT 0,
  idle_at INTEGER NOT NULL DEFAULT 0,       -- when its window is empty, if nothing starts before
  wake_at INTEGER                           -- when its window has room again and a lane stands at it
);
CREATE INDEX taskmill_counter_wake ON taskmill_counter (wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE taskmill_start (                        -- the run-length log of a rate: how many started at which (rounded up) time
  counter INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  tasks   INTEGER NOT NULL,
  PRIMARY KEY (counter, at)
) WITHOUT ROWID;

CREATE TABLE taskmill_taken (                        -- answers of take, for its repeats
  id       TEXT PRIMARY KEY,
  granted  INTEGER NOT NULL,
  retry_at INTEGER,
  until    INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE taskmill_edge (
  id         INTEGER PRIMARY KEY,
  parent     INTEGER NOT NULL,              -- who waits
  child      INTEGER NOT NULL,              -- for whom
  child_id   TEXT    NOT NULL,
  on_failure INTEGER NOT NULL,
  outcome    INTEGER,                       -- NULL: open; else the state the child ended in
  kept       INTEGER NOT NULL DEFAULT 0,    -- 1: the child's ending has changed or gone since, its result is here
  result     BLOB
);
CREATE UNIQUE INDEX taskmill_edge_parent ON taskmill_edge (parent, child_id);
CREATE INDEX taskmill_edge_order ON taskmill_edge (parent, id);
CREATE INDEX taskmill_edge_child ON taskmill_edge (child, id);

CREATE TABLE taskmill_falling (                      -- ended tasks whose edges are still being applied, in slices
  seq   INTEGER PRIMARY KEY,
  state INTEGER NOT NULL,
  after INTEGER NOT NULL DEFAULT 0          -- the last edge done
);

CREATE TABLE taskmill_checkpoint (
  seq   INTEGER NOT NULL,
  name  TEXT    NOT NULL,
  value BLOB    NOT NULL,
  PRIMARY KEY (seq, name)
) WITHOUT ROWID;

CREATE TABLE taskmill_signal (
  seq    INTEGER NOT NULL,
  number INTEGER NOT NULL,
  id     TEXT    NOT NULL,
  name   TEXT    NOT NULL,
  data   BLOB    NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (seq, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX taskmill_signal_id ON taskmill_signal (seq, id);

CREATE TABLE taskmill_dedupe (                       -- idempotency keys; they outlive their task
  tenant TEXT    NOT NULL,
  type   TEXT    NOT NULL,
  key    TEXT    NOT NULL,
  id     TEXT    NOT NULL,
  hash   BLOB    NOT NULL,
  until  INTEGER NOT NULL,
  PRIMARY KEY (tenant, type, key)
) WITHOUT ROWID;
CREATE INDEX taskmill_dedupe_until ON taskmill_dedupe (until);

CREATE TABLE taskmill_known (                        -- ids whose record is gone (their final state), or only reserved (state NULL)
  id    TEXT PRIMARY KEY,
  state INTEGER,
  version INTEGER NOT NULL DEFAULT 0,       -- the one it was deleted at, so that the repeat is known
  hash  BLOB    NOT NULL,
  until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX taskmill_known_until ON taskmill_known (until);

CREATE TABLE taskmill_held (                         -- unique keys, each with the task that holds it
  tenant TEXT    NOT NULL,
  type   TEXT    NOT NULL,
  key    TEXT    NOT NULL,
  seq    INTEGER NOT NULL,
  PRIMARY KEY (tenant, type, key)
) WITHOUT ROWID;

CREATE TABLE taskmill_moving (                       -- types that got limits: their older tasks are moved into lanes, in slices
  type  TEXT PRIMARY KEY,
  after INTEGER NOT NULL DEFAULT 0          -- the last one looked at
) WITHOUT ROWID;

CREATE TABLE taskmill_tag (
  name  TEXT    NOT NULL,
  value TEXT    NOT NULL,
  seq   INTEGER NOT NULL,
  PRIMARY KEY (name, value, seq)
) WITHOUT ROWID;

CREATE TABLE taskmill_worker (
  id        TEXT PRIMARY KEY,
  queues    TEXT    NOT NULL,
  types     TEXT    NOT NULL,
  lease     INTEGER NOT NULL,
  joined_at INTEGER NOT NULL,
  request   INTEGER NOT NULL DEFAULT 0,     -- the last that took tasks
  info      TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE taskmill_item (
  kind     TEXT    NOT NULL,
  name     TEXT    NOT NULL,
  operator INTEGER NOT NULL,                -- 1: put by a person, stands over what code declares
  value    BLOB    NOT NULL,
  version  INTEGER NOT NULL,
  app      TEXT    NOT NULL DEFAULT '',     -- which app declared it, at which version
  app_version INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (kind, name, operator)
) WITHOUT ROWID;

CREATE TABLE taskmill_term (
  role   TEXT PRIMARY KEY,
  number INTEGER NOT NULL,
  holder TEXT                               -- NULL: resigned
) WITHOUT ROWID;

CREATE TABLE taskmill_outbox (
  number  INTEGER PRIMARY KEY AUTOINCREMENT,
  kind    TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  data    BLOB    NOT NULL,
  at      INTEGER NOT NULL
);
CREATE INDEX taskmill_outbox_kind ON taskmill_outbox (kind, number);
CREATE INDEX taskmill_outbox_subject ON taskmill_outbox (subject);

CREATE TABLE taskmill_event (                        -- a ring, filled only while somebody listens
  number  INTEGER PRIMARY KEY AUTOINCREMENT,
  kind    TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  version INTEGER NOT NULL,
  at      INTEGER NOT NULL,
  data    TEXT
);
