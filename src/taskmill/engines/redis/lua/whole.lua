-- Whole records of one moment. A: ids   answers how many attempts lie beside each record, false where there is none; the strings are each record and its attempts

local counts = {}
for n, id in ipairs(A) do
  local record, attempts = call('GET', P .. 't:' .. id), {}
  if record then
    answer_raw(record)
    attempts = call('LRANGE', P .. 'attempts:' .. id, 0, -1)
    for _, attempt in ipairs(attempts) do answer_raw(attempt) end
  end
  counts[n] = record and #attempts
end
return answered(pack(counts))
