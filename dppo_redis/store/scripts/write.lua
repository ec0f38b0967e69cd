#!lua flags=allow-oom
-- Write one of the learner's own keys, also at the server's memory limit.
-- KEYS: epoch, target.  ARGV: token, 'string' value | 'hash' field value ... | 'fields' field value ...
-- A hash is replaced whole; of 'fields' the others stay.
-- Returns {outcome, number}; outcome: written, fenced (epoch found, 0 if none).
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then return {'fenced', tonumber(epoch or 0) or 0} end
if ARGV[2] == 'string' then
  redis.call('SET', KEYS[2], ARGV[3])
  return {'written', 0}
end
if ARGV[2] == 'hash' then redis.call('DEL', KEYS[2]) end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return {'written', 0}
