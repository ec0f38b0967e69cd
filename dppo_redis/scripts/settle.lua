#!lua flags=allow-oom
-- Give rollouts their final outcome. It counts only where XDEL removed the entry, so a repeated
-- settle, or an entry that was trimmed meanwhile, counts nothing twice.
-- KEYS: epoch, rollouts, ledger.  ARGV: token, group, then id outcome reason steps ...
-- Returns {outcome, number, counted ...}; outcome: settled, fenced (epoch found, 0 if none).
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then return {'fenced', tonumber(epoch or 0)} end
local answer = {'settled', 0}
for i = 3, #ARGV, 4 do
  local id, outcome, reason, steps = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  redis.call('XACK', KEYS[2], ARGV[2], id)
  local removed = redis.call('XDEL', KEYS[2], id)
  if removed == 1 then
    answer[2] = answer[2] + 1
    redis.call('HINCRBY', KEYS[3], outcome, 1)
    if reason ~= '' then redis.call('HINCRBY', KEYS[3], outcome .. ':' .. reason, 1) end
    if steps > 0 then redis.call('HINCRBY', KEYS[3], 'steps:' .. outcome, steps) end
  end
  answer[#answer + 1] = removed
end
return answer
