#!lua flags=allow-oom
-- Take, renew or hand back the lease. The epoch is the fencing token of every learner write.
-- The lease holds "owner beat", another beat after each renewal: a taker that saw one value stand still for
-- the whole time to live, by its own clock, may replace exactly that value. The server's clock may have been set.
-- KEYS: lease, epoch.  ARGV: owner, ttl in ms (0 hands back), own epoch (0 before the first), floor,
-- how far a new epoch lies above all known (0: only keep what one has), beat, value that stood still
-- ('' where none did).
-- Returns {outcome, epoch, value of the lease}; outcome: acquired, held, busy, fenced, released.
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local mine, floor = tonumber(ARGV[3]), tonumber(ARGV[4])
local step, fresh, dead = tonumber(ARGV[5]), ARGV[1] .. ' ' .. ARGV[6], ARGV[7]
local value = redis.call('GET', KEYS[1])
local holder = value and string.match(value, '^[^ ]*')
local epoch = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
if not (epoch >= 0 and epoch < 2 ^ 52) or epoch % 1 ~= 0 then epoch = 0 end -- damaged: nobody counts so far
if ttl == 0 then
  if holder == owner then redis.call('DEL', KEYS[1]) end
  return {'released', epoch, value or ''}
end
-- A learner's lease runs out by itself: one that does not was left by somebody else and binds nobody.
if holder and holder ~= owner and redis.pcall('PTTL', KEYS[1]) == -1 then holder = false end
if holder and holder ~= owner and dead ~= '' and value == dead then holder = false end
if holder and holder ~= owner then
  return {mine > 0 and 'fenced' or 'busy', epoch, value}
end
if step == 0 and not (holder == owner and epoch == mine) then return {'busy', epoch, value or ''} end
if mine > 0 and epoch > mine and holder == owner then -- acquired already: the reply was lost
  redis.call('SET', KEYS[1], fresh, 'PX', ttl)
  return {'acquired', epoch, fresh}
end
if mine > 0 and epoch > mine then return {'fenced', epoch, value or ''} end
if mine > 0 and epoch == mine then
  redis.call('SET', KEYS[1], fresh, 'PX', ttl)
  return {'held', epoch, fresh}
end
-- First acquisition, or the epoch was wiped or restored to an older one: go above all known, by a random step:
-- where all that knew the highest one was restored from a backup, it is not taken a second time.
epoch = math.max(epoch, mine, floor) + step
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
redis.call('SET', KEYS[1], fresh, 'PX', ttl)
return {'acquired', epoch, fresh}
