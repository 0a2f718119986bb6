-- Which tasks a claim takes: priority, then turn between shares, then age (promise 12), and only what every limit admits.
--
-- Most queues have nothing but their plain line, which is one ordered read. Where lanes are open, each visit takes at most a quantum from the oldest open lane
-- of the share whose turn it is. A task in the way that this claim may not take (a type the worker does not know or has no room for) is moved into a lane of
-- its own type, once; one that has expired is ended. Both are bounded, and `more` says when a bound was reached.

local QUANTUM, PASSED, TURN = 8, 200, 1000000

local C = {taken = {}, passed = 0, more = false, stuffed = false, limits = {}, opened = 0}

-- slots, prefetch; bytes, which were most_bytes before others took some; rooms: how many more of each type that may be taken
function C.begin(worker, request, slots, prefetch, bytes, most_bytes, rooms)
  C.worker, C.request, C.slots, C.prefetch, C.bytes, C.most_bytes, C.rooms = worker, request, slots, prefetch, bytes, most_bytes, rooms
  C.token, C.opened = tonumber(call('GET', P .. 'token') or '0'), Lane.opened
end

local function limit(name)
  local l = Limit.get(name)
  C.limits[name] = l
  return l
end

-- Running, under a new token.
local function start(h)
  C.token = number_after(C.token)
  S.count(h, h[F.state], -1)
  S.count(h, RUNNING, 1)
  h[F.state], h[F.token], h[F.worker], h[F.request], h[F.claimed_at], h[F.updated_at], h[F.started_at] = RUNNING, C.token, C.worker, C.request, S.now, S.now, false
  h[F.version], h[F.executions] = h[F.version] + 1, h[F.executions] + 1
  R.touch(h)
  C.taken[#C.taken + 1] = h
  if S.listening() then S.tell_task('task.started', h, h[F.version], {worker = C.worker, attempt = h[F.executions]}) end
end

-- All of one line, which they leave together.
local function start_all(line, tasks)
  local gone = {}
  for n, h in ipairs(tasks) do
    gone[n] = line_member(h)
    if h[F.state] ~= PENDING then call('ZREM', P .. 'due', h.id) end
    start(h)
  end
  if #gone > 0 then in_pieces('ZREM', line, gone) end
end

local function full() return C.slots <= 0 or C.stuffed end

local function move_aside(h)
  local old = h[F.lane]
  local target
  if old == 0 then
    target = Lane.number(h[F.queue], '', {}, '', h[F.type])
  else
    local l = Lane.get(old)
    target = Lane.number(l.queue, Lane.share(l.share).name, l.limits, '', h[F.type])
  end
  M.leave(h)
  S.count(h, h[F.state], -1)
  if h[F.ready_at] <= S.now then h[F.state] = PENDING end
  if old > 0 then Lane.live(old, -1) end
  h[F.lane] = target
  Lane.live(target, 1)
  S.count(h, h[F.state], 1)
  R.touch(h)
  M.enter(h)
end

-- Of these, in this order, up to `most` that may be taken; the rest of them gets out of the way. Answers those taken, and whether anything was in the way.
local function sort_out(ids, most)
  R.load(ids)
  local took, moved = {}, false
  for _, id in ipairs(ids) do
    local h = R.get(id)
    if h[F.expires_at] and h[F.expires_at] <= S.now and not h[F.must_end] then
      M.cancel(h, {code = 'expired', message = 'its deadline (expires) has passed'}, 'expired')
      C.passed, moved = C.passed + 1, true
    elseif (C.rooms[h[F.type]] or 0) <= 0 then
      move_aside(h)
      C.passed, moved = C.passed + 1, true
    elseif #took < most and not full() then
      local size = h[F.size] + M.beside(h)
      if size > C.bytes and C.bytes < C.most_bytes then
        C.stuffed, C.more = true, true
      else
        C.slots, C.bytes = C.slots - 1, C.bytes - size
        C.rooms[h[F.type]] = C.rooms[h[F.type]] - 1
        took[#took + 1] = h
      end
    end
  end
  return took, moved
end

local function settle_moved()
  if M.settle() then C.more = true end
end

local function ids_of(members)
  for i, m in ipairs(members) do members[i] = id_in(m) end
  return members
end

local function plain_key(queue, p) return P .. 'q:' .. queue .. ':' .. p end

local function plain_head(queue, p)
  local found = call('ZRANGEBYSCORE', plain_key(queue, p), '-inf', S.now, 'WITHSCORES', 'LIMIT', 0, 1)
  if found[1] then return tonumber(found[2]), tonumber(string.sub(found[1], 1, 12), 16) end
end

-- Up to `most` of a plain line, past what is not for this worker.
local function serve_plain(queue, p, most)
  while C.passed < PASSED do
    local ids = ids_of(call('ZRANGEBYSCORE', plain_key(queue, p), '-inf', S.now, 'LIMIT', 0, most))
    if #ids == 0 then return 0 end
    local took, moved = sort_out(ids, most)
    start_all(plain_key(queue, p), took)
    if moved then settle_moved() end
    if #took > 0 or C.stuffed then return #took end
  end
  C.more = true
  return 0
end

-- One queue in a claim

local Q = {}

function Q.new(name)
  local raw = call('HGET', P .. 'queue_settings', name)
  local settings = raw and cmsgpack.unpack(raw) or {}
  local q = {name = name, weights = settings[1] or {}, priorities = settings[2], dry = {}, over = {}}
  q.quantum = q.priorities and QUANTUM or 1000000
  return q
end

-- Where there is only the share without a name, nobody takes turns.
function Q.look_at_shares(q)
  q.alone, q.unnamed = true, nil
  for p = 3, 0, -1 do
    for _, number in ipairs(call('ZRANGE', P .. 'os:' .. q.name .. ':' .. p, 0, 1)) do
      local s = Lane.share(tonumber(number, 16))
      if s.name == '' then q.unnamed = s.number else q.alone = false end
    end
  end
end

local function any_open(q)
  for p = 3, 0, -1 do
    if call('EXISTS', P .. 'os:' .. q.name .. ':' .. p) == 1 then return true end
  end
end

-- Room of these limits that lanes which could not use it leave to others; whether a lane was opened by this, or by what was moved out of the way since.
local function pass_on(limits)
  if not Lane.nothing_shut() then
    for _, l in pairs(limits) do
      Limit.save(l)
      Lane.wake(l)
    end
  end
  local before = C.opened
  C.opened = Lane.opened
  return Lane.opened > before
end

-- Open lanes that are not for this worker must not keep the room of their limits from those that are: as many more are opened.
function Q.pass_over_foreign(q)
  local opened = true
  while opened do
    local found = false
    for _, number in ipairs(call('SRANDMEMBER', P .. 'n:' .. q.name, 100)) do
      local l = Lane.get(tonumber(number))
      if (C.rooms[l.needs] or 0) <= 0 then
        found = true
        for _, name in ipairs(l.limits) do limit(name) end
      end
    end
    opened = found and pass_on(C.limits)
  end
  Q.look_at_shares(q)
end

function Q.pass_on(q, limits)
  local opened = pass_on(limits or C.limits)
  if opened then
    Q.pass_over_foreign(q)
    q.dry = {}
  end
  return opened
end

function Q.can_go_on(q)
  if C.passed >= PASSED then
    C.more = true
    return false
  end
  return q.want > 0 and not full()
end

-- The oldest open lane of a share at one priority that is for this worker.
local function oldest_lane(share, p)
  local after = 0
  while true do
    local found = call('ZRANGE', P .. 'o:' .. share .. ':' .. p, after, after + 9)
    for _, m in ipairs(found) do
      local l = Lane.get(tonumber(string.sub(m, 13)))
      if l.needs == '' or (C.rooms[l.needs] or 0) > 0 then return l end
    end
    if #found < 10 then return nil end
    after = after + 10
  end
end

local function serve_lane(q, l, p)
  local room = math.min(QUANTUM, q.want)
  local limits = {}
  for n, name in ipairs(l.limits) do limits[n] = limit(name) end
  for _, one in ipairs(limits) do
    if Limit.room(one) == 0 then
      Lane.shut(l, one)
      Q.pass_on(q, limits)
      return 0
    end
    room = math.min(room, Limit.room(one))
  end
  local ids
  if l.order_key == '' then
    ids = ids_of(call('ZRANGE', P .. 'l:' .. l.number .. ':' .. p, 0, room - 1))
  else
    ids = call('ZRANGE', P .. 'order:' .. l.number, 0, 0)
  end
  local took, moved = sort_out(ids, #ids)
  if took[1] then start_all(P .. 'l:' .. l.number .. ':' .. took[1][F.priority], took) end
  for _, one in ipairs(limits) do Limit.start(one, #took) end
  M.stirred[l.number] = nil
  Lane.refresh({[l.number] = true})
  if moved then settle_moved() end
  if not l.top or l.top ~= p or moved then Q.pass_on(q, limits) end
  return #took
end

local function serve_oldest(q, s, p)
  while Q.can_go_on(q) do
    local l = oldest_lane(s.number, p)
    local at, seq
    if s.name == '' then at, seq = plain_head(q.name, p) end
    if not l and not at then return 0 end
    local took
    if not l or (at and (at < l.head_at or (at == l.head_at and seq < l.head_seq))) then
      took = serve_plain(q.name, p, math.min(QUANTUM, q.want))
      if took == 0 and not C.stuffed and plain_head(q.name, p) == nil and not l then return 0 end
    else
      took = serve_lane(q, l, p)
    end
    if took > 0 then return took end
  end
  return 0
end

-- The shares that may be next: the first in turn, and those that stand under a higher priority because of tasks which are foreign to this worker.
local function shares_of(q, p)
  local found, after = {}, 0
  while #found == 0 do
    local some = call('ZRANGE', P .. 'os:' .. q.name .. ':' .. p, after, after + 9)
    for _, number in ipairs(some) do
      local n = tonumber(number, 16)
      if not q.dry[n .. ':' .. p] then
        found[1] = Lane.share(n)
        break
      end
    end
    if #some < 10 then break end
    after = after + 10
  end
  for n in pairs(q.over) do
    if not q.dry[n .. ':' .. p] and call('EXISTS', P .. 'o:' .. n .. ':' .. p) == 1 then found[#found + 1] = Lane.share(n) end
  end
  return found
end

-- The share whose turn it is. Turns below the queue's own count as the queue's: idling earns no credit.
local function next_share(q, p)
  local shares = shares_of(q, p)
  local has_plain = plain_head(q.name, p) ~= nil
  if has_plain then
    local named = false
    for _, s in ipairs(shares) do named = named or s.name == '' end
    if not named then
      if #shares == 0 then return nil, 0, true end
      local plain = Lane.share(Lane.share_number(q.name, ''))
      if not q.dry[plain.number .. ':' .. p] then shares[#shares + 1] = plain end
    end
  end
  if #shares == 0 then return nil end
  local floor = tonumber(call('HGET', P .. 'turns', q.name) or '0')
  local best
  for _, s in ipairs(shares) do
    local turn = math.max(s.turn, floor)
    if not best or turn < best.turn or (turn == best.turn and s.number < best.share.number) then best = {share = s, turn = turn} end
  end
  return best.share, best.turn, false
end

-- The weight of a share; of one that belongs to a tenant (its name and its key, with \31 between), the tenant's.
local function weight_of(q, share) return math.max(1, q.weights[share] or q.weights[string.match(share, '^(.*)\31') or share] or 1) end

-- Tasks of this priority from the share whose turn it is; 0 when nothing is left for this claim.
function Q.serve(q, p)
  while Q.can_go_on(q) do
    local took
    if q.alone and not q.unnamed then
      took = serve_plain(q.name, p, math.min(q.quantum, q.want, C.slots))
      q.want = q.want - took
      return took
    elseif q.alone then
      took = serve_oldest(q, Lane.share(q.unnamed), p)
      q.want = q.want - took
      return took
    end
    local s, turn, plain = next_share(q, p)
    if not s and not plain then return 0 end
    if plain then took = serve_plain(q.name, p, math.min(q.quantum, q.want, C.slots)) else took = serve_oldest(q, s, p) end
    q.want = q.want - took
    if plain then
      if took > 0 then return took end  -- else what was in the way stands in a lane now
    elseif took > 0 then
      Lane.set_turn(s.number, turn + math.floor(took * TURN / weight_of(q, s.name)))
      call('HSET', P .. 'turns', q.name, int(turn))
      return took
    else
      q.dry[s.number .. ':' .. p] = true
      q.over[s.number] = true
    end
  end
  return 0
end

local function pick_strict(q)
  local p = 3
  while p >= 0 and Q.can_go_on(q) do
    if Q.serve(q, p) == 0 then
      if Q.pass_on(q) then p = 3 else p = p - 1 end
    end
  end
end

-- Priorities take turns by weight (critical first in the list); one that had nothing for a while has earned nothing.
local function pick_weighted(q)
  local raw = call('HGET', P .. 'levels', q.name)
  local turns = raw and cmsgpack.unpack(raw) or {0, 0, 0, 0}
  local left = {[0] = true, true, true, true}
  while Q.can_go_on(q) do
    local p
    for level = 3, 0, -1 do
      if left[level] and (not p or turns[level + 1] < turns[p + 1]) then p = level end
    end
    if not p then break end
    local took = Q.serve(q, p)
    if took > 0 then
      local floor = turns[p + 1]
      turns[p + 1] = floor + math.floor(took * TURN / math.max(1, q.priorities[4 - p]))
      for level = 0, 3 do
        if left[level] then turns[level + 1] = math.max(turns[level + 1], floor) end
      end
    elseif Q.pass_on(q) then
      left = {[0] = true, true, true, true}
    else
      left[p] = nil
    end
  end
  call('HSET', P .. 'levels', q.name, pack(turns))
end

function Q.pick(q, want)
  q.want = want
  if want <= 0 then return end
  Q.look_at_shares(q)
  if not q.alone or q.unnamed then Q.pass_over_foreign(q) end
  if q.priorities then pick_weighted(q) else pick_strict(q) end
end

-- A few more of the plain line, so that the worker has the next at hand.
function Q.pick_ahead(q)
  for p = 3, 0, -1 do
    while C.prefetch > 0 and not C.stuffed and C.passed < PASSED do
      local slots = C.slots
      C.slots = C.prefetch
      local took = serve_plain(q.name, p, C.prefetch)
      C.slots = slots
      if took == 0 then break end
      C.prefetch = C.prefetch - took
    end
  end
end

-- Every queue gets an equal part first, then what others leave; the one that goes first changes with the request.
function C.pick(queues)
  local turns, n = {}, #queues
  for i = 1, n do turns[i] = Q.new(queues[(C.request + i - 1) % n + 1]) end
  local part = n > 0 and math.ceil(C.slots / n) or 0
  if n > 1 then
    for _, q in ipairs(turns) do Q.pick(q, math.min(part, C.slots)) end
  end
  for _, q in ipairs(turns) do Q.pick(q, C.slots) end
  for _, q in ipairs(turns) do Q.pick_ahead(q) end
end

-- What was taken is written: leases, tokens, limits.
function C.write()
  if #C.taken > 0 then
    local leases, n = {}, 0
    for _, h in ipairs(C.taken) do
      leases[n + 1], leases[n + 2] = lease_field(h[F.token]), lease_value(C.request, h.id)
      n = n + 2
    end
    if n > 0 then call('HSET', P .. 'run:' .. C.worker, unpack(leases, 1, n)) end
    call('SET', P .. 'token', int(C.token))
    call('HSET', P .. 'requests', C.worker, int(C.request))
  end
  for _, l in pairs(C.limits) do
    Limit.save(l)
    Lane.wake(l)
  end
end
