-- What every script begins with: its arguments, its moment, the records it has read, and what it will tell others at its end.
--
-- KEYS[1]  the shard's prefix with its hash tag; every key is built here or in keys of the same prefix
-- KEYS[2]  another one that does not exist either: a server on which the shard is not whole, because it moves, refuses a script with two keys it does not have
-- ARGV[1]  the arguments, as MessagePack
-- ARGV[2]  the time in microseconds; empty: the server's own (a test passes its own)
-- ARGV[3…] strings that are no text (bodies); arguments name them by their number, and so do answers: a script answers {MessagePack, string, …}
--
-- A record is the time it was written (16 hexadecimal digits), its number (12), the length of its array (8), the array, and the body, which is the caller's own
-- and opaque here. Where a time, or `seq`, is true in the array it is that of the front: a caller who makes a record does not know them.
--
-- Null is `false` in records, so that they stay arrays. Numbers are written with %d: Lua itself prints no more than 14 digits.

local call, unpack_one, pack = redis.call, cmsgpack.unpack_one, cmsgpack.pack
local P = KEYS[1]
local A = cmsgpack.unpack(ARGV[1])
local SHARD = tonumber(string.match(P, '{(%d+)}:$'))
local band, bor, bnot = bit.band, bit.bor, bit.bnot

local FAR = 4611686018427387904
local PENDING, SCHEDULED, RETRYING, RUNNING, WAITING, COMPLETED, DEAD, CANCELLED = 0, 1, 2, 3, 4, 5, 6, 7
local STATES = {[0] = 'pending', 'scheduled', 'retrying', 'running', 'waiting', 'completed', 'dead', 'cancelled'}
local KINDS = {[0] = 'ready', 'snoozed', 'retrying', 'started', 'waiting', 'completed', 'dead', 'cancelled'}

-- What a task has beside its record.
local ORDERED, CANCEL, UNIQUE_STARTED, UNIQUE_ENDED, EDGES, WAITED, SEALED, AWAITS, UNWIND, CHECKPOINTS, SIGNALS = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024
local SUSPECT, REJECTED = 2048, 4096
local WATCHED = 8192  -- by tasks of other shards

-- The places of a record's fields (`home`: share, limits and order key of its lane, where it has one).
local F = {
  seq = 1, type = 2, queue = 3, tenant = 4, priority = 5, lane = 6, state = 7, ready_at = 8, version = 9, executions = 10, failures = 11, crashes = 12,
  flags = 13, open_edges = 14, created_at = 15, updated_at = 16, expires_at = 17, finished_at = 18, token = 19, worker = 20, request = 21, claimed_at = 22,
  started_at = 23, must_end = 24, phase = 25, progress = 26, awaits = 27, opened = 28, run_at = 29, max_crashes = 30, unique = 31, window = 32, result = 33,
  error = 34, size = 35, home = 36,
}

local raws = {}

-- A string of the arguments; one for the answer.
local function given_raw(n) return ARGV[n + 2] end

local function answer_raw(text)
  raws[#raws + 1] = text
  return #raws
end

local function int(n) return string.format('%d', n) end

local function now_()
  if ARGV[2] ~= '' then return tonumber(ARGV[2]) end
  local t = call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

local S = {now = now_(), counts = {}, woke = {}, events = {}, ended = false, adds = {}}

-- Records. Each is read once, changed in memory and written once, at the end.

local R = {known = {}, dirty = {}, packed = {}, leased = {}}

local STAMP = string.format('%016x', S.now)

local FRONT = 36

local function array_of(raw)
  local offset, h = unpack_one(raw, FRONT)
  if h[F.updated_at] == true then
    local at = tonumber(string.sub(raw, 1, 16), 16)
    for _, field in ipairs({F.updated_at, F.finished_at, F.created_at, F.ready_at, F.run_at}) do
      if h[field] == true then h[field] = at end
    end
    if h[F.seq] == true then h[F.seq] = tonumber(string.sub(raw, 17, 28), 16) end
  end
  return h, offset
end

local function unpacked(id, raw)
  local h, offset = array_of(raw)
  h.id, h.body = id, string.sub(raw, offset < 0 and #raw + 1 or offset + 1)
  return h
end

-- A claim of a plain task writes its lease only; here the record becomes what it is under it. Written, it is whole, and the lease is a part of it.
local function under_lease(h, lease)
  local token, request, at, worker = string.match(lease, '^(%x+)\t(%d+)\t(%d+)\t(.*)$')
  h[F.state], h[F.token], h[F.worker], h[F.request], h[F.claimed_at] = RUNNING, tonumber(token, 16), worker, tonumber(request), tonumber(at)
  h[F.updated_at], h[F.started_at] = h[F.claimed_at], false
  h[F.version], h[F.executions] = h[F.version] + 1, h[F.executions] + 1
  R.leased[h.id] = true
end

local function load_leases(ids)
  for first = 1, #ids, 1000 do
    local last = math.min(first + 999, #ids)
    for n, lease in ipairs(call('HMGET', P .. 'leases', unpack(ids, first, last))) do
      if lease then under_lease(R.known[ids[first + n - 1]], lease) end
    end
  end
end

function R.load(ids)
  local keys, wanted, plain = {}, {}, {}
  for _, id in ipairs(ids) do
    if R.known[id] == nil then
      R.known[id] = false
      keys[#keys + 1] = P .. 't:' .. id
      wanted[#wanted + 1] = id
    end
  end
  for first = 1, #keys, 1000 do
    local last = math.min(first + 999, #keys)
    local found = call('MGET', unpack(keys, first, last))
    for n = first, last do
      local raw = found[n - first + 1]
      if raw then
        local h = unpacked(wanted[n], raw)
        R.known[wanted[n]] = h
        if h[F.state] < RUNNING and h[F.lane] == 0 then plain[#plain + 1] = h.id end
      end
    end
  end
  if #plain > 0 then load_leases(plain) end
end

-- The record of a task, or nil.
function R.get(id)
  if R.known[id] == nil then R.load({id}) end
  return R.known[id] or nil
end

function R.touch(h) R.dirty[h.id] = h end

function R.raw(h)
  local id, body = h.id, h.body
  h.id, h.body = nil, nil
  local array = pack(h)
  h.id, h.body = id, body
  return STAMP .. string.format('%012x%08x', h[F.seq], #array) .. array .. body
end

function R.drop(h)
  R.known[h.id], R.dirty[h.id], R.leased[h.id] = false, nil, nil
  call('UNLINK', P .. 't:' .. h.id)
end

-- States whose tasks are found by an index of their own, in:<state>, in the order of their creation. The others are found where they stand: lines, leases, ended.
local INDEXED = {[SCHEDULED] = true, [RETRYING] = true, [WAITING] = true, [DEAD] = true, [CANCELLED] = true}

-- One task more, or fewer, of its queue, type, priority and this state.
function S.count(h, state, n)
  if INDEXED[state] then
    if n > 0 then call('ZADD', P .. 'in:' .. state, h[F.seq], h.id) else call('ZREM', P .. 'in:' .. state, h.id) end
  end
  local field = h[F.queue] .. '\t' .. h[F.type] .. '\t' .. h[F.priority] .. '\t' .. state
  S.counts[field] = (S.counts[field] or 0) + n
end

-- What the step tells others

function S.listening()
  if S.heard == nil then S.heard = tonumber(call('GET', P .. 'listen') or '0') > S.now end
  return S.heard
end

function S.tell(kind, subject, version, data)
  if S.listening() then S.events[#S.events + 1] = {kind, subject, version, S.now, data or false} end
end

-- An event of a task. Each says whose task it is: whoever may not see it is known by this alone.
function S.tell_task(kind, h, version, more)
  if S.listening() then
    local data = more or {}
    data.type, data.queue = h[F.type], h[F.queue]
    if h[F.tenant] ~= '' then data.tenant = h[F.tenant] end
    S.tell(kind, h.id, version, data)
  end
end

-- What an event says of the attempt that ends with it, if one does, and of the error.
function S.of_attempt(h, code, started_after)
  local told = {error = code}
  if h[F.state] == RUNNING then
    told.attempt = h[F.executions]
    told.duration = math.max(0, S.now - h[F.claimed_at] - (started_after or 0))
  end
  return told
end

-- beside: by task, the bytes of its checkpoints and of its signals, which a claim brings along.
local function bytes_in(text)
  local steps, signals = string.match(text or '0 0', '^(%d+) (%d+)$')
  return tonumber(steps), tonumber(signals)
end

local EPOCH = 1577836800000000  -- 2020

-- The number behind this one. The clock is the epoch of what others remember (tokens, outbox cursors): a server that forgot its last writes repeats none.
local function number_after(last) return math.max(last + 1, S.now - EPOCH) end

-- An outbox entry, if somebody subscribed to its kind.
function S.owe(kind, subject, data)
  if S.owed == nil then
    S.owed = {}
    for _, name in ipairs(call('SMEMBERS', P .. 'owed')) do S.owed[name] = true end
  end
  if S.owed[kind] then
    local number = number_after(tonumber(call('GET', P .. 'outbox') or '0'))
    call('SET', P .. 'outbox', int(number))
    call('ZADD', P .. 'outbox:' .. kind, number, cmsgpack.pack({number, subject, cjson.encode(data), S.now}))
    call('HINCRBY', P .. 'owing', subject, 1)
  end
end

-- To another shard: done there after this step, by whoever comes first, at least once and in order. Verbs: watch, fell, start.
function S.post(shard, verb, data)
  local number = number_after(tonumber(call('GET', P .. 'post') or '0'))
  call('SET', P .. 'post', int(number))
  call('ZADD', P .. 'posts', number, pack({number, shard, verb, data}))
  S.posted = true
end

-- Tasks that this step is about and that live in other shards: id -> shard.
local elsewhere = {}

-- There may be work in this queue.
function S.wake(queue) S.woke[queue] = true end

-- Into sorted sets that this script does not read again: one command for each set, at the end.
function S.add_later(key, score, name)
  local all = S.adds[key] or {}
  S.adds[key] = all
  all[#all + 1], all[#all + 2] = score, name
end

local function in_pieces(command, key, all)
  for i = 1, #all, 2000 do call(command, key, unpack(all, i, math.min(i + 1999, #all))) end
end

local RING = 10000

-- The last thing that a script does that changed something.
function S.finish()
  for key, all in pairs(S.adds) do in_pieces('ZADD', key, all) end
  local pairs_, n = {}, 0
  for id, h in pairs(R.dirty) do
    pairs_[n + 1], pairs_[n + 2] = P .. 't:' .. id, R.packed[id] or R.raw(h)
    if R.leased[id] then call('HDEL', P .. 'leases', id) end
    n = n + 2
    if n >= 2000 then
      call('MSET', unpack(pairs_, 1, n))
      pairs_, n = {}, 0
    end
  end
  if n > 0 then call('MSET', unpack(pairs_, 1, n)) end
  for field, delta in pairs(S.counts) do
    if delta ~= 0 and call('HINCRBY', P .. 'counts', field, delta) == 0 then call('HDEL', P .. 'counts', field) end
  end
  for queue in pairs(S.woke) do
    local key = P .. 'wake:' .. queue
    if call('EXISTS', key) == 0 then call('RPUSH', key, '1') end
  end
  if #S.events > 0 then
    -- One entry for all of them, under the number of the last: an entry each would cost as much as the step itself.
    local last = call('INCRBY', P .. 'told', #S.events)
    call('XADD', P .. 'events', 'MINID', '~', int(math.max(0, last - RING)), int(last) .. '-1', 'e', pack(S.events))
    call('PUBLISH', P .. 'hints', 'events')
  end
  if S.ended and tonumber(call('GET', P .. 'waited') or '0') > S.now then call('PUBLISH', P .. 'hints', 'ended') end
end

local function settings_have_changed(generation) return tonumber(call('GET', P .. 'generation') or '0') ~= generation end

-- Does this term still stand? role, holder and number as they were given. Shard 0 knows; the others know the highest they have seen.
local function term_stands(term)
  if SHARD > 0 then
    local seen = tonumber(call('HGET', P .. 'terms', term[1]) or '0')
    if term[3] > seen then call('HSET', P .. 'terms', term[1], int(term[3])) end
    return term[3] >= seen
  end
  local held = call('HMGET', P .. 'term:' .. term[1], 'holder', 'number')
  return held[1] == term[2] and tonumber(held[2]) == term[3]
end
