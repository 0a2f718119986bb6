-- Parents of this shard wait for children of others too, as long as they are sealed. A: {{{parent, child, on_failure}, …}, elsewhere (id -> shard)}

elsewhere = A[2]
for _, edge in ipairs(A[1]) do
  local h = R.get(edge[1])
  if h and h[F.state] == WAITING and band(h[F.flags], SEALED) ~= 0 then M.add_edge(h, edge[2], nil, edge[3]) end
end
M.settle()
return done(pack(true))
