-- This shard obeys the settings of shard 0, as somebody has read them there; not if it knows newer ones.
-- A: {generation, {{kind, field, value (raw)}, …}, how many shards, until when somebody listens, the schema of a new shard}   answers true

local known = tonumber(call('GET', P .. 'generation') or '-1')
if call('EXISTS', P .. 'store') == 0 then call('HSET', P .. 'store', 'schema', int(A[5]), 'shards', int(A[3])) end
if A[4] > tonumber(call('GET', P .. 'listen') or '0') then call('SET', P .. 'listen', int(A[4])) end
S.heard = false  -- shard 0 has told of it
if known >= A[1] then return done(pack(true)) end
local wanted = {}
for _, item in ipairs(A[2]) do
  wanted[item[1]] = wanted[item[1]] or {}
  wanted[item[1]][item[2]] = given_raw(item[3])
end
for kind in pairs(HOT) do
  local mine, theirs = {}, wanted[kind] or {}
  local found = call('HGETALL', P .. 'items:' .. kind)
  for i = 1, #found, 2 do mine[found[i]] = found[i + 1] end
  for name, raw in pairs(theirs) do
    if mine[name] ~= raw then I.write(kind, string.sub(name, 1, -3), string.sub(name, -1) == '1', cmsgpack.unpack(raw)) end
  end
  for name in pairs(mine) do
    if not theirs[name] then I.write(kind, string.sub(name, 1, -3), string.sub(name, -1) == '1', nil) end
  end
end
call('SET', P .. 'generation', int(A[1]))
M.settle()
return done(pack(true))
