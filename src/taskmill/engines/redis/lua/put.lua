-- Put or drop a setting. A: {verb, kind, name, operator, version|false, value}   answers {version} or {false, the version it has}; drop: {dropped} or {false, version}

local verb, kind, name, operator, version = A[1], A[2], A[3], A[4], A[5]
local item = I.read(kind, name, operator)
local current = item and item[2] or 0
if verb == 'drop' then
  if not item then return pack({0}) end
  if version and current ~= version then return pack({false, current}) end
  I.write(kind, name, operator, nil)
  S.owe('audit', kind .. '/' .. name, {kind = kind, name = name, version = cjson.null})
  return done(pack({1}))
end
local value = A[6]
if version and current ~= version then
  if item and current == version + 1 and item[1] == value then return pack({current}) end
  return pack({false, current})
end
if not item or item[1] ~= value or version then
  current = current + 1
  I.write(kind, name, operator, {value, current, '', 0})
  if operator then S.owe('audit', kind .. '/' .. name, {kind = kind, name = name, version = current}) end
end
return done(pack({current}))
