-- Submit, for tasks that nothing sets apart: ready now, under no limit, with no key, no edge, no share. The caller has made their records.
-- A: {generation, groups {{queue, type, priority, how many, tenant}, …}}; then for each task its id, and its record without time and number
-- answers 'settings', 'full' (an id is known already: ask submit.lua), or true

if settings_have_changed(A[1]) then return pack('settings') end
local keys, n = {}, 0
for _, g in ipairs(A[2]) do
  for _ = 1, g[4] do
    local id = ARGV[2 * n + 3]
    n = n + 1
    keys[2 * n - 1], keys[2 * n] = P .. 't:' .. id, P .. 'known:' .. id
  end
end
if call('EXISTS', unpack(keys)) > 0 then return pack('full') end

local last = call('INCRBY', P .. 'seq', n)
local place, records, ids, now, hears = 0, {}, {}, int(S.now), S.listening()
for _, g in ipairs(A[2]) do
  local line, kind = {}, '-' .. g[2]
  for i = 1, g[4] do
    place = place + 1
    local seq, id = last - n + place, ARGV[2 * place + 1]
    local number = string.format('%012x', seq)
    records[2 * place - 1], records[2 * place] = keys[2 * place - 1], STAMP .. number .. ARGV[2 * place + 2]
    ids[2 * place - 1], ids[2 * place] = seq, id
    line[2 * i - 1], line[2 * i] = now, number .. kind .. id
    if hears then S.tell('task.submitted', id, 1, {type = g[2], queue = g[1], tenant = g[5] ~= '' and g[5] or nil}) end
  end
  call('ZADD', P .. 'q:' .. g[1] .. ':' .. g[3], unpack(line))
  call('SADD', P .. 'queues', g[1])
  local field = g[1] .. '\t' .. g[2] .. '\t' .. g[3] .. '\t' .. PENDING
  S.counts[field] = (S.counts[field] or 0) + g[4]
  S.wake(g[1])
end
call('MSET', unpack(records))
call('ZADD', P .. 'ids', unpack(ids))
S.finish()
return pack(true)
