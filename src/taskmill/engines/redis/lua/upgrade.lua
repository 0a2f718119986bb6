-- One slice of the way from schema 1 to 2: states get their indexes, keys of tenants become their own, checkpoints and signals are measured.
-- A: {n}   answers whether there is more

local OLD_WATCHED = 2048  -- is SUSPECT now

local function scoped(tenant, key) return string.find(key, '\31', 1, true) and key or tenant .. '\31' .. key end

-- Share, limits and order key as they belong to the tenant; nil where they are so already.
local function scoped_home(h)
  local home, tenant = h[F.home], h[F.tenant]
  if not home or tenant == '' then return nil end
  local share, limits, order_key = home[1], {}, home[3]
  if share ~= '' and share ~= tenant then share = scoped(tenant, share) end
  if order_key ~= '' then order_key = scoped(tenant, order_key) end
  for n, limit in ipairs(home[2]) do
    local name, key = string.match(limit, '^([^:]*):(.*)$')
    limits[n] = name and name .. ':' .. scoped(tenant, key) or limit
  end
  table.sort(limits)
  return {share, limits, order_key}
end

-- Into the lane of its new home, at its old place there. One that runs takes its slots along.
local function move(h, home)
  local old = Lane.get(h[F.lane])
  local runs = h[F.state] == RUNNING
  local target = Lane.number(h[F.queue], home[1], home[2], old.type == '' and home[3] or '', old.type)
  if target == h[F.lane] then return end
  if runs then M.freed[h[F.lane]] = (M.freed[h[F.lane]] or 0) + 1 else M.leave(h) end
  if band(h[F.flags], ORDERED) ~= 0 then
    call('ZREM', P .. 'order:' .. h[F.lane], h.id)
    call('ZADD', P .. 'order:' .. target, h[F.seq], h.id)
  end
  Lane.live(h[F.lane], -1)
  Lane.live(target, 1)
  h[F.lane] = target
  if runs then
    for _, name in ipairs(home[2]) do
      local l = Limit.get(name)
      l.running, l.changed = l.running + 1, true
    end
    M.stirred[target] = true
  else
    M.enter(h)
  end
end

local function measure(h)
  local steps, signals = 0, 0
  local found = call('HGETALL', P .. 'checkpoints:' .. h.id)
  for _, text in ipairs(found) do steps = steps + #text end
  for _, raw in ipairs(call('LRANGE', P .. 'signals:' .. h.id, 0, -1)) do
    local s = cmsgpack.unpack(raw)
    signals = signals + #s[2] + #s[3]
  end
  M.set_beside(h, steps, signals)
end

local function upgrade(h)
  if INDEXED[h[F.state]] then call('ZADD', P .. 'in:' .. h[F.state], h[F.seq], h.id) end
  if band(h[F.flags], CHECKPOINTS + SIGNALS) ~= 0 then measure(h) end
  if band(h[F.flags], OLD_WATCHED) ~= 0 then
    h[F.flags] = h[F.flags] - OLD_WATCHED + WATCHED
    R.touch(h)
  end
  local home = scoped_home(h)
  if home then
    if h[F.state] < COMPLETED and h[F.lane] > 0 then move(h, home) end
    h[F.home] = home
    R.touch(h)
  end
end

local store = call('HMGET', P .. 'store', 'schema', 'upgraded')
if tonumber(store[1] or '2') >= 2 then return pack(false) end
local found = call('ZRANGEBYSCORE', P .. 'ids', '(' .. (store[2] or '0'), '+inf', 'WITHSCORES', 'LIMIT', 0, A[1])
local ids = {}
for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
R.load(ids)
for _, id in ipairs(ids) do
  local h = R.get(id)
  if h then upgrade(h) end
end
M.settle()
if #found == 0 then
  call('HDEL', P .. 'store', 'upgraded')
  call('HSET', P .. 'store', 'schema', '2')
else
  call('HSET', P .. 'store', 'upgraded', found[#found])
end
return done(pack(#found > 0))
