#!/bin/sh
# Fuzzes the canonical form for some seconds, with a plain stable toolchain: no nightly, no cargo-fuzz, no sanitizer (the
# crate has no unsafe code). Needs a C++ compiler for libFuzzer itself. Exits non-zero at the first failure; the input is
# then in artifacts/, and `cargo fuzz run -s none canonical artifacts/FILE` or the program below with FILE repeats it.
#
#   crates/core/fuzz/run.sh [SECONDS]         20 if not given
set -eu
cd "$(dirname "$0")"
seconds="${1:-20}"
host="$(rustc -vV | sed -n 's/^host: //p')"
target="${CARGO_TARGET_DIR:-target}"
# What `cargo fuzz` sets: count edges and comparisons. With --target, build scripts are left alone.
RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares" \
    cargo build --locked --release --target "$host" --bin canonical
mkdir -p corpus/canonical artifacts/canonical
exec "$target/$host/release/canonical" -max_total_time="$seconds" -max_len=4096 -timeout=10 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix=artifacts/canonical/ corpus/canonical seeds/canonical
