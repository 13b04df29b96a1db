# shellcheck shell=bash
# Requests whose key is finished: one of the old keys, by chance.
begin replays 'Replays of old keys, 4 clients'
line '0 SELECT by primary key in a function' 0_bare.replay
line '1 from the client, four round trips' 1_client.replay
line '2 one PL/pgSQL function' 2_function.replay
line '3 recovery points' 3_recovery.replay
line '4 advisory lock and table' 4_advisory.replay
line '6 ours: idem_claim' 6_ours_claim.replay
line '6 ours: idem_claim with arguments' 6_ours_claim_args.replay
line '6 ours: one function' 6_ours_function.replay
line '6 ours: one function, no arguments' 6_ours_plain.replay
line '6 ours: idem_once' 6_ours_once.replay
line '6 ours: 1,000 keys at a time' 6_ours_many1000.replay 1000
rounds
target 'replay of a completed key, to a primary-key SELECT through a function' at-least 0.9 "$(ratio '6 ours: idem_claim' '0 SELECT by primary key in a function')"
target 'the same with arguments compared' at-least 0.9 "$(ratio '6 ours: idem_claim with arguments' '0 SELECT by primary key in a function')"
