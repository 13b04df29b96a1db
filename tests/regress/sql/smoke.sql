-- SMOKE: shows that the plumbing works. Replace it by real tests; nothing refers to it.
SELECT extname, extversion FROM pg_extension WHERE extname = 'idempotency';
