-- Events are kept for a while more. If nobody had asked for them until now, something may have gone untold: everybody who listened is told so.
-- A: {how long}   answers the number of the last event

if not S.listening() then
  S.heard = true
  S.tell('resync', '', 0)
end
S.finish()
call('SET', P .. 'listen', int(S.now + A[1]))
return pack(tonumber(call('GET', P .. 'told') or '0'))
