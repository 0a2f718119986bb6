-- Results of tasks that completed longer ago than they are kept are dropped; their records stay.
-- A: {n, term, kept, last|false, ended_at}: the last one that was looked at, and when it ended   answers false, or {moved, more, last|false, ended_at}
-- A task that owes its result to others ends the pass until it is delivered.

if not term_stands(A[2]) then return pack(false) end
local key, until_, last, at, moved = P .. 'ended:' .. COMPLETED, S.now - A[3], A[4], A[5], 0
local rank = last and call('ZRANK', key, last)
local from = rank and rank + 1 or call('ZCOUNT', key, '-inf', '(' .. string.format('%.0f', at))
local found = call('ZRANGE', key, from, from + A[1] - 1, 'WITHSCORES')
local more = #found == 2 * A[1]
for i = 1, #found, 2 do
  local h, ended_at = R.get(found[i]), tonumber(found[i + 1])
  if ended_at > until_ or M.owes(h) then
    more = false
    break
  end
  if h[F.result] then
    M.keep_results(h)
    h[F.result] = false
    R.touch(h)
    moved = moved + 1
  end
  last, at = found[i], ended_at
end
return done(pack({moved, more, last, at}))
