-- How many tasks there are, kept by every step instead of counted by every question; and where among the numbers they stand, so that a list reads its page.

CREATE TABLE taskmill_kind (                -- queue, type and priority of tasks that there are or were
  id       INTEGER PRIMARY KEY,
  queue    TEXT    NOT NULL,
  type     TEXT    NOT NULL,
  priority INTEGER NOT NULL,
  UNIQUE (queue, type, priority)
);

CREATE TABLE taskmill_count (
  kind   INTEGER NOT NULL,
  state  INTEGER NOT NULL,                  -- of a running task: pending
  block  INTEGER NOT NULL,                  -- tasks by their number, 1,024 to a block; -1: all of them
  tasks  INTEGER NOT NULL,
  oldest INTEGER NOT NULL,                  -- of all that are pending: none is older
  PRIMARY KEY (kind, state, block)
) WITHOUT ROWID;

CREATE TABLE taskmill_span (                -- between which times the tasks of a block were created; wider than the truth, never narrower
  block INTEGER PRIMARY KEY,
  first INTEGER NOT NULL,
  last  INTEGER NOT NULL
);

INSERT INTO taskmill_kind (queue, type, priority) SELECT DISTINCT queue, type, priority FROM taskmill_task;
INSERT INTO taskmill_count (kind, state, block, tasks, oldest)
SELECT k.id, CASE t.state WHEN 3 THEN 0 ELSE t.state END, t.seq >> 10, count(*), 0 FROM taskmill_task t JOIN taskmill_kind k USING (queue, type, priority) GROUP BY 1, 2, 3;
INSERT INTO taskmill_count (kind, state, block, tasks, oldest) SELECT kind, state, -1, sum(tasks), 0 FROM taskmill_count GROUP BY 1, 2;
INSERT INTO taskmill_span (block, first, last) SELECT seq >> 10, min(created_at), max(created_at) FROM taskmill_task GROUP BY 1;

-- Tasks for which a time is set, those of plain lines apart: a claim opens the others, and reads its plain line by itself.
DROP INDEX taskmill_task_due;
CREATE INDEX taskmill_task_due ON taskmill_task ((lane < 0 AND state < 3), ready_at) WHERE state > 0 AND state < 3 OR state = 4;
