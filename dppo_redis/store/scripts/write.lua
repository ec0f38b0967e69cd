#!lua flags=allow-oom
-- Write one of the learner's own keys, also at the server's memory limit.
-- KEYS: epoch, target.  ARGV: token, 'string' value | 'hash' field value ... | 'fields' field value ... |
-- 'dated' name field value ...
-- A hash is replaced whole; of 'fields' the others stay; one that is 'dated' says by the server's clock when it
-- was written, in the field `name`, because readers on other hosts have clocks of their own.
-- Returns {outcome, number}; outcome: written, fenced (epoch found, 0 if none).
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then return {'fenced', tonumber(epoch or 0) or 0} end
if ARGV[2] == 'string' then
  redis.call('SET', KEYS[2], ARGV[3])
  return {'written', 0}
end
local first = 3
if ARGV[2] ~= 'fields' then redis.call('DEL', KEYS[2]) end
if ARGV[2] == 'dated' then
  first = 4
  local now = redis.pcall('TIME') -- a user of an older access file has no right to it
  if now[1] then redis.call('HSET', KEYS[2], ARGV[3], string.format('%d.%03d', now[1], math.floor(now[2] / 1000))) end
end
for i = first, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return {'written', 0}
