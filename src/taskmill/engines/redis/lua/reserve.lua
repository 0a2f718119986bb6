-- Remember ids and keys, for a log that will bring the tasks.
-- A: {{id, tenant, type, key|false, hash, window}, …}   answers {status, id, reserved} for each

local answers = {}
for n, t in ipairs(A) do
  local id, hash, till = t[1], t[5], S.now + t[6]
  local held
  if t[4] then
    local name = t[2] .. '\t' .. t[3] .. '\t' .. t[4]
    local raw = call('GET', P .. 'd:' .. name)
    local d = raw and cmsgpack.unpack(raw)
    local h = d and d[1] ~= id and R.get(d[1])
    if d and d[1] ~= id and (d[3] > S.now or (h and h[F.state] < COMPLETED)) then
      held = d
    else
      call('SET', P .. 'd:' .. name, pack({id, hash, till}))
      call('ZADD', P .. 'keys', till, name)
    end
  end
  local first = held and held[1] or id
  local h, k = R.get(first), known(first)
  if held or h or k then
    answers[n] = {(not held or held[2] == hash) and 'duplicate' or 'conflict', first, not h and k and not k[1] or false}
  else
    call('SET', P .. 'known:' .. id, pack({false, 0, hash, till}))
    call('ZADD', P .. 'forgets', till, id)
    answers[n] = {'created', id, true}
  end
end
return done(pack(answers))
