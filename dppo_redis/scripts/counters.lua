#!lua flags=no-writes,allow-oom
-- The stream's own counters and the ledger at one moment. A transaction would be refused by a server
-- at its memory limit, and XINFO would send whole entries to the client.
-- KEYS: rollouts, ledger.  Returns {entries added, backlog, {field, count, ...}}.
local added = 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do
    if info[i] == 'entries-added' then added = info[i + 1] end
  end
end
return {added, redis.call('XLEN', KEYS[1]), redis.call('HGETALL', KEYS[2])}
