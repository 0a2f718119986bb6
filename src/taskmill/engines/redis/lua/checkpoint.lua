-- Checkpoints: what running tasks have done so far, each merged under its lease.
-- A: {{task, worker, token, name|false, value, progress|false, unwind: -1, 0 or 1, phase|false, event data}, …}   answers {{place, code}, …}, the refused

local refused = {}
for n, e in ipairs(A) do
  local h = R.get(e[1])
  if not h or h[F.state] ~= RUNNING or h[F.token] ~= e[3] or h[F.worker] ~= e[2] then
    refused[#refused + 1] = {n, h and 'stale_lease' or 'not_found'}
  else
    if e[4] then
      call('HSET', P .. 'checkpoints:' .. h.id, e[4], e[5])
      h[F.flags] = bor(h[F.flags], CHECKPOINTS)
    end
    if e[7] == 1 then h[F.flags] = bor(h[F.flags], UNWIND) elseif e[7] == 0 then h[F.flags] = band(h[F.flags], bnot(UNWIND)) end
    if e[6] then h[F.progress] = e[6] end
    if e[8] then h[F.phase] = e[8] end
    h[F.version], h[F.updated_at] = h[F.version] + 1, S.now
    R.touch(h)
    S.tell_task('task.progress', h, h[F.version], e[9])
  end
end
return done(pack(refused))
