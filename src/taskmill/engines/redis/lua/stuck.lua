-- Waiting tasks that nothing will wake: every task they wait for has ended, they are not sealed, await no signal and have no deadline.
-- A: {number behind which to look, n, whether to make them ready}   answers {ids, the last number that was looked at|false at the end}

local MOST = 1000  -- edges of one task that are looked at; where there are more, their number is believed

-- Edges whose task has ended and that are open nevertheless fall.
local function mend(h)
  for _, child in ipairs(call('ZRANGE', P .. 'edge_order:' .. h.id, 0, -1)) do
    local edge, state = M.edge(h.id, child), state_of(child)
    if edge and not edge[3] and state and (state == COMPLETED or (state > COMPLETED and edge[2] ~= HOLDS)) then M.fallen[#M.fallen + 1] = {child, state} end
  end
end

-- How many of its edges are open still.
local function waits_for(h)
  if band(h[F.flags], EDGES) == 0 then return 0 end
  if call('ZCARD', P .. 'edge_order:' .. h.id) > MOST then return h[F.open_edges] end
  local n = 0
  for _, child in ipairs(call('ZRANGE', P .. 'edge_order:' .. h.id, 0, -1)) do
    local edge, state = M.edge(h.id, child), state_of(child)
    local fallen = edge[3] or (state and not call('ZSCORE', P .. 'falling', child) and (state == COMPLETED or (state > COMPLETED and edge[2] ~= HOLDS)))
    if not fallen then n = n + 1 end
  end
  return n
end

local found = call('ZRANGEBYSCORE', P .. 'in:' .. WAITING, '(' .. int(A[1]), '+inf', 'WITHSCORES', 'LIMIT', 0, A[2])
local ids, stuck = {}, {}
for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
R.load(ids)
for _, id in ipairs(ids) do
  local h = R.get(id)
  if h and h[F.state] == WAITING and h[F.ready_at] >= FAR and band(h[F.flags], SEALED + AWAITS) == 0 and waits_for(h) == 0 then
    stuck[#stuck + 1] = id
    if A[3] then
      mend(h)
      M.fall_slice()
      if h[F.state] == WAITING then
        h[F.open_edges] = 0
        M.wake_up(h)
      end
    end
  end
end
if A[3] then M.settle() end
local answer = pack({stuck, #found == 2 * A[2] and tonumber(found[#found])})
return A[3] and done(answer) or answer
