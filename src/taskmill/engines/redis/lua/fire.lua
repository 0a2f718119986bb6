-- A schedule's tasks exist, once each by id, and it is advanced.
-- A: {generation, schedule, version, batches (one task each), next_at|false, term, made|false: the last task that was made for it in other shards}   answers 'settings', {false, code, version}, or {true, answers}

if settings_have_changed(A[1]) then return pack('settings') end
if not term_stands(A[6]) then return pack({false, 'stale_term'}) end
local name = A[2]
local item = I.read('schedule', name, true) or I.read('schedule', name, false)
if not item then return pack({false, 'not_found'}) end
if item[2] ~= A[3] then return pack({false, 'stale_version', item[2]}) end
local fired = I.read('fired', name, false)
local state = fired and cjson.decode(fired[1]) or {}
local setting = cjson.decode(item[1])
local overlap, last, answers = setting.overlap or 'allow', state.last, {}
if last == cjson.null then last = nil end
if A[7] then last = A[7] end

for _, batch in ipairs(A[4]) do
  local id = batch[2][1][1]
  local h = last and last ~= id and R.get(last)
  local skip = false
  if h and h[F.state] < COMPLETED and not R.get(id) then
    if overlap == 'skip' then
      skip = true
    elseif overlap == 'replace' then
      if h[F.state] ~= RUNNING then M.cancel(h) elseif band(h[F.flags], CANCEL) == 0 then M.request_cancel(h) end
      M.settle()
    end
  end
  if not skip then
    local b = B.open(batch)
    B.judge(b)
    B.store(b)
    answers[#answers + 1] = b.answers[1]
    if b.answers[1][1] ~= 'refused' then last = b.answers[1][2] end
  end
end
local fired_at = (#A[4] > 0 or A[7]) and S.now or state.fired_at  -- without tasks, its next time was only found out
local facts = {
  '"next_at":' .. (A[5] and int(A[5]) or 'null'), '"last":' .. (last and cjson.encode(last) or 'null'),
  '"cron":' .. (setting.cron and cjson.encode(setting.cron) or 'null'),
}
if type(fired_at) == 'number' then facts[#facts + 1] = '"fired_at":' .. int(fired_at) end
local text = '{' .. table.concat(facts, ',') .. '}'  -- by hand: cjson prints 14 digits
call('HSET', P .. 'items:fired', name .. '\t0', pack({text, fired and fired[2] + 1 or 1, '', 0}))
S.tell('schedule.fired', name, A[3])
M.settle()
return done(pack({true, answers}))
