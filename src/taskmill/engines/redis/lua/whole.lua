-- Whole records of one moment. A: ids
-- answers {record, lease|false, attempts, checkpoints (name, value, …), signals, edges (task, edge, …), results of those tasks|false} for each, or false; records,
-- attempts, signals and edges are numbers of strings

-- What the tasks of its edges came to, where that is not kept with the edge.
local function edges_of(id)
  local flat, results = {}, {}
  for i, child in ipairs(call('ZRANGE', P .. 'edge_order:' .. id, 0, -1)) do
    local h = R.get(child)
    flat[2 * i - 1], flat[2 * i] = child, answer_raw(call('HGET', P .. 'edges:' .. id, child))
    results[i] = h and h[F.result] or false
  end
  return flat, results
end

local function numbered(strings)
  for n, text in ipairs(strings) do strings[n] = answer_raw(text) end
  return strings
end

local found = {}
for n, id in ipairs(A) do
  local record = call('GET', P .. 't:' .. id)
  if record then
    local h, lease = R.get(id), call('HGET', P .. 'leases', id)
    local flags = h[F.flags]
    local steps = band(flags, CHECKPOINTS) ~= 0 and call('HGETALL', P .. 'checkpoints:' .. id) or {}
    local signals = band(flags, SIGNALS) ~= 0 and call('LRANGE', P .. 'signals:' .. id, 0, -1) or {}
    local number, edges, results = answer_raw(record), {}, {}
    if band(flags, EDGES) ~= 0 then edges, results = edges_of(id) end
    found[n] = {number, lease, numbered(call('LRANGE', P .. 'attempts:' .. id, 0, -1)), steps, numbered(signals), edges, results}
  else
    found[n] = false
  end
end
return answered(pack(found))
