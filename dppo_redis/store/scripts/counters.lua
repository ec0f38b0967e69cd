#!lua flags=no-writes,allow-oom
-- The stream's own counters and the ledger at one moment. A transaction would be refused by a server
-- at its memory limit, and XINFO would send whole entries to the client.
-- KEYS: rollouts, ledger.  Returns {entries added, backlog, {field, count, ...}, bytes of the stream}.
local added, length, bytes = 0, redis.call('XLEN', KEYS[1]), 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  local largest = 0
  local info = redis.call('XINFO', 'STREAM', KEYS[1], 'FULL', 'COUNT', 1) -- without FULL: two whole entries
  for i = 1, #info, 2 do
    if info[i] == 'entries-added' then added = info[i + 1] end
    if info[i] == 'entries' and info[i + 1][1] then
      for _, field in ipairs(info[i + 1][1][2]) do largest = largest + #field end
    end
  end
  -- Without the right to ask for the memory, as if all entries were like the oldest.
  local usage = redis.pcall('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', '0')
  bytes = type(usage) == 'number' and usage or length * largest
end
return {added, length, redis.call('HGETALL', KEYS[2]), bytes}
