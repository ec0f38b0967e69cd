#!lua flags=allow-oom
-- Make stream and group where they are missing, also at the server's memory limit: without a group nobody
-- could drain it.
-- KEYS: rollouts.  ARGV: group.  Returns 1 where the stream itself is new.
local is_new = redis.call('EXISTS', KEYS[1]) == 0
if not is_new then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    for i = 1, #group, 2 do
      if group[i] == 'name' and group[i + 1] == ARGV[1] then return 0 end
    end
  end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
return is_new and 1 or 0
