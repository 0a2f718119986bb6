-- Remember ids and keys, for a log that will bring the tasks.
-- A: {{id, tenant, type, key|false, hash, window}, …}   answers {status, id, reserved, body|false} for each: with a body the caller compares payloads

-- Who has this key already; else it is this task's now.
local function key_holder(t)
  local name = t[2] .. '\t' .. t[3] .. '\t' .. t[4]
  local raw = call('GET', P .. 'd:' .. name)
  local d = raw and cmsgpack.unpack(raw)
  local h = d and d[1] ~= t[1] and R.get(d[1])
  if d and d[1] ~= t[1] and (d[3] > S.now or (h and h[F.state] < COMPLETED)) then return d end
  call('SET', P .. 'd:' .. name, pack({t[1], t[5], S.now + t[6]}))
  call('ZADD', P .. 'keys', S.now + t[6], name)
end

local function reserve(t)
  local id, hash, till = t[1], t[5], S.now + t[6]
  local h, k = R.get(id), known(id)
  if h then return {'duplicate', id, false, answer_raw(h.body)} end
  if k then return {k[3] == hash and 'duplicate' or 'conflict', id, not k[1], false} end
  local held = t[4] and key_holder(t)
  if held then
    local other = not R.get(held[1]) and known(held[1])
    return {held[2] == hash and 'duplicate' or 'conflict', held[1], other and not other[1] or false, false}
  end
  call('SET', P .. 'known:' .. id, pack({false, 0, hash, till}))
  call('ZADD', P .. 'forgets', till, id)
  return {'created', id, true, false}
end

local answers = {}
for n, t in ipairs(A) do answers[n] = reserve(t) end
return done(pack(answers))
