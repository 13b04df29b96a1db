# shellcheck shell=bash
# Claim + effect + complete, and replays, where the tables hold many old keys. A database for each size.
sizes=(0 1000000)
[[ -z ${BENCH_FULL:-} ]] || sizes+=(20000000)
for size in "${sizes[@]}"; do
    say "loading $size old keys"
    createdb "keys_$size"
    sql -d "keys_$size" -v old_keys=0 -f "$CONTENDERS/0_bare.sql" >/dev/null
    sql -d "keys_$size" -v old_keys="$size" -f "$CONTENDERS/6_ours.sql" >/dev/null
    sql -d "keys_$size" -c 'VACUUM (ANALYZE)'
done
sql -c CHECKPOINT
begin old_keys 'New keys beside many old ones, one function, 4 clients'
for size in "${sizes[@]}"; do line "$size old keys" 6_ours_function.new 1 "keys_$size"; done
rounds
target 'claim latency at 1 M old keys to none' at-most 1.3 "$(ratio '0 old keys' '1000000 old keys')"
[[ -z ${BENCH_FULL:-} ]] || target 'claim latency at 20 M old keys to 1 M' at-most 1.3 "$(ratio '1000000 old keys' '20000000 old keys')"
begin old_keys_replay 'Replays by chance among many old keys, idem_claim, 4 clients'
for size in "${sizes[@]:1}"; do line "$size old keys" 6_ours_claim.replay 1 "keys_$size" -D old_keys="$size"; done
rounds
for size in "${sizes[@]}"; do dropdb "keys_$size"; done
