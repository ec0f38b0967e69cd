#!lua flags=allow-oom
-- The valve: remove the oldest rollouts that nobody has read yet, and count them as lost. What the
-- learner has in hand is older, and stays.
-- KEYS: epoch, rollouts, ledger.  ARGV: token, group, how many.
-- Returns {outcome, number}; outcome: trimmed (how many), fenced (epoch found, 0 if none).
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then return {'fenced', tonumber(epoch or 0) or 0} end

if redis.call('EXISTS', KEYS[2]) == 0 then return {'trimmed', 0} end
local last
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  if info['name'] == ARGV[2] then last = info['last-delivered-id'] end
end
if not last then return {'trimmed', 0} end

local removed = 0
for _ = 1, tonumber(ARGV[3]) do
  local found = redis.call('XRANGE', KEYS[2], '(' .. last, '+', 'COUNT', 1)
  if #found == 0 then break end
  last = found[1][1]
  removed = removed + redis.call('XDEL', KEYS[2], last)
end
if removed > 0 then -- where somebody damaged the ledger, the keeper puts back what the learner remembers
  redis.pcall('HINCRBY', KEYS[3], 'lost', removed)
  redis.pcall('HINCRBY', KEYS[3], 'lost:valve', removed)
end
return {'trimmed', removed}
