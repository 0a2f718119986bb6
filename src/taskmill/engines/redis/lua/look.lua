-- Records as they are now. A: ids   answers {now, rows}; a row is {record, lease|false}, {known} where only that is left of a task, or false

local keys, found = {}, {}
for n, id in ipairs(A) do keys[n] = P .. 't:' .. id end
local records, leases = call('MGET', unpack(keys)), call('HMGET', P .. 'leases', unpack(A))
for n, record in ipairs(records) do
  local known = not record and call('GET', P .. 'known:' .. A[n])
  found[n] = record and {answer_raw(record), leases[n]} or known and {answer_raw(known)}
end
local all = {pack({S.now, found})}
for n, text in ipairs(raws) do all[n + 1] = text end
return all
