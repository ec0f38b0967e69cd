#!lua flags=allow-oom
-- Have what the group has passed, and nobody holds, delivered again: after XGROUP SETID or XACK by hand it
-- would count as backlog for ever, and actors would wait for it.
-- While new entries come the oldest one of all tells: everything before it was settled, so that what was skipped
-- is the oldest soon. What is in hand is delivered again, too; its holder knows it.
-- KEYS: rollouts.  ARGV: group, 1 for a check that does not trust the group's lag.  Returns 1 where there are such entries, else 0.
local waiting = redis.call('XLEN', KEYS[1]) - redis.call('XPENDING', KEYS[1], ARGV[1])[1]
if waiting <= 0 then return 0 end
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local found = {}
  for i = 1, #group, 2 do found[group[i]] = group[i + 1] end
  local last = found['last-delivered-id']
  -- If all that waits is new, nothing was skipped. This spares XRANGE below, which copies whole entries into
  -- this script. The lag is too high where unread entries were deleted, so now and then it is not trusted.
  if found['name'] == ARGV[1] and found['lag'] == waiting and ARGV[2] ~= '1' then return 0 end
  if found['name'] == ARGV[1] and #redis.call('XRANGE', KEYS[1], '(' .. last, '+', 'COUNT', 1) > 0 then
    local oldest = redis.call('XRANGE', KEYS[1], '-', last, 'COUNT', 1)[1]
    if not oldest then return 0 end
    if #redis.call('XPENDING', KEYS[1], ARGV[1], oldest[1], oldest[1], 1) > 0 then return 0 end
  end
end
redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], '0')
return 1
