# shellcheck shell=bash
# New keys, each commit on disk before it is answered.
begin durable 'New keys, fsync and synchronous_commit on, 8 clients'
CLIENTS=8
SESSION='-c synchronous_commit=on'
line '0 bare effect' 0_bare.new
line '1 from the client, five round trips' 1_client.new
line '2 one PL/pgSQL function' 2_function.new
line '3 recovery points, three transactions' 3_recovery.new
line '4 advisory lock and table' 4_advisory.new
line '6 ours: one function' 6_ours_function.new
line '6 ours: idem_call' 6_ours_call.new
line '6 ours: idem_once' 6_ours_once.new
line '6 ours: leased, two transactions' 6_ours_leased.new
line '6 ours: 1,000 keys at a time' 6_ours_many1000.new 1000
rounds
target 'claim + effect + complete, fsync on, 8 clients, to the bare effect' at-least 0.85 "$(ratio '6 ours: one function' '0 bare effect')"
target 'the same to contender 1' at-least 2 "$(ratio '6 ours: one function' '1 from the client, five round trips')"
