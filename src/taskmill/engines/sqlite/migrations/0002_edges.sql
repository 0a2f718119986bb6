-- Edges by their number, so that a page costs its length; those that are open, for circles and for tasks that nothing wakes any more;
-- and those onto tasks that are still to come (child 0), which are linked when they do.
ALTER TABLE taskmill_edge ADD COLUMN number INTEGER NOT NULL DEFAULT 0; -- counts the edges of its parent
UPDATE taskmill_edge SET number = n.number
FROM (SELECT id, row_number() OVER (PARTITION BY parent ORDER BY id) AS number FROM taskmill_edge) n WHERE n.id = taskmill_edge.id;
UPDATE taskmill_edge SET child = 0 WHERE child = -1 AND outcome IS NULL;
DROP INDEX taskmill_edge_order;
CREATE INDEX taskmill_edge_order ON taskmill_edge (parent, number);
CREATE INDEX taskmill_edge_open ON taskmill_edge (parent) WHERE outcome IS NULL;
CREATE INDEX taskmill_edge_coming ON taskmill_edge (child_id) WHERE child = 0;
