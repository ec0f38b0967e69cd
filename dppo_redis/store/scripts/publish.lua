#!lua flags=allow-oom
-- Replace the weights hash at once; refuse an old token and a version that is not higher.
-- KEYS: epoch, weights.  ARGV: token, version, then field value ...
-- Returns {outcome, number}; outcome: published, fenced (epoch found, 0 if none), regression (version found).
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then return {'fenced', tonumber(epoch or 0) or 0} end
local stored = tonumber(redis.call('HGET', KEYS[2], 'version') or 0) or 0
if not (stored >= 0 and stored < 2 ^ 52) or stored % 1 ~= 0 then stored = 0 end -- damaged: nobody counts so far
if stored >= tonumber(ARGV[2]) then return {'regression', stored} end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return {'published', tonumber(ARGV[2])}
