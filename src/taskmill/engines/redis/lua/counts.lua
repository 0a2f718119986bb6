-- How many tasks there are, by queue, type, priority and state; what is due counts as pending, so time is applied first.
-- answers {more, counts (flat), {{queue, type, priority, oldest}, …}}: the oldest that are ready, among the first of every plain line and of some hundred lanes

local more = M.open_due()
if M.settle() then more = true end
local oldest, order = {}, {}
local function look(h)
  local name = h[F.queue] .. '\t' .. h[F.type] .. '\t' .. h[F.priority]
  if not oldest[name] or h[F.ready_at] < oldest[name][4] then
    if not oldest[name] then order[#order + 1] = name end
    oldest[name] = {h[F.queue], h[F.type], h[F.priority], h[F.ready_at]}
  end
end
local function look_at(key)
  local ids = call('ZRANGEBYSCORE', key, '-inf', S.now, 'LIMIT', 0, 100)
  for i, m in ipairs(ids) do ids[i] = id_in(m) end
  R.load(ids)
  for _, id in ipairs(ids) do
    local h = R.get(id)
    if h then look(h) end
  end
end
for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do
  for p = 0, 3 do look_at(P .. 'q:' .. queue .. ':' .. p) end
end
local some = call('HSCAN', P .. 'lanes', '0', 'COUNT', 500)[2]  -- of many lanes, some: this is for people, and work is bounded
for i = 2, #some, 2 do
  for p = 0, 3 do look_at(P .. 'l:' .. some[i] .. ':' .. p) end
end
local found = {}
for n, name in ipairs(order) do found[n] = oldest[name] end
Lane.save()
S.finish()  -- before it is read
return pack({more, call('HGETALL', P .. 'counts'), found})
