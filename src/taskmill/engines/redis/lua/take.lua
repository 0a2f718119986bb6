-- Ask a rate directly. A: {limit, n, id}   answers {granted, retry_at|false} or {false, false, 'unknown'} or {false, false, 'range', rate}

local d = definition_of(A[1])
if not d[1] then return pack({false, false, 'unknown'}) end
if A[2] > d[1] then return pack({false, false, 'range', d[1]}) end
local raw = call('GET', P .. 'taken:' .. A[3])
if raw then return raw end
local l = Limit.get(A[1])
local granted = l.rate - l.used >= A[2]
if granted then Limit.count(l, A[2]) end
Limit.save(l)
local answer = pack({granted, not granted and Limit.next_room_at(l) or false})
call('SET', P .. 'taken:' .. A[3], answer)
call('ZADD', P .. 'takens', S.now + l.window, A[3])
return done(answer)
