/*
 * One key of the claim protocol: its lock, its record, its callers, the sweep, and what goes wrong around them.
 * README.md says which step is which code, and what is left out. One configuration is chosen by -D:
 *
 *   EXTERNAL, KEYED, LOCAL  the effect kind of the scope (exactly one)
 *   ASYNC                   synchronous_commit = off: a crash of the server may lose what was not flushed
 *   RUN                     the key belongs to a run, which ends and begins again
 *   NO_WORKER               nothing is swept and nothing is pruned
 *   CLIENTS, TROUBLES       how many callers there are, and how many things go wrong
 *   ..._FAULT               one rule of the protocol is broken
 */

#if defined(EXTERNAL) + defined(KEYED) + defined(LOCAL) != 1
#error exactly one of EXTERNAL, KEYED and LOCAL
#endif
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef TROUBLES
#define TROUBLES 2
#endif
#define PRUNER (CLIENTS + 1)
#define HUMAN (CLIENTS + 2)

/* Times, in ticks. */
#define LEASE 1
#define RENEWED 2
#define WINDOW 1
#define PROVIDER_WINDOW 2
#define RECONCILES_MAX 2

/* Where a record is: in neither table, in the claim table (4), in the outcome table (3). */
mtype:state = { absent, in_flight, lease_seen_ended, unknown, escalated, completed, not_applied, lease_expired };
/* What a claim found. */
mtype:prior = { nothing, no_effect, doubt, sent };
mtype:answer = { none, execute, reconcile };
mtype:verb = { complete, fail_not_applied, read_not_applied, fail_unknown, release, renew };
/* Where a caller is. */
mtype:stage = { calling, queueing, claimed, working, in_transaction,
                to_end, queueing_to_end, writing, ended, acknowledging_end,
                rolling_back, rolling_back_to_end, letting_go, answered };

typedef Record {
    mtype:state state = absent;
    mtype:prior prior = nothing;
    byte fence;
    byte lease;         /* ticks to its end */
    byte window;        /* ticks to its end */
    byte provider;      /* ticks until the other system may forget the first attempt */
    byte result;
    byte reconciles;
    byte effects        /* local effects in this window, which commit with the record; in `own`, those to be added */
};

Record db;                      /* what is committed */
#ifdef ASYNC
Record disk;                    /* what a crash leaves */
#endif
Record own[CLIENTS + 1];        /* what the caller's transaction writes */
mtype:state found[CLIENTS + 1]; /* the record that it writes over */

byte owner;                     /* of the key's lock; 0: nobody */
chan queue = [CLIENTS + 1] of { byte };
bool listed;                    /* the pruner has seen the key as due */
bool pruning;                   /* it has deleted the record and not committed */

mtype:stage stage[CLIENTS + 1];
mtype:answer told[CLIENTS + 1];
mtype:verb verb[CLIENTS + 1];
byte fence[CLIENTS + 1];        /* the caller's; 0: none */
byte mine[CLIENTS + 1];         /* ticks to the end of its lease, as it knows it */
bool leased[CLIENTS + 1];
bool did[CLIENTS + 1];          /* it has had its effect */

byte troubles = TROUBLES;       /* things that may still go wrong */
byte world;                     /* effects outside, in this window */
byte provider_memory;           /* ticks until the other system forgets the key */
bool run_lives;
byte run_window;                /* ticks to the end of the window that counts from the end of the run */
byte run_begins;                /* how often it may still begin */

/* For the invariants. */
byte newest;                    /* the newest fence that was drawn */
byte newest_committed;
byte acked;                     /* the result that callers were told in this window; 0: none */
bool acked_changed;
bool fence_went_back;

/* ---- records -------------------------------------------------------------------------------------------------- */

inline copy(to, from) {
    to.state = from.state; to.prior = from.prior; to.fence = from.fence; to.lease = from.lease;
    to.window = from.window; to.provider = from.provider; to.result = from.result;
    to.reconciles = from.reconciles; to.effects = from.effects
}

/* All but the effects. */
inline erase(row) {
    row.state = absent; row.prior = nothing; row.fence = 0; row.lease = 0; row.window = 0; row.provider = 0;
    row.result = 0; row.reconciles = 0
}

#define in_claim(s) (s == in_flight || s == lease_seen_ended || s == unknown || s == escalated)
#define in_outcome(s) (s == completed || s == not_applied || s == lease_expired)
#define guarded (db.window > 0 || run_lives || run_window > 0)
/* effective(): past its window a key is free, pruned or not. */
#define is_free (db.state == absent || (in_outcome(db.state) && !guarded))
#ifdef NO_TAKEOVER_FAULT
#define is_held (db.state == in_flight)
#else
#define is_held (db.state == in_flight && db.lease > 0)
#endif

#ifdef LOCAL
#define effects_in_window db.effects
#else
#define effects_in_window world
#endif
/* What a paired read says. */
#define it_happened (effects_in_window > 0)

/* What an open key amounts to once nobody holds a lease on it. */
#define unanswered_read (db.state == in_flight && db.prior == doubt)
#define reads_in_vain (db.reconciles + (unanswered_read -> 1 : 0))
#define waits_for_human (db.state == escalated || (unanswered_read && reads_in_vain >= RECONCILES_MAX))
#ifdef LEASE_END_EXECUTES_FAULT
#define lease_end_is_doubt false
#elif defined(EXTERNAL)
#define lease_end_is_doubt true
#elif defined(KEYED)
#define lease_end_is_doubt (db.provider == 0)
#else
#define lease_end_is_doubt false
#endif
#define may_have_happened (db.state == unknown || db.prior == doubt || lease_end_is_doubt)

/* ---- the lock ------------------------------------------------------------------------------------------------- */

#ifdef NO_LOCK_FAULT
#define lock_is_free true
#define lock_is_taken false
inline take_lock(who) { skip }
inline unlock(who) { skip }
#else
#define lock_is_free (owner == 0 && empty(queue))
#define lock_is_taken (owner != 0 || nempty(queue))
inline take_lock(who) { owner = who }
/* Whoever has waited longest has it at once, as in PostgreSQL. */
inline unlock(who) {
    if
    :: owner == who ->
        if
        :: nempty(queue) -> queue?owner
        :: empty(queue) -> owner = 0
        fi
    :: owner != who
    fi
}
#endif

/* The transaction that holds the lock has deleted the outcome, or written over it. */
#define is_leaving (pruning || (owner > 0 && owner <= CLIENTS && in_outcome(found[owner]) && \
    (stage[owner] == claimed || stage[owner] == ended)))

inline undo(who) {
    if
    :: queue??[eval(who)] -> queue??eval(who)
    :: !queue??[eval(who)]
    fi;
    unlock(who);
    erase(own[who]);
    own[who].effects = 0;
    found[who] = absent
}

/* The caller knows nothing more than that it has to call. */
inline forget(who) {
    stage[who] = calling; told[who] = none; verb[who] = complete; fence[who] = 0; mine[who] = 0;
    leased[who] = false; did[who] = false
}

/* ---- commit, fences, acknowledgements ------------------------------------------------------------------------- */

inline flush() {
#ifdef ASYNC
    copy(disk, db)
#else
    skip
#endif
}

/* A write finds its row by primary key again: there must be one where one was found, whatever it says by now. */
#define still_stands(who) ((in_claim(db.state) && in_claim(found[who])) || \
    (in_outcome(db.state) && in_outcome(found[who])) || (db.state == absent && found[who] == absent))

inline commit(who) {
    own[who].effects = own[who].effects + db.effects;
    copy(db, own[who]);
    erase(own[who]);
    own[who].effects = 0;
    found[who] = absent
}

/* max(clock, previous + 1), with a clock as far back as it may be: it never stands behind a fence that is lost. */
inline draw_fence(to, previous) {
#if defined(CLOCK_FENCE_FAULT)
    to = (previous == 0 -> newest + 1 : previous);
#elif defined(ASYNC)
    to = newest + 1;
#else
    to = (previous == 0 -> newest + 1 : previous + 1);
#endif
    newest = (to > newest -> to : newest)
}

/* A new owner's fence is committed. */
inline note_fence(drawn) {
    fence_went_back = fence_went_back || drawn <= newest_committed;
    newest_committed = (drawn > newest_committed -> drawn : newest_committed)
}

/* A caller is told a result. What it hears after the window binds nobody. */
inline acknowledge(what) {
    if
    :: is_free
    :: else ->
        acked_changed = acked_changed || (acked != 0 && acked != what);
        acked = what
    fi
}

/* A keyed call is sent again only while the other system remembers the key: the lease ends before that does. */
#if defined(KEYED) && !defined(PROVIDER_FORGETS_FAULT)
#define lease_of(ticks, who) (own[who].prior == sent && own[who].provider < ticks -> own[who].provider : ticks)
#else
#define lease_of(ticks, who) ticks
#endif

/* ---- claiming ------------------------------------------------------------------------------------------------- */

/* with_lock(), decide() and claim::own() */
inline look(who) {
    what = none;
    if
    :: is_free -> what = execute; why = nothing; is_anew = true
    :: !is_free && db.state == completed -> acknowledge(db.result); stage[who] = letting_go
    :: !is_free && (db.state == not_applied || db.state == lease_expired) ->
        what = execute; why = no_effect; is_anew = true
    :: is_held || (in_claim(db.state) && waits_for_human) -> stage[who] = rolling_back
    :: in_claim(db.state) && !is_held && !waits_for_human && may_have_happened ->
        what = reconcile; why = doubt; is_anew = false
    :: in_claim(db.state) && !is_held && !waits_for_human && !may_have_happened ->
#ifdef KEYED
        what = execute; why = sent; is_anew = false
#else
        what = execute; why = no_effect; is_anew = true
#endif
    fi;
    if
    :: what != none ->
        found[who] = db.state;
        own[who].state = in_flight;
        own[who].prior = why;
        draw_fence(own[who].fence, db.fence);
#ifdef KEYED
        own[who].provider = (is_anew -> PROVIDER_WINDOW : db.provider);
#endif
        own[who].lease = (leased[who] -> lease_of(LEASE, who) : 0);
        own[who].reconciles = (is_anew -> 0 : reads_in_vain);
        fence[who] = own[who].fence;
#ifndef LOCAL
        mine[who] = own[who].lease;
#endif
        told[who] = what;
        stage[who] = (leased[who] -> claimed : in_transaction)
    :: else
    fi;
    what = none; why = nothing; is_anew = false
}

/* ---- ending a claim ------------------------------------------------------------------------------------------- */

/* end(): own[who] is the claim that ends. */
inline end_claim(who) {
    what_is_left = own[who].state;
    why = own[who].prior;
    if
    :: verb[who] == complete ->
        what_is_left = completed; why = nothing;
        own[who].result = fence[who];
#if defined(LOCAL) && !defined(SECOND_TRANSACTION_FAULT)
        own[who].effects = (told[who] == execute -> 1 : 0)
#endif
    :: verb[who] == read_not_applied -> what_is_left = not_applied; why = nothing
    :: verb[who] == fail_not_applied && own[who].prior == sent -> what_is_left = lease_seen_ended
    :: verb[who] == fail_not_applied && own[who].prior != sent -> what_is_left = not_applied; why = nothing
    :: verb[who] == fail_unknown && own[who].prior != doubt -> what_is_left = unknown
    :: verb[who] == fail_unknown && own[who].prior == doubt ->
        own[who].reconciles++;
        what_is_left = (own[who].reconciles >= RECONCILES_MAX -> escalated : unknown)
    :: verb[who] == release ->
        draw_fence(own[who].fence, own[who].fence);
        if
        :: own[who].prior == nothing -> what_is_left = absent
        :: own[who].prior == no_effect -> what_is_left = not_applied; why = nothing
        :: own[who].prior == doubt -> what_is_left = unknown
        :: own[who].prior == sent -> what_is_left = lease_seen_ended
        fi
    :: verb[who] == renew ->
        what_is_left = in_flight;
        /* What a sweep has counted is taken back. */
        own[who].reconciles = own[who].reconciles -
            (own[who].state == lease_seen_ended && own[who].prior == doubt && own[who].reconciles > 0 -> 1 : 0)
    fi;
    own[who].lease = (verb[who] == renew -> lease_of(RENEWED, who) : 0);
    own[who].window = (in_outcome(what_is_left) -> WINDOW : 0);
    own[who].state = what_is_left;
    own[who].prior = why;
    if
    :: what_is_left == absent -> erase(own[who])
    :: else
    fi;
    what_is_left = absent; why = nothing;
    stage[who] = ended
}

#ifdef NO_FENCE_FAULT
#define has_newest_fence(who) true
#define was_finished(who) (db.fence == fence[who] && (db.state == completed || db.state == not_applied))
#else
#define has_newest_fence(who) (db.fence == fence[who])
#define was_finished(who) (db.state == completed || db.state == not_applied)
#endif
#define was_declared (db.state == unknown || db.state == escalated)

/* stand(): the newest fence stands, late or not. What does not stand is undone, its effect too: ID003, ID004. */
inline stand(who) {
    if
    :: is_free || !has_newest_fence(who) -> stage[who] = rolling_back
    :: !is_free && has_newest_fence(who) && was_finished(who) ->
        if
        :: db.state == completed && verb[who] == complete -> acknowledge(db.result); stage[who] = letting_go
        :: else -> stage[who] = rolling_back
        fi
    :: !is_free && has_newest_fence(who) && was_declared &&
            (verb[who] == release || verb[who] == renew || verb[who] == fail_unknown) -> stage[who] = rolling_back
    :: else ->
        found[who] = db.state;
        copy(own[who], db);
        own[who].effects = 0;
        own[who].prior = (db.state == lease_expired -> no_effect : db.prior);
        stage[who] = writing
    fi
}

/* ---- a caller ------------------------------------------------------------------------------------------------- */

inline set_mine(who) {
#ifdef LOCAL
    skip
#else
    mine[who] = db.lease
#endif
}

proctype Client(byte me) {
    mtype:answer what = none;
    mtype:prior why = nothing;
    mtype:state what_is_left = absent;
    bool is_anew;
    do
    /* A claim that has the lock looks, and decides. */
    :: atomic { (stage[me] == calling && lock_is_free) || (stage[me] == queueing && owner == me) ->
        if
        :: stage[me] == calling ->
            take_lock(me);
            if
            :: leased[me] = true
#ifndef SECOND_TRANSACTION_FAULT
#ifdef LOCAL
            :: leased[me] = false
#else
            /* Good for reading only: who is told to execute rolls back. */
            :: troubles > 0 -> troubles--; leased[me] = false
#endif
#endif
            fi
        :: else
        fi;
        d_step { look(me) } }
    /* without_lock(): a replay within the window, else wait. */
    :: atomic { stage[me] == calling && lock_is_taken ->
        if
#ifdef REPLAY_OF_LEAVING_FAULT
        :: db.state == completed && guarded
#elif defined(REPLAY_FOR_RUN_FAULT)
        :: db.state == completed && guarded && !is_leaving
#else
        /* What only a run guards may be claimed already by the holder, from before the run began. */
        :: db.state == completed && db.window > 0 && !is_leaving
#endif
            -> acknowledge(db.result); forget(me); stage[me] = answered
        :: else -> queue!me; leased[me] = true; stage[me] = queueing
        fi }
    /* The claim is committed. */
    :: d_step { stage[me] == claimed ->
        if
        :: still_stands(me) ->
            note_fence(own[me].fence);
            commit(me);
#ifndef LOCAL
            flush();
#endif
            unlock(me);
            stage[me] = working
        :: else -> stage[me] = rolling_back
        fi }

    /* Work under a lease, outside any transaction. */
#ifdef LOCAL
#ifdef SECOND_TRANSACTION_FAULT
    :: atomic { stage[me] == working && told[me] == execute && !did[me] ->
        db.effects++; flush(); did[me] = true }
    :: atomic { stage[me] == working && told[me] == execute && did[me] -> verb[me] = complete; stage[me] = to_end }
#else
    :: atomic { stage[me] == working && told[me] == execute -> verb[me] = complete; stage[me] = to_end }
#endif
#else
    /* An outside effect is begun within the lease. */
    :: atomic { stage[me] == working && told[me] == execute && !did[me] && mine[me] > 0 ->
        did[me] = true;
#ifdef KEYED
        if
        :: provider_memory == 0 -> world++; provider_memory = PROVIDER_WINDOW
        :: else
        fi
#else
        world++
#endif
        }
    :: atomic { stage[me] == working && told[me] == execute && did[me] -> verb[me] = complete; stage[me] = to_end }
    :: atomic { stage[me] == working && told[me] == execute && !did[me] && mine[me] == 0 -> forget(me) }
#endif
    :: atomic { stage[me] == working && told[me] == execute && !did[me] && troubles > 0 ->
        troubles--;
        stage[me] = to_end;
        if
        :: verb[me] = fail_not_applied
        :: verb[me] = release
        :: verb[me] = renew
        fi }
    :: atomic { stage[me] == working && told[me] == execute && troubles > 0 ->
        troubles--; stage[me] = to_end; verb[me] = fail_unknown }
    /* Told to reconcile, it reads. What is not there it may say, or do. */
    :: atomic { stage[me] == working && told[me] == reconcile ->
        if
        :: it_happened -> verb[me] = complete; stage[me] = to_end
        :: !it_happened -> verb[me] = read_not_applied; stage[me] = to_end
        :: !it_happened -> told[me] = execute
        :: troubles > 0 -> troubles--; verb[me] = fail_unknown; stage[me] = to_end
        :: troubles > 0 -> troubles--; verb[me] = release; stage[me] = to_end
        fi }

    /* A transactional claim: all of it under the lock. */
    :: atomic { stage[me] == in_transaction ->
        if
#ifdef LOCAL
        :: told[me] == execute -> verb[me] = complete; stage[me] = writing
        :: told[me] == execute && troubles > 0 -> troubles--; verb[me] = fail_not_applied; stage[me] = writing
        :: told[me] == execute && troubles > 0 -> troubles--; verb[me] = fail_unknown; stage[me] = writing
        :: troubles > 0 -> troubles--; verb[me] = release; stage[me] = writing
#else
        :: told[me] == execute -> stage[me] = rolling_back
#endif
#ifndef LOCAL
        :: told[me] == reconcile && it_happened -> verb[me] = complete; stage[me] = writing
#endif
        :: told[me] == reconcile && !it_happened -> verb[me] = read_not_applied; stage[me] = writing
        :: troubles > 0 -> troubles--; stage[me] = rolling_back
        fi;
        if
        :: stage[me] == writing -> d_step { end_claim(me) }
        :: else
        fi }

    /* The end of a claim: the lock, the look, the write, the commit, the acknowledgement. */
    :: d_step { stage[me] == to_end && lock_is_taken -> queue!me; stage[me] = queueing_to_end }
    :: d_step { (stage[me] == to_end && lock_is_free) || (stage[me] == queueing_to_end && owner == me) ->
        if
        :: stage[me] == to_end -> take_lock(me)
        :: else
        fi;
        stand(me);
        if
        :: stage[me] == writing -> end_claim(me)
        :: else
        fi }
    :: d_step { stage[me] == ended ->
        if
        :: still_stands(me) ->
            if
            :: own[me].state != absent && (!leased[me] || verb[me] == release) -> note_fence(own[me].fence)
            :: else
            fi;
            commit(me);
#if !defined(LOCAL) && !defined(RENEWAL_NOT_FLUSHED_FAULT)
            if
            :: verb[me] == renew -> flush()
            :: else
            fi;
#endif
            stage[me] = acknowledging_end
        :: else -> stage[me] = rolling_back
        fi }
    :: atomic { stage[me] == acknowledging_end ->
        if
        :: verb[me] == complete -> acknowledge(fence[me]); unlock(me); forget(me); stage[me] = answered
        :: verb[me] == renew -> set_mine(me); unlock(me); stage[me] = working
        :: else -> unlock(me); forget(me)
        fi }
    /* The end of a transaction that has changed nothing, or must not. */
    :: d_step { stage[me] == rolling_back || stage[me] == rolling_back_to_end || stage[me] == letting_go ->
        undo(me);
        if
        :: stage[me] == rolling_back -> forget(me)
        :: stage[me] == rolling_back_to_end -> stage[me] = to_end
        :: stage[me] == letting_go -> forget(me); stage[me] = answered
        fi }
    :: stage[me] == answered -> break
    od
}

/* ---- upkeep, and a human -------------------------------------------------------------------------------------- */

#ifndef NO_WORKER
proctype Worker() {
end:
    do
    /* end_lease(): it changes no answer. */
    :: atomic { db.state == in_flight && db.lease == 0 && lock_is_free ->
        if
        :: waits_for_human -> db.reconciles = reads_in_vain; db.state = escalated
        :: !waits_for_human && may_have_happened -> db.reconciles = reads_in_vain; db.state = lease_seen_ended
#ifdef LOCAL
        :: !waits_for_human && !may_have_happened -> db.state = lease_expired; db.prior = nothing; db.window = WINDOW
#endif
#ifdef KEYED
        :: !waits_for_human && !may_have_happened -> db.state = lease_seen_ended
#endif
        fi }
    /* prune_one(): judged under the lock. */
#ifdef PRUNE_IN_USE_FAULT
    /* By a list that is stale by now, and without the lock. */
    :: atomic { !listed && in_outcome(db.state) && !guarded -> listed = true }
    :: atomic { listed ->
        listed = false;
        if
        :: in_outcome(db.state) -> erase(db)
        :: else
        fi }
#else
    :: atomic { !pruning && in_outcome(db.state) && !guarded && lock_is_free -> take_lock(PRUNER); pruning = true }
    :: d_step { pruning ->
        if
        :: in_outcome(db.state) -> erase(db)
        :: else
        fi;
        pruning = false; unlock(PRUNER) }
#endif
    od
}
#endif

/* decide_for() */
#define asks_human (in_claim(db.state) && !is_held && waits_for_human)
proctype Human() {
end:
    do
    :: d_step { asks_human && lock_is_taken && owner != HUMAN && !queue??[eval(HUMAN)] -> queue!HUMAN }
    :: d_step { (asks_human && lock_is_free) || owner == HUMAN ->
        if
        :: asks_human ->
            draw_fence(db.fence, db.fence);
            note_fence(db.fence);
            db.reconciles = 0; db.prior = nothing; db.lease = 0; db.window = WINDOW;
            if
            :: it_happened -> db.state = completed; db.result = db.fence
            :: else -> db.state = not_applied
            fi
        :: else
        fi;
        unlock(HUMAN) }
    od
}

/* ---- time ----------------------------------------------------------------------------------------------------- */

#define step(t) t = (t > 0 -> t - 1 : 0)

#define knows_fence(i) (fence[i] != 0 && fence[i] == db.fence)
#if CLIENTS == 2
#define owner_works (knows_fence(1) || knows_fence(2))
#define someone_waits (stage[1] != answered || stage[2] != answered)
#define uncommitted_lease_ends (own[1].lease == 1 || own[2].lease == 1)
#else
#define owner_works (knows_fence(1) || knows_fence(2) || knows_fence(3))
#define someone_waits (stage[1] != answered || stage[2] != answered || stage[3] != answered)
#define uncommitted_lease_ends (own[1].lease == 1 || own[2].lease == 1 || own[3].lease == 1)
#endif
/* That a lease ends before its owner, who is alive, is a trouble; so that it cannot go on for ever. */
#define lease_ends_early ((is_held && db.lease == 1 && owner_works) || uncommitted_lease_ends)
#define window_ends (db.state == completed && guarded && db.window <= 1 && run_window <= 1 && !run_lives)
#ifdef ASYNC
/* A window is longer than the delay of an asynchronous commit. */
#define may_end_window (!window_ends || (disk.state == completed && disk.result == db.result))
#else
#define may_end_window true
#endif

proctype Time() {
    byte i;
end:
    do
    :: atomic { (db.lease > 0 || db.window > 0 || run_window > 0 || db.provider > 0 || provider_memory > 0) &&
                (!lease_ends_early || troubles > 0) && may_end_window ->
        if
        :: lease_ends_early -> troubles--
        :: else
        fi;
        if
        :: window_ends -> acked = 0; world = 0; db.effects = 0
#ifdef ASYNC
            ; disk.effects = 0
#endif
        :: else
        fi;
        step(db.lease); step(db.window); step(db.provider); step(provider_memory); step(run_window);
#ifdef ASYNC
        step(disk.lease); step(disk.window); step(disk.provider);
#endif
        i = 1;
        do
        :: i <= CLIENTS ->
            step(own[i].lease); step(own[i].provider); step(mine[i]); i++
        :: else -> break
        od;
        i = 0 }
#ifdef RUN
    :: atomic { run_lives -> run_lives = false; run_window = WINDOW }
    :: atomic { !run_lives && run_begins > 0 -> run_begins--; run_lives = true }
#endif
    od
}

/* ---- what goes wrong ------------------------------------------------------------------------------------------ */

/* A caller whose connection is gone keeps what it knows: it ends its claim once more, or goes on with its work. */
#define is_ending(i) (leased[i] && (stage[i] == queueing_to_end || \
    stage[i] == ended || stage[i] == acknowledging_end))
inline lose_connection(who) {
    if
    :: stage[who] == to_end || stage[who] == working || stage[who] == answered || stage[who] == letting_go ||
            stage[who] == rolling_back || stage[who] == rolling_back_to_end
    :: is_ending(who) -> stage[who] = rolling_back_to_end
    :: else -> stage[who] = rolling_back
    fi
}

proctype Chaos() {
    byte i;
end:
    do
    /* A caller is killed, or its connection. */
    :: atomic { troubles > 0 && someone_waits ->
        select(i : 1 .. CLIENTS);
        if
        :: stage[i] != answered && stage[i] != letting_go && stage[i] != calling && stage[i] != rolling_back ->
            troubles--; stage[i] = rolling_back
        :: is_ending(i) -> troubles--; stage[i] = rolling_back_to_end
        :: else
        fi;
        i = 0 }
    /* The server crashes. */
    :: atomic { troubles > 0 && someone_waits ->
        troubles--;
        owner = 0;
        do
        :: nempty(queue) -> queue?_
        :: empty(queue) -> break
        od;
        listed = false; pruning = false;
        i = 1;
        do
        :: i <= CLIENTS -> lose_connection(i); i++
        :: else -> break
        od;
        i = 0;
#ifdef ASYNC
        if
        :: flush()
        :: copy(db, disk);
            if
            :: acked != 0 && (db.state != completed || db.result != acked) -> acked = 0
            :: else
            fi
        fi
#endif
        }
#ifdef ASYNC
    :: atomic { disk.state != db.state || disk.fence != db.fence || disk.lease != db.lease || disk.effects != db.effects ->
        flush() }
#endif
    od
}

init {
    byte i = 1;
    atomic {
#ifdef RUN
        run_lives = true;
        run_begins = 1;
#endif
        do
        :: i <= CLIENTS -> forget(i); found[i] = absent; run Client(i); i++
        :: else -> break
        od;
        i = 0;
#ifndef NO_WORKER
        run Worker();
#endif
        run Human();
        run Time();
        run Chaos()
    }
}

/* ---- the invariants ------------------------------------------------------------------------------------------- */

#define one_effect_each (effects_in_window <= 1)
#define result_is_kept (!acked_changed)
#define fences_only_grow (!fence_went_back)
#define completion_is_kept (acked == 0 || (db.state == completed && db.result == acked))

/* No key has two effects within its window. */
ltl one_effect { [] one_effect_each }
/* No acknowledged result changes. */
ltl result_kept { [] result_is_kept }
/* No fence goes back. */
ltl fences_grow { [] fences_only_grow }
/* No acknowledged completion is lost. */
ltl completion_kept { [] completion_is_kept }
/* These four. */
ltl safe { [] (one_effect_each && result_is_kept && fences_only_grow && completion_is_kept) }
/* No key is stuck: whoever calls is answered. */
ltl no_key_stuck { <> (!someone_waits) }
