# shellcheck shell=bash
# New keys, bound by the CPU: nobody waits for the disk.
begin new_keys 'New keys, synchronous_commit = off, 4 clients'
line '0 bare effect' 0_bare.new
line '1 from the client, five round trips' 1_client.new
line '2 one PL/pgSQL function' 2_function.new
line '3 recovery points, three transactions' 3_recovery.new
line '4 advisory lock and table' 4_advisory.new
line '6 ours: one function' 6_ours_function.new
line '6 ours: one function, no arguments' 6_ours_plain.new
line '6 ours: idem_call' 6_ours_call.new
line '6 ours: idem_once' 6_ours_once.new
line '6 ours: leased, two transactions' 6_ours_leased.new
line '6 ours: 100 keys at a time' 6_ours_many100.new 100
line '6 ours: 1,000 keys at a time' 6_ours_many1000.new 1000
rounds
target 'claim + effect + complete in one call, CPU-bound, to the bare effect' at-least 0.70 "$(ratio '6 ours: one function' '0 bare effect')"
target 'the same to contender 2' at-least 1.4 "$(ratio '6 ours: one function' '2 one PL/pgSQL function')"
target 'the same without arguments, to the bare effect' at-least 0.70 "$(ratio '6 ours: one function, no arguments' '0 bare effect')"
target 'the same without arguments, to contender 2' at-least 1.4 "$(ratio '6 ours: one function, no arguments' '2 one PL/pgSQL function')"
