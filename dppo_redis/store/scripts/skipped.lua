#!lua flags=allow-oom
-- Have what the group has passed, and nobody holds, delivered again: after XGROUP SETID or XACK by hand it
-- would count as backlog for ever, and actors would wait for it.
-- KEYS: rollouts.  ARGV: group.  Returns how many entries there are; 0 while others are still to come.
local skipped = redis.call('XLEN', KEYS[1]) - redis.call('XPENDING', KEYS[1], ARGV[1])[1]
if skipped <= 0 then return 0 end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local found = {}
  for i = 1, #group, 2 do found[group[i]] = group[i + 1] end
  if found['name'] == ARGV[1] then
    local after = '(' .. found['last-delivered-id']
    if #redis.call('XRANGE', KEYS[1], after, '+', 'COUNT', 1) > 0 then return 0 end
  end
end
redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], '0')
return skipped
