# shellcheck shell=bash
# Messages: written beside a credit; written, taken and finished one at a time; and a hundred at a time.
# The queue does not know duplicates, fences or doubt, so its rate is what these cost, and not a target.
begin outbox_enqueue 'A credit and a message in one transaction, 4 clients'
line '0 bare effect' 0_bare.new
line '5 queue: send' 5_queue.enqueue
line '6 ours: idem_enqueue' 6_ours.enqueue
rounds
sql -c 'TRUNCATE queue.q_mail, idempotency.message, idempotency.claim'
begin outbox 'A message from beginning to end, 4 clients'
UNIT='messages/s'
line '5 queue: send, read, delete' 5_queue.cycle
line '6 ours: enqueue, dispatch, complete' 6_ours.cycle
line '5 queue: 100 at a time' 5_queue.cycle100 100
line '6 ours: 100 at a time' 6_ours.cycle100 100
rounds
sql -c 'TRUNCATE queue.q_mail, idempotency.message, idempotency.claim' -c 'VACUUM'
