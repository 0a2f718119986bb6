-- phase: expand
-- Tasks that have ended, and their attempts. Times are microseconds since 1970; `record` has every other field, `payload` and `result` the bytes as they were.

CREATE TABLE task (
  id          uuid     PRIMARY KEY,
  type        text     NOT NULL,
  queue       text     NOT NULL,
  tenant      text     NOT NULL,
  priority    smallint NOT NULL,
  state       text     NOT NULL,
  version     bigint   NOT NULL,
  created_at  bigint   NOT NULL,
  finished_at bigint   NOT NULL,
  payload     bytea    NOT NULL,
  result      bytea,
  record      json     NOT NULL
);

CREATE INDEX task_finished ON task (finished_at);
CREATE INDEX task_type ON task (type, finished_at);

CREATE TABLE attempt (
  task       uuid    NOT NULL REFERENCES task ON DELETE CASCADE,
  position   integer NOT NULL,
  number     integer NOT NULL,
  worker     text    NOT NULL,
  token      bigint  NOT NULL,
  started_at bigint  NOT NULL,
  ended_at   bigint,
  outcome    text,
  error      json,
  PRIMARY KEY (task, position)
);

-- For people with psql.

CREATE VIEW tasks AS
SELECT id, type, queue, tenant, priority, state, version, to_timestamp(created_at / 1e6) AS created_at, to_timestamp(finished_at / 1e6) AS finished_at,
  convert_from(payload, 'UTF8') AS payload, convert_from(result, 'UTF8') AS result, record -> 'error' AS error, record -> 'tags' AS tags
FROM task;

CREATE VIEW task_executions AS
SELECT task, number, worker, to_timestamp(started_at / 1e6) AS started_at, to_timestamp(ended_at / 1e6) AS ended_at, (ended_at - started_at) / 1000 AS duration_ms,
  outcome, error
FROM attempt;
