-- What steps have left for others behind an entry; everything up to it is delivered and cut. A: {kind, after, n, term}   answers false, or entries

if not term_stands(A[4]) then return pack(false) end
local key = P .. 'outbox:' .. A[1]
for _, raw in ipairs(call('ZRANGEBYSCORE', key, '-inf', A[2])) do
  local subject = cmsgpack.unpack(raw)[2]
  if call('HINCRBY', P .. 'owing', subject, -1) <= 0 then call('HDEL', P .. 'owing', subject) end
end
call('ZREMRANGEBYSCORE', key, '-inf', A[2])
local entries = {}
for n, raw in ipairs(call('ZRANGEBYSCORE', key, '(' .. int(A[2]), '+inf', 'LIMIT', 0, A[3])) do entries[n] = cmsgpack.unpack(raw) end
return pack(entries)
