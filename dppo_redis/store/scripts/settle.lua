#!lua flags=allow-oom
-- Give rollouts their final outcome. It counts only where XDEL removed the entry, so a repeated
-- settle, or an entry that was trimmed meanwhile, counts nothing twice.
-- KEYS: epoch, rollouts, ledger.  ARGV: token, group, then id outcome reason steps ...
-- Returns {outcome, number, counted ...}; outcome: settled, fenced (epoch found, 0 if none).
local epoch = redis.call('GET', KEYS[1])
if epoch ~= ARGV[1] then return {'fenced', tonumber(epoch or 0) or 0} end

-- A ledger that somebody damaged must not keep an entry from being settled: the damaged field, or
-- key, begins anew, and the keeper puts back the higher count that the learner remembers.
local function add(field, by)
  local answer = redis.pcall('HINCRBY', KEYS[3], field, by)
  if type(answer) == 'table' and answer.err then
    if redis.call('TYPE', KEYS[3]).ok ~= 'hash' then redis.call('DEL', KEYS[3]) end
    redis.call('HSET', KEYS[3], field, by)
  end
end

local answer, totals, names, ids = {'settled', 0}, {}, {}, {}
local function count(field, by)
  if not totals[field] then names[#names + 1] = field end
  totals[field] = (totals[field] or 0) + by
end

local function acknowledge()
  if #ids > 0 then redis.call('XACK', KEYS[2], ARGV[2], unpack(ids)) end
  ids = {}
end

for i = 3, #ARGV, 4 do
  local id, outcome, reason, steps = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  ids[#ids + 1] = id
  if #ids == 1000 then acknowledge() end
  local removed = redis.call('XDEL', KEYS[2], id)
  if removed == 1 then
    answer[2] = answer[2] + 1
    count(outcome, 1)
    if reason ~= '' then count(outcome .. ':' .. reason, 1) end
    if steps > 2 ^ 40 then -- as text: a number of Lua's holds 53 bits
      add('steps:' .. outcome, ARGV[i + 3])
    elseif steps > 0 then
      count('steps:' .. outcome, steps)
    end
  end
  answer[#answer + 1] = removed
end
acknowledge()
for _, field in ipairs(names) do add(field, totals[field]) end
return answer
