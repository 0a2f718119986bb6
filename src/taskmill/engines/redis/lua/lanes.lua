-- Lanes: what is open, what is shut, and when it opens again.
--
-- A lane knows its next task (`top` its priority, `head_at` and `head_seq` its age) and, when one of its limits was full at the last look, which one it stands
-- at (`shut`). A share knows the best `top` of its open lanes. Whoever changes a lane's tasks calls refresh, whoever gives room back calls give_back.
--   1. `shut` is only a belief; the limit's numbers decide at claim. So a lane opened in vain is harmless and nothing is ever over-admitted.
--   2. While a limit has room for f more, the best f lanes that stand at it are open: kept by wake.
--   3. A lane stands at one limit only. 4. An empty lane stands nowhere.
--
-- o:<share>:<p>  open lanes whose next task has that priority, by its age        s:<limit>\t<share>:<p>  those that stand at a limit
-- os:<queue>:<p> shares with open lanes, by their turn                           st:<limit>\t<queue>:<p> shares that stand at a limit, by their turn

local Lane = {all = {}, shares = {}, dirty = {}, dirty_shares = {}, opened = 0}

local function member(seq, id) return string.format('%012x', seq) .. id end

-- In a line: its age, whether a claim may take it without looking at its record (-) or not (+), its type, and its id, which has 36 letters.
local function line_member(h)
  local plain = not h[F.expires_at] and band(h[F.flags], UNIQUE_STARTED) == 0
  return string.format('%012x', h[F.seq]) .. (plain and '-' or '+') .. h[F.type] .. h.id
end

local function id_in(m) return string.sub(m, -36) end

-- Names and their numbers

function Lane.share_number(queue, name)
  local field = queue .. '\t' .. name
  local number = tonumber(call('HGET', P .. 'shares', field))
  if not number then
    number = call('HINCRBY', P .. 'numbers', 'share', 1)
    call('HSET', P .. 'shares', field, number)
    Lane.shares[number] = {number = number, queue = queue, name = name, turn = 0, top = false}
    Lane.dirty_shares[number] = true
  end
  return number
end

function Lane.share(number)
  local s = Lane.shares[number]
  if not s then
    local raw = cmsgpack.unpack(call('GET', P .. 'S:' .. number))
    s = {number = number, queue = raw[1], name = raw[2], turn = raw[3], top = raw[4]}
    Lane.shares[number] = s
  end
  return s
end

-- The lane of such tasks; 0 is the plain line of the queue, where nothing sets them apart.
function Lane.number(queue, share, limits, order_key, type_name)
  if share == '' and #limits == 0 and order_key == '' and type_name == '' then return 0 end
  local share_number = Lane.share_number(queue, share)
  local field = share_number .. '\t' .. table.concat(limits, '\n') .. '\t' .. order_key .. '\t' .. type_name
  local number = tonumber(call('HGET', P .. 'lanes', field))
  if not number then
    number = call('HINCRBY', P .. 'numbers', 'lane', 1)
    call('HSET', P .. 'lanes', field, number)
    Lane.all[number] = {
      number = number, queue = queue, share = share_number, limits = limits, order_key = order_key, type = type_name, needs = type_name,
      top = false, head_at = false, head_seq = false, shut = false, live = 0, field = field,
    }
    Lane.dirty[number] = true
  end
  return number
end

function Lane.get(number)
  local l = Lane.all[number]
  if not l then
    local raw = cmsgpack.unpack(call('GET', P .. 'L:' .. number))
    l = {
      number = number, queue = raw[1], share = raw[2], limits = raw[3], order_key = raw[4], type = raw[5], needs = raw[6], top = raw[7], head_at = raw[8],
      head_seq = raw[9], shut = raw[10], live = raw[11], field = raw[12],
    }
    Lane.all[number] = l
  end
  return l
end

-- How many live tasks it has: one with none may be forgotten.
function Lane.live(number, n)
  local l = Lane.get(number)
  l.live = l.live + n
  Lane.dirty[number] = true
  if l.live == 0 then call('ZADD', P .. 'empty', S.now, number) elseif l.live == n then call('ZREM', P .. 'empty', number) end
end

function Lane.save()
  for number in pairs(Lane.dirty) do
    local l = Lane.all[number]
    call('SET', P .. 'L:' .. number, pack({l.queue, l.share, l.limits, l.order_key, l.type, l.needs, l.top, l.head_at, l.head_seq, l.shut, l.live, l.field}))
  end
  for number in pairs(Lane.dirty_shares) do
    local s = Lane.shares[number]
    call('SET', P .. 'S:' .. number, pack({s.queue, s.name, s.turn, s.top}))
  end
  Lane.dirty, Lane.dirty_shares = {}, {}
  for _, l in pairs(Limit.all) do Limit.save(l) end
end

-- Where a lane is found

local function index_of(l)
  if not l.top then return nil end
  if l.shut then return P .. 's:' .. l.shut .. '\t' .. l.share .. ':' .. l.top end
  return P .. 'o:' .. l.share .. ':' .. l.top
end

local function is_needy(l) return l.top and not l.shut and l.needs ~= '' and #l.limits > 0 end

-- Change what is believed of a lane, and where it is found.
local function set_lane(l, top, head_at, head_seq, shut, needs)
  local before, was_needy = index_of(l), is_needy(l)
  if before then call('ZREM', before, member(l.head_seq, l.number)) end
  l.top, l.head_at, l.head_seq, l.shut, l.needs = top, head_at, head_seq, shut, needs or l.needs
  local after, needy = index_of(l), is_needy(l)
  if after then call('ZADD', after, l.head_at, member(l.head_seq, l.number)) end
  if needy and not was_needy then call('SADD', P .. 'n:' .. l.queue, l.number) end
  if was_needy and not needy then call('SREM', P .. 'n:' .. l.queue, l.number) end
  Lane.dirty[l.number] = true
end

local function open_key(s, p) return P .. 'os:' .. s.queue .. ':' .. p end

local function padded(number) return string.format('%012x', number) end

-- The best priority among its open lanes, by which a claim finds it.
function Lane.refresh_share(number)
  local s = Lane.share(number)
  local top = false
  for p = 3, 0, -1 do
    if call('EXISTS', P .. 'o:' .. number .. ':' .. p) == 1 then
      top = p
      break
    end
  end
  if s.top ~= top then
    if s.top then call('ZREM', open_key(s, s.top), padded(number)) end
    if top then call('ZADD', open_key(s, top), s.turn, padded(number)) end
    s.top = top
    Lane.dirty_shares[number] = true
  end
end

-- Limits that lanes stand at

local function standing(limit, share) return limit .. '\t' .. share end

local function stand_key(limit, queue, p) return P .. 'st:' .. limit .. '\t' .. queue .. ':' .. p end

-- No lane stands at any limit: for most steps it spares all the rest.
function Lane.nothing_shut()
  if Lane.quiet == nil then Lane.quiet = call('EXISTS', P .. 'stands') == 0 end
  return Lane.quiet
end

-- How a share stands at a limit: with the best of its lanes that are shut there, or not at all.
local function stand(limit, number)
  local s, top = Lane.share(number), nil
  for p = 3, 0, -1 do
    if call('EXISTS', P .. 's:' .. standing(limit, number) .. ':' .. p) == 1 then
      top = p
      break
    end
  end
  local field = standing(limit, number)
  local before = tonumber(call('HGET', P .. 'stands', field))
  if before and before ~= top then call('ZREM', stand_key(limit, s.queue, before), padded(number)) end
  if top then
    call('ZADD', stand_key(limit, s.queue, top), s.turn, padded(number))
    call('HSET', P .. 'stands', field, top)
    call('SADD', P .. 'sq:' .. limit, s.queue)
    call('SADD', P .. 'ss:' .. number, limit)
  elseif before then
    call('HDEL', P .. 'stands', field)
    call('SREM', P .. 'ss:' .. number, limit)
    local any = false
    for p = 0, 3 do any = any or call('EXISTS', stand_key(limit, s.queue, p)) == 1 end
    if not any then call('SREM', P .. 'sq:' .. limit, s.queue) end
  end
end

-- Its turn has come on.
function Lane.set_turn(number, turn)
  local s = Lane.share(number)
  s.turn = turn
  Lane.dirty_shares[number] = true
  if s.top then call('ZADD', open_key(s, s.top), turn, padded(number)) end
  if not Lane.nothing_shut() then
    for _, limit in ipairs(call('SMEMBERS', P .. 'ss:' .. number)) do
      local p = call('HGET', P .. 'stands', standing(limit, number))
      if p then call('ZADD', stand_key(limit, s.queue, p), turn, padded(number)) end
    end
  end
end

-- If only the passing of time brings room, note when.
function Lane.arm(limit)
  if Limit.full_rate(limit) then
    Limit.save(limit)
    local at = Limit.next_room_at(limit)
    if at then call('ZADD', P .. 'wakes', at, limit.name) end
  end
end

-- The lane stands at this limit until it has room.
function Lane.shut(l, limit)
  set_lane(l, l.top, l.head_at, l.head_seq, limit.name)
  Lane.quiet = false
  stand(limit.name, l.share)
  Lane.refresh_share(l.share)
  Lane.arm(limit)
end

local function open_best(limit, queue, room)
  local shares = {}
  for p = 3, 0, -1 do
    for _, number in ipairs(call('ZRANGE', stand_key(limit, queue, p), 0, room - #shares - 1)) do shares[#shares + 1] = tonumber(number, 16) end
    if #shares >= room then break end
  end
  local each, opened = #shares > 0 and math.ceil(room / #shares) or 0, 0
  for _, number in ipairs(shares) do
    local left = each
    for p = 3, 0, -1 do
      if left <= 0 then break end
      for _, found in ipairs(call('ZRANGE', P .. 's:' .. standing(limit, number) .. ':' .. p, 0, left - 1)) do
        local l = Lane.get(tonumber(string.sub(found, 13)))
        set_lane(l, l.top, l.head_at, l.head_seq, false)
        left, opened = left - 1, opened + 1
      end
    end
    stand(limit, number)
    Lane.refresh_share(number)
  end
  return opened
end

-- Open as many of the lanes that stand at a limit as it has room for: in every queue the best, and between shares in turn.
local function wake(limit)
  local queues = call('SMEMBERS', P .. 'sq:' .. limit.name)
  local room = math.min(Limit.room(limit), 1000)
  if #queues > 0 and room == 0 then return Lane.arm(limit) end
  local opened = 0
  for _, queue in ipairs(queues) do
    local n = open_best(limit.name, queue, room)
    if n > 0 then S.wake(queue) end
    opened = opened + n
  end
  Lane.opened = Lane.opened + opened
end

-- Those that stand at the limit, and those that stand at its cap alone: a full rate keeps none of these shut.
function Lane.wake(limit)
  if Lane.nothing_shut() then return end
  local name = Limit.whole(limit.name)
  wake(Limit.get(name))
  wake(Limit.get(CAP .. name))
end

-- The first task that has not ended, if it is the one to run now: while it runs, retries, sleeps or waits, nothing overtakes it.
local function ordered_head(l)
  local first = call('ZRANGE', P .. 'order:' .. l.number, 0, 0)[1]
  local h = first and R.get(first)
  if h and h[F.state] == PENDING then return h[F.priority], h[F.ready_at], h[F.seq], h[F.type] end
end

local function head(l)
  for p = 3, 0, -1 do
    local first = call('ZRANGE', P .. 'l:' .. l.number .. ':' .. p, 0, 0, 'WITHSCORES')
    if first[1] then return p, tonumber(first[2]), tonumber(string.sub(first[1], 1, 12), 16) end
  end
end

-- Whether what is next in it has changed. One that got better leaves the limit it stood at: if there is room, it belongs to the best; looked at in vain, it goes back.
local function refresh_lane(l)
  local top, head_at, head_seq, needs
  if l.order_key ~= '' then top, head_at, head_seq, needs = ordered_head(l) else top, head_at, head_seq = head(l) end
  if not top then
    if not l.top then return false end
    set_lane(l, false, false, false, false)
    return true
  end
  if l.top == top and l.head_at == head_at and l.head_seq == head_seq then return false end
  local better = l.top and (top > l.top or (top == l.top and (head_at < l.head_at or (head_at == l.head_at and head_seq < l.head_seq))))
  local shut = l.shut
  if better then shut = false end
  set_lane(l, top, head_at, head_seq, shut, needs)
  return true
end

-- Look again what is next in these lanes, after tasks came to them or, `left`, were taken out otherwise than by a claim.
function Lane.refresh(numbers, left)
  local shares, names = {}, {}
  for number in pairs(numbers) do
    local l = Lane.get(number)
    if refresh_lane(l) then
      shares[l.share] = true
      for _, name in ipairs(l.limits) do names[#names + 1] = {name, l.share} end
    end
  end
  for number in pairs(shares) do Lane.refresh_share(number) end
  if left and not Lane.nothing_shut() then  -- a lane that was opened for its best task may have lost it: the room goes to whoever is best now
    for _, pair in ipairs(names) do
      stand(pair[1], pair[2])
      Lane.wake(Limit.get(pair[1]))
    end
  end
end

-- Slots of these lanes ({lane: tasks}) return to their limits, which may open others.
function Lane.give_back(freed)
  local counts = {}
  for number, tasks in pairs(freed) do
    local l = Lane.get(number)
    S.wake(l.queue)
    for _, name in ipairs(l.limits) do counts[Limit.whole(name)] = (counts[Limit.whole(name)] or 0) + tasks end
  end
  for name, tasks in pairs(counts) do
    local limit = Limit.get(name)
    limit.running = limit.running - tasks
    limit.changed = true
    Limit.save(limit)
    Lane.wake(limit)
  end
end
