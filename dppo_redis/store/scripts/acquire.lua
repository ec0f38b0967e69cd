#!lua flags=allow-oom
-- Take, renew or hand back the lease. The epoch is the fencing token of every learner write.
-- KEYS: lease, epoch.  ARGV: owner, ttl in ms (0 hands back), own epoch (0 before the first), floor.
-- Returns {outcome, epoch, holder}; outcome: acquired, held, busy, fenced, released.
local owner, ttl = ARGV[1], tonumber(ARGV[2])
local mine, floor = tonumber(ARGV[3]), tonumber(ARGV[4])
local holder = redis.call('GET', KEYS[1])
local epoch = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
if not (epoch >= 0 and epoch < 2 ^ 52) or epoch % 1 ~= 0 then epoch = 0 end -- damaged: nobody counts so far
if ttl == 0 then
  if holder == owner then redis.call('DEL', KEYS[1]) end
  return {'released', epoch, holder or ''}
end
-- A learner's lease runs out by itself: one that does not was left by somebody else and binds nobody.
if holder and holder ~= owner and redis.pcall('PTTL', KEYS[1]) == -1 then holder = false end
if holder and holder ~= owner then
  return {mine > 0 and 'fenced' or 'busy', epoch, holder}
end
if mine > 0 and epoch > mine and holder == owner then -- acquired already: the reply was lost
  redis.call('SET', KEYS[1], owner, 'PX', ttl)
  return {'acquired', epoch, owner}
end
if mine > 0 and epoch > mine then return {'fenced', epoch, holder or ''} end
if mine > 0 and epoch == mine then
  redis.call('SET', KEYS[1], owner, 'PX', ttl)
  return {'held', epoch, owner}
end
-- First acquisition, or the epoch was wiped or restored to an older one: go above all known.
epoch = math.max(epoch, mine, floor) + 1
redis.call('SET', KEYS[2], epoch)
redis.call('SET', KEYS[1], owner, 'PX', ttl)
return {'acquired', epoch, owner}
