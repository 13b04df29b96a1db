# shellcheck shell=bash
# Results of a size: written with new keys, and replayed.
sql -c "SELECT count(function_credit_body(k, 1, b)), count(ours_credit_body(k, 1, b))
    FROM unnest('{1000, 100000}'::int[]) AS b, generate_series(1, 100) AS n, LATERAL (SELECT 'body-' || b || '-' || n AS k) AS k" >/dev/null
for bytes in 1000 100000; do
    begin "results_$bytes" "Results of $bytes bytes: new keys, 4 clients"
    line '0 bare effect, the result not kept' 0_bare.body 1 '' -D bytes="$bytes"
    line '2 one PL/pgSQL function' 2_function.body 1 '' -D bytes="$bytes"
    line '6 ours: one function' 6_ours_function.body 1 '' -D bytes="$bytes"
    rounds
    begin "results_replay_$bytes" "Results of $bytes bytes: replays, 4 clients"
    line '2 one PL/pgSQL function' 2_function.body_replay 1 '' -D bytes="$bytes"
    line '6 ours: one function' 6_ours_function.body_replay 1 '' -D bytes="$bytes"
    rounds
done
