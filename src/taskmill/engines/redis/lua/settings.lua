-- Small settings by kind and name: an operator's stands over what code declares. An item is {value, version, app, app_version}; what steps obey is kept
-- beside the items in the form in which they read it: limits, queue_settings, paused, owed.

local I = {}

local HOT = {type = true, limit = true, queue = true, pause = true, outbox = true}

local function field(name, operator) return name .. (operator and '\t1' or '\t0') end

function I.read(kind, name, operator)
  local raw = call('HGET', P .. 'items:' .. kind, field(name, operator))
  return raw and cmsgpack.unpack(raw) or nil
end

-- The value in force.
function I.value(kind, name)
  local item = I.read(kind, name, true) or I.read(kind, name, false)
  return item and item[1] or nil
end

function I.all(kind)
  local found, items = call('HGETALL', P .. 'items:' .. kind), {}
  for i = 1, #found, 2 do
    items[#items + 1] = {name = string.sub(found[i], 1, -3), operator = string.sub(found[i], -1) == '1', item = cmsgpack.unpack(found[i + 1])}
  end
  return items
end

local function given(value)
  if value == nil or value == cjson.null then return false end
  return value
end

-- As steps read it.
local function obey(kind, name, value)
  local v = value and cjson.decode(value)
  if kind == 'limit' then
    if v then
      call('HSET', P .. 'limits', name, pack({given(v.rate), given(v.window) or 1000000, given(v.cap)}))
    else
      call('HDEL', P .. 'limits', name)
    end
    Limit.definitions[name] = nil
    local seen = {}  -- several shares may stand at one limit
    for _, one in ipairs(call('HKEYS', P .. 'stands')) do
      local limit = Limit.whole(string.match(one, '^(.*)\t'))
      if string.match(limit, '^[^:]*') == name and not seen[limit] then
        seen[limit] = true
        if Limit.all[limit] then Limit.save(Limit.all[limit]) end  -- what it has forgotten is written, before it is read by its new numbers
        Limit.all[limit], Limit.all[CAP .. limit] = nil, nil
        Lane.wake(Limit.get(limit))
      end
    end
  elseif kind == 'queue' then
    if v then
      call('HSET', P .. 'queue_settings', name, pack({given(v.weights) or {}, given(v.priorities)}))
    else
      call('HDEL', P .. 'queue_settings', name)
    end
  elseif kind == 'pause' then
    call(value and 'SADD' or 'SREM', P .. 'paused', name)
  elseif kind == 'outbox' then
    call(value and 'SADD' or 'SREM', P .. 'owed', name)
    S.owed = nil
  end
end

-- A type's first limit, or fair key, takes tasks from then on; older ones move into lanes in slices.
local function moves(before, after)
  if not before or not after then return false end
  local was, is = cjson.decode(before), cjson.decode(after)
  return cjson.encode({given(was.limits), given(was.fair)}) ~= cjson.encode({given(is.limits), given(is.fair)})
end

-- Change an item (nil: remove it). Obeyed by every following step at once, this one included; a step that changes many has one generation.
function I.write(kind, name, operator, item)
  local before = I.value(kind, name)
  if item then
    call('HSET', P .. 'items:' .. kind, field(name, operator), pack(item))
  else
    call('HDEL', P .. 'items:' .. kind, field(name, operator))
  end
  local after = I.value(kind, name)
  S.tell('setting.changed', kind .. '/' .. name, 0)
  if kind == 'schedule' and not after then call('HDEL', P .. 'items:fired', name .. '\t0') end  -- put again some day, it is a new one
  if (HOT[kind] or kind == 'schedule') and not I.woke then
    I.woke = true
    for _, queue in ipairs(call('SMEMBERS', P .. 'queues')) do S.wake(queue) end
  end
  if HOT[kind] then
    if not I.renewed then
      I.renewed = true
      call('SET', P .. 'generation', int(number_after(tonumber(call('GET', P .. 'generation') or '0'))))
    end
    obey(kind, name, after)
    if kind == 'type' and moves(before, after) then call('HSET', P .. 'moving', name, '0') end
  end
end

-- Code's own setting, never over one of a higher version; unchanged ones cost nothing.
function I.declare(kind, name, value, app, version)
  local item = I.read(kind, name, false)
  if item and (item[4] > version or (item[1] == value and item[4] == version)) then return end
  local same = item and item[1] == value
  local new = {value, item and item[2] + (same and 0 or 1) or 1, app, version}
  if same then
    call('HSET', P .. 'items:' .. kind, field(name, false), pack(new))
  else
    I.write(kind, name, false, new)
  end
end
