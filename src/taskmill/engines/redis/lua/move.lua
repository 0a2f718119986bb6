-- Tasks of a type that got limits or a fair key after they were submitted move from the plain line into its lanes, a slice at a time.
-- A: {'look', n}: answers {type, {{id, tenant, body}, …}} or false       A: {'move', type, {{id, share, limits, body}, …}}

if A[1] == 'look' then
  local name = call('HKEYS', P .. 'moving')[1]
  if not name then return pack(false) end
  local after = call('HGET', P .. 'moving', name)
  local found, rows, last = call('ZRANGEBYSCORE', P .. 'ids', '(' .. after, '+inf', 'WITHSCORES', 'LIMIT', 0, A[2]), {}, after
  for i = 1, #found, 2 do
    local h = R.get(found[i])
    if h and h[F.type] == name and h[F.lane] == 0 and h[F.state] < RUNNING then rows[#rows + 1] = {h.id, h[F.tenant], answer_raw(h.body)} end
    last = found[i + 1]
  end
  if #found < 2 * A[2] then call('HDEL', P .. 'moving', name) else call('HSET', P .. 'moving', name, last) end
  return answered(pack({name, rows}))
end
for _, t in ipairs(A[3]) do
  local h = R.get(t[1])
  if h and h[F.lane] == 0 and h[F.state] < RUNNING then
    M.leave(h)
    S.count(h, h[F.state], -1)
    if h[F.ready_at] <= S.now then h[F.state] = PENDING end
    h[F.lane], h[F.home], h.body = Lane.number(h[F.queue], t[2], t[3], '', ''), {t[2], t[3], ''}, given_raw(t[4])
    if h[F.lane] == 0 then h[F.home] = false else Lane.live(h[F.lane], 1) end
    S.count(h, h[F.state], 1)
    R.touch(h)
    M.enter(h)
  end
end
M.settle()
return done(pack(true))
