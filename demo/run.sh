#!/usr/bin/env bash
# The story that `make demo` tells. Every number that it prints was asked of the database a moment before; it ends with
# an error if one differs from what is promised. scripts/demo.sh makes the throw-away cluster that it runs in.
# shellcheck source=scripts/cluster.sh
source "$(dirname "$0")/../scripts/cluster.sh"

PAYLOADS=$ROOT/demo/payloads
POLLS_MAX=600
CLIENTS=64
LOAD_CLIENTS=15
LOAD_ORDERS=3000
LOAD_CRASH_AFTER=800

work=$(mktemp -d)
background=()
leave() {
    ((${#background[@]} == 0)) || kill "${background[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap leave EXIT
differences=0
export PGCLIENTENCODING=UTF8

# Errors come with their SQLSTATE.
sql() { psql -XqAt -v ON_ERROR_STOP=1 -v VERBOSITY=verbose "$@"; }

chapter() { printf '\n(%s) %s\n' "$1" "$2"; }

tell() { printf '    %s\n' "$@"; }

# see WHAT PROMISED QUERY: prints what the query sees.
see() {
    local seen
    seen=$(sql -c "$3")
    if [[ $seen == "$2" ]]; then
        printf '    %-66s %s\n' "$1" "$seen"
    else
        printf '    %-66s %s   <-- promised: %s\n' "$1" "$seen" "$2"
        differences=$((differences + 1))
    fi
}

# until_true QUERY: polls, with a deadline.
until_true() {
    local polls
    for ((polls = 0; polls < POLLS_MAX; polls++)); do
        [[ $(sql -c "$1") != t ]] || return 0
        sleep 0.05
    done
    die "this did not become true: $1"
}

# see_error PROMISED: the error of the last call, as psql wrote it to $work/error.
see_error() {
    sed -n 's/^.*\(ERROR:\|DETAIL:\|HINT:\)/        \1/p' "$work/error"
    if ! grep -q "ERROR:  $1:" "$work/error"; then
        printf '        <-- promised: %s\n' "$1"
        differences=$((differences + 1))
    fi
}

# How many rows of credits, and how many records, the keys of a chapter have.
effects() { echo "SELECT count(*) FROM credits WHERE request LIKE '$1/%'"; }
records() { echo "SELECT count(*) FROM idempotency.records WHERE key LIKE '$1/%' AND state = 'completed'"; }

sql <<'SQL'
CREATE EXTENSION idempotency;

-- The effect. No constraint of its own stops a second row.
CREATE TABLE credits (request text, args jsonb, issued_at timestamptz DEFAULT clock_timestamp());

CREATE FUNCTION issue_credit(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(0.002);
    INSERT INTO credits VALUES (args ->> 'request', args);
    RETURN jsonb_build_object('credit', gen_random_uuid());
END $$;

-- What each caller was told.
CREATE TABLE answers (request text, decision text, result jsonb);
SQL

echo 'A support agent issues a credit for a delayed shipment. Models, queues and networks call again when in doubt.'
echo 'The table credits has no unique constraint: nothing but the extension stops a second credit.'

# --------------------------------------------------------------------------------------------------------------------
chapter a "$CLIENTS clients send the same call at the same moment"

cat >"$work/agent.sql" <<'SQL'
INSERT INTO answers SELECT 'agent/1042', CASE WHEN replayed THEN 'replay' ELSE 'execute' END, result
  FROM idem_call('agent/1042', 'issue_credit', '{"request": "agent/1042", "order": 1042, "amount": 25.50}');
SQL
tell "SELECT * FROM idem_call('agent/1042', 'issue_credit', '{\"order\": 1042, \"amount\": 25.50, ...}')"
pgbench -n -c "$CLIENTS" -j 2 -t 1 -f "$work/agent.sql" >"$work/agent.log" 2>&1 || tell "pgbench: $(tail -n 1 "$work/agent.log")"
see 'callers that got an answer' "$CLIENTS" "SELECT count(*) FROM answers WHERE request = 'agent/1042'"
see 'credits issued' 1 "$(effects agent)"
see 'callers that were told the result of that one credit' "$CLIENTS" \
    "SELECT count(*) FROM answers WHERE request = 'agent/1042'
        AND result = (SELECT result FROM idem_peek('agent/1042'))"
see 'of these, replays' $((CLIENTS - 1)) "SELECT count(*) FROM answers WHERE request = 'agent/1042' AND decision = 'replay'"

# --------------------------------------------------------------------------------------------------------------------
chapter b "real webhook bodies: in other words the same call, with another amount not"

# once REQUEST FILE: the webhook's body is the argument of the call.
once() {
    sql -v request="webhook/$1" -v body="$(<"$2")" <<'SQL'
INSERT INTO answers SELECT :'request', CASE WHEN replayed THEN 'replay' ELSE 'execute' END, result
  FROM idem_once(:'request', format($$INSERT INTO credits VALUES (%L, $1) RETURNING jsonb_build_object('credit', gen_random_uuid())$$, :'request'),
                 :'body');
SQL
}

told() { echo "SELECT string_agg(decision, ', ' ORDER BY ctid) FROM answers WHERE request = 'webhook/$1'"; }

cat >"$work/credit.json" <<'JSON'
{"order": 1042, "amount": 1.5, "to": "Zoë"}
JSON
cat >"$work/credit.respelled.json" <<'JSON'
{ "to":"Zo\u00eb",   "amount":1.50,   "order":1.042e3 }
JSON
for body in stripe/payment_intent.succeeded github/star-created.payload credit; do
    file=$PAYLOADS/$body
    [[ $body != credit ]] || file=$work/credit
    once "$body" "$file.json"
    once "$body" "$file.respelled.json"
    see "$body: $(wc -c <"$file.json") bytes, then $(wc -c <"$file.respelled.json") in other words" 'execute, replay' "$(told "$body")"
done
tell 'once more, with amount 2001 for 2000:'
sed 's/"amount": 2000/"amount": 2001/' "$PAYLOADS/stripe/payment_intent.succeeded.json" >"$work/other.json"
once stripe/payment_intent.succeeded "$work/other.json" 2>"$work/error" || true
see_error ID001
see 'credits issued for seven calls under three keys' 3 "$(effects webhook)"

# --------------------------------------------------------------------------------------------------------------------
chapter c 'a worker is killed between its claim and its completion'

claim() { echo "SELECT * FROM idem_claim('refund/77', '{\"amount\": 40}', $1)"; }

# The worker is a psql process of its own. It claims, notes its fence, and would now call the payment provider.
mkfifo "$work/worker"
psql -XqAt <"$work/worker" >"$work/fence" 2>"$work/worker.log" &
worker=$!
exec 3>"$work/worker"
claim "lease => '5 seconds'" | sed 's/\*/fence/; s/$/;/' >&3
for ((polls = 0; polls < POLLS_MAX; polls++)); do
    [[ ! -s $work/fence ]] || break
    sleep 0.05
done
kill -KILL "$worker"
wait "$worker" 2>/dev/null || true
exec 3>&-
fence=$(<"$work/fence")
tell "worker $worker claimed refund/77 with a lease of 5 s, got fence $fence, and was killed (SIGKILL)"

sql -c "INSERT INTO answers SELECT 'refund/77', decision, result FROM ($(claim "lease => '1 minute'")) AS c"
see 'another worker claims at once' in_progress "SELECT decision FROM answers WHERE request = 'refund/77'"
# One connection, because the fence is needed again: the claim waits for the end of the lease.
sql -c "INSERT INTO answers SELECT 'refund/77', decision, to_jsonb(fence)
          FROM ($(claim "lease => '1 minute', wait => '20 seconds'")) AS c"
see '... and when the lease has ended: read the provider first' reconcile \
    "SELECT decision FROM answers WHERE request = 'refund/77' ORDER BY ctid DESC LIMIT 1"
new_fence=$(sql -c "SELECT result FROM answers WHERE request = 'refund/77' AND decision = 'reconcile'")

tell 'the first worker is back and finishes late, under its old fence:'
sql >/dev/null 2>"$work/error" <<SQL || true
BEGIN;
INSERT INTO credits VALUES ('refund/77', '{"by": "the late worker"}');
SELECT idem_complete('refund/77', '{"by": "the late worker"}', fence => $fence);
COMMIT;
SQL
see_error ID003
see 'credits that the late worker left behind' 0 "$(effects refund)"
sql >/dev/null <<SQL
BEGIN;
INSERT INTO credits VALUES ('refund/77', '{"by": "the second worker"}');
SELECT idem_complete('refund/77', '{"by": "the second worker"}', fence => $new_fence);
COMMIT;
SQL
see 'credits after the second worker has completed' 1 "$(effects refund)"
see 'the record says' 'completed on attempt 2 by the second worker' \
    "SELECT format('%s on attempt %s by %s', state, attempt, result ->> 'by') FROM idem_peek('refund/77')"

# --------------------------------------------------------------------------------------------------------------------
chapter d 'the server crashes in the middle of load'

# Each call and the note of its answer are one transaction.
load_call="INSERT INTO answers SELECT 'load/' || :n, CASE WHEN replayed THEN 'replay' ELSE 'execute' END, result
  FROM idem_call('load/' || :n, 'issue_credit', jsonb_build_object('request', 'load/' || :n, 'amount', :n));"
printf '\\set n random(1, %s)\n%s\n' "$LOAD_ORDERS" "$load_call" >"$work/load.sql"
printf '\\set own :own + 1\n\\set n :client_id * %s + :own\n%s\n' $((LOAD_ORDERS / LOAD_CLIENTS)) "$load_call" >"$work/retry.sql"

pgbench -n -c "$LOAD_CLIENTS" -j 2 -T 60 -f "$work/load.sql" >"$work/load.log" 2>&1 &
load=$!
until_true "SELECT count(*) >= $LOAD_CRASH_AFTER FROM credits WHERE request LIKE 'load/%'"
cluster_crash_and_restart
wait "$load" 2>/dev/null || true
before=$(sql -c "$(effects load)")
tell "$LOAD_CLIENTS clients, orders 1 to $LOAD_ORDERS at random, until an immediate stop: it cut off $(grep -c "client .* aborted" "$work/load.log") calls" \
    "recovered from the WAL, with $before credits"

paired="(SELECT request, count(*) AS effects FROM credits WHERE request LIKE 'load/%' GROUP BY request) AS e
        FULL JOIN (SELECT key FROM idempotency.records WHERE key LIKE 'load/%') AS r ON r.key = e.request"
see 'orders with two credits' 0 "SELECT count(*) FROM $paired WHERE effects > 1"
see 'credits without a record' 0 "SELECT count(*) FROM $paired WHERE key IS NULL"
see 'records without a credit' 0 "SELECT count(*) FROM $paired WHERE request IS NULL"
tell "then every client calls again, for all $LOAD_ORDERS orders:"
pgbench -n -c "$LOAD_CLIENTS" -j 2 -t $((LOAD_ORDERS / LOAD_CLIENTS)) -D own=0 -f "$work/retry.sql" >"$work/retry.log" 2>&1 ||
    tell "pgbench: $(tail -n 1 "$work/retry.log")"
see 'orders with exactly one credit and one record' "$LOAD_ORDERS" "SELECT count(*) FROM $paired WHERE effects = 1 AND key = request"
see 'callers that got another answer than the first' 0 \
    "SELECT count(*) FROM answers AS a, idempotency.records AS r
      WHERE r.key = a.request AND a.request LIKE 'load/%' AND a.result IS DISTINCT FROM r.result"
see 'keys left claimed by those who died' 0 "SELECT open_keys FROM idem_status()"

# --------------------------------------------------------------------------------------------------------------------
chapter e 'the same with a natural key, without the extension'

sql <<'SQL'
CREATE TABLE credits_by_order (order_no int, reason text, amount numeric, PRIMARY KEY (order_no, reason));
SQL
cat >"$work/natural.sql" <<'SQL'
INSERT INTO credits_by_order VALUES (1042, 'delayed shipment', 25.50) ON CONFLICT DO NOTHING;
SQL
tell "INSERT INTO credits_by_order VALUES (1042, 'delayed shipment', 25.50) ON CONFLICT DO NOTHING"
pgbench -n -c "$CLIENTS" -j 2 -t 1 -f "$work/natural.sql" >"$work/natural.log" 2>&1 || tell "pgbench: $(tail -n 1 "$work/natural.log")"
see "credits after $CLIENTS concurrent retries" 1 'SELECT count(*) FROM credits_by_order'
tell 'Where one order can have one such credit, prefer this: the constraint has no window, needs no key from the caller,' \
    'and holds against every program, also those that never heard of keys. The extension is for the rest: no natural' \
    'key, an answer to give again, or an effect outside the database.'

# --------------------------------------------------------------------------------------------------------------------
chapter f 'the payment that timed out after it happened'

# The first python3 that has psycopg 3: the dispatcher is the one in examples.
python=
while IFS= read -r candidate; do
    ! "$candidate" -c 'import psycopg' 2>/dev/null || { python=$candidate && break; }
done < <(type -ap python3 && echo /usr/bin/python3)
[[ -n $python ]] || die 'no python3 can import psycopg 3' 'apt-get install python3-psycopg'

# A payment provider outside the database, with a log of its own. It keeps no key from being paid twice. The first
# request that it gets it carries out and never answers, and the third.
"$python" "$ROOT/tests/tap/lib/payment_server.py" --log "$work/provider.log" --port-file "$work/port" \
    --first timeout,answer,timeout,answer >"$work/provider.out" 2>&1 &
background+=($!)
for ((polls = 0; polls < POLLS_MAX; polls++)); do
    [[ ! -s $work/port ]] || break
    sleep 0.05
done
api=http://127.0.0.1:$(<"$work/port")

# read_provider: what the provider wrote down, for all to see.
read_provider() { sql -c 'TRUNCATE provider_log' -c "\\copy provider_log FROM '$work/provider.log'"; }
provider() { echo "SELECT count(*) FROM provider_log WHERE entry ->> 'key' = '$1' AND $2"; }

sql >/dev/null <<'SQL'
CREATE TABLE provider_log (entry jsonb);
CREATE TABLE payouts (id int PRIMARY KEY, amount numeric);
BEGIN;
INSERT INTO payouts VALUES (9001, 250);
SELECT idem_enqueue('payout/9001', 'payments', '{"amount": 250}');
COMMIT;
SQL
tell "INSERT INTO payouts ...; SELECT idem_enqueue('payout/9001', 'payments', '{\"amount\": 250}'); in one transaction" \
    'the provider pays and does not answer; examples/dispatcher waits for 1 s, and says:'
DISPATCH_API=$api DISPATCH_LEASE_S=5 DISPATCH_HTTP_TIMEOUT_S=1 DISPATCH_SETTLE_S=1 DISPATCH_WAIT_S=2 \
    "$python" -B "$ROOT/examples/dispatcher/dispatcher.py" >"$work/dispatcher.log" 2>&1 &
dispatcher=$!
background+=("$dispatcher")
until_true "SELECT state = 'completed' FROM idem_peek('payout/9001')"
kill -TERM "$dispatcher"
wait "$dispatcher" || tell "dispatcher: $(tail -n 1 "$work/dispatcher.log")"
sed -n 's/^.* INFO \(payout\)/        \1/p' "$work/dispatcher.log"
read_provider
see 'requests to pay that the provider got for it' 1 "$(provider payout/9001 "entry ->> 'method' = 'POST'")"
see 'reads: was it paid?' 1 "$(provider payout/9001 "entry ->> 'method' = 'GET'")"
see 'payments that the provider made' 1 "$(provider payout/9001 "entry ->> 'what' = 'payment'")"
see 'the trail' 'unknown (timeout), in_flight (timeout), completed' \
    "SELECT string_agg(to_state || COALESCE(' (' || reason || ')', ''), ', ' ORDER BY happened_at) FROM idempotency.events
      WHERE key = 'payout/9001'"
see 'the record has the provider'"'"'s own answer' t \
    "SELECT result ->> 'id' = (SELECT entry ->> 'id' FROM provider_log WHERE entry ->> 'what' = 'payment')
       FROM idem_peek('payout/9001')"
see 'messages left in the outbox' 0 'SELECT count(*) FROM idempotency.outbox'

tell 'the same with a client that sends again when it has timed out:'
"$python" - "$api/payments" <<'PYTHON'
import sys
import urllib.request

payout = urllib.request.Request(sys.argv[1], b'{"amount": 250}', {"Idempotency-Key": "payout/9002"})
for attempt in range(3):
    try:
        urllib.request.urlopen(payout, timeout=1).read()
        break
    except TimeoutError:
        pass
PYTHON
read_provider
see 'payments that the provider made' 2 "$(provider payout/9002 "entry ->> 'what' = 'payment'")"

# --------------------------------------------------------------------------------------------------------------------
chapter g 'the approval that took from Friday to Monday'

# A day is a second here. Two agents go through the same weekend, each in a scope of its own with the same window.
WINDOW='1 second'
LONGEST_PAUSE='21 seconds'
WEEKEND='3 seconds'

# issue AGENT SCOPE [, run => ...]: the agent's step. On Monday it makes it again: its checkpoint is older than that.
issue() {
    echo "INSERT INTO answers SELECT '$1/credit', CASE WHEN replayed THEN 'replay' ELSE 'execute' END, result
            FROM idem_call(idem_key('$1', 'credit'), 'issue_credit', '{\"request\": \"$1/credit\", \"amount\": 25.50}', '$2'${3:-})"
}
told_on() { echo "SELECT string_agg(decision, ', ' ORDER BY ctid) FROM answers WHERE request = '$1/credit'"; }
findings() { echo "SELECT string_agg(severity || ' ' || finding, ', ') FROM friday WHERE what LIKE 'scope $1:%'"; }

tell 'a day is a second here: the window is 24 hours, an approval may take up to three weeks, this one takes a weekend' \
    "both agents: SELECT idem_run_begin('agent-...', longest_pause => '3 weeks')"
tell "agent-1 on Friday: idem_call('agent-1/credit', 'issue_credit', ...)" \
    "agent-2 on Friday: idem_call('agent-2/credit', 'issue_credit', ..., run => 'agent-2')"
sql >/dev/null <<SQL
SELECT idem_scope_set(scope, dedup_window => '$WINDOW') FROM unnest('{without_run,with_run}'::text[]) AS scope;
SELECT idem_run_begin(run, longest_pause => '$LONGEST_PAUSE') FROM unnest('{agent-1,agent-2}'::text[]) AS run;
-- The doctor is asked in the transaction of the steps: however slow the machine, no key has gone by then.
BEGIN;
$(issue agent-1 without_run);
$(issue agent-2 with_run ", run => 'agent-2'");
CREATE TABLE friday AS SELECT * FROM idem_doctor();
COMMIT;
SQL
see 'credits issued on Friday for agent-1, and for agent-2' '1, 1' "SELECT concat_ws(', ', ($(effects agent-1)), ($(effects agent-2)))"
see 'idem_doctor() on Friday, of the scope of agent-1' 'critical window_too_short' "$(findings without_run)"
sql -c "SELECT '        ' || line FROM friday, unnest(ARRAY['what: ' || what, 'why:  ' || why, 'mend: ' || mend]) AS line
         WHERE what LIKE 'scope without_run:%'"
see '... because of runs whose keys do not name them' t \
    "SELECT why LIKE '%a live run may pause for%and its keys here are claimed without run =>%' FROM friday WHERE what LIKE 'scope without_run:%'"
see 'idem_doctor() on Friday, of the scope of agent-2' nothing "SELECT COALESCE(($(findings with_run)), 'nothing')"
see 'when can the credit of agent-2 be issued again: not while it lives' infinity \
    "SELECT repeatable_at FROM idem_peek('agent-2/credit', 'with_run')"

until_true "SELECT clock_timestamp() > max(issued_at) + interval '$WEEKEND' FROM credits WHERE request LIKE 'agent-_/credit'"
sql -c 'CALL idempotency.sweep()'
tell 'on Monday it is approved. Over the weekend keys were swept; both agents begin their step again:'
sql <<SQL
$(issue agent-1 without_run);
$(issue agent-2 with_run ", run => 'agent-2'");
SQL
see 'agent-1 was told on Friday, and on Monday' 'execute, execute' "$(told_on agent-1)"
see 'credits issued for agent-1' 2 "$(effects agent-1)"
see 'agent-2 was told on Friday, and on Monday' 'execute, replay' "$(told_on agent-2)"
see 'credits issued for agent-2' 1 "$(effects agent-2)"
see 'the answer of Monday is the one of Friday' t "SELECT count(DISTINCT result) = 1 FROM answers WHERE request = 'agent-2/credit'"

# --------------------------------------------------------------------------------------------------------------------
printf '\nWhat is in the database now\n'
psql -XqP footer=off -P border=1 <<SQL
SELECT chapter, what, (SELECT count(*) FROM answers WHERE request LIKE prefix) AS answers,
       (SELECT count(*) FROM credits WHERE request LIKE prefix) AS effects,
       (SELECT count(*) FROM idempotency.records WHERE key LIKE prefix AND state = 'completed') AS records,
       (SELECT count(*) FROM (SELECT FROM credits WHERE request LIKE prefix GROUP BY request HAVING count(*) > 1) AS x)
           AS "keys with two effects"
  FROM (VALUES ('a', 'concurrent retries', 'agent/%'), ('b', 'webhooks, re-spelled', 'webhook/%'),
               ('c', 'a worker killed', 'refund/%'), ('d', 'the server crashed', 'load/%'))
           AS chapters (chapter, what, prefix);
SQL

((differences == 0)) || die "$differences of these differ from what is promised"
echo 'All as promised.'
