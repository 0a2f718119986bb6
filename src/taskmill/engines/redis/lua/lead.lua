-- Leadership, on the store's clock. A: {verb, role, holder, length, number, mono}   lead answers the number or false; resign true

local key, verb, holder = P .. 'term:' .. A[2], A[1], A[3]
local mono = A[6] > 0 and A[6] or S.now
local held = call('HMGET', key, 'holder', 'number', 'until', 'since')
local number, till = tonumber(held[2] or '0'), tonumber(held[3] or '0')
if verb == 'resign' then
  if held[1] == holder and number == A[5] then call('HSET', key, 'holder', '', 'until', '0') end
  return pack(true)
end
local led = held[1] and held[1] ~= '' and till > mono and till <= mono + 2 * A[4]  -- a longer one is of a clock that was set back
if led and held[1] ~= holder then return pack(false) end
if not led or held[1] ~= holder then
  number = number_after(number)
  call('HSET', key, 'holder', holder, 'number', int(number), 'since', int(S.now))
  S.tell('leader.changed', A[2], number, {holder = holder})
end
call('HSET', key, 'until', int(mono + A[4]))
return done(pack(number))
