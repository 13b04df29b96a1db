# Everything a person or a machine does with this tree, one target each: `make help`.
#
#   PGVER=15                 PostgreSQL major to build for and test with
#   PG_CONFIG=/path/to/it    the exact pg_config; wins over PGVER
#   DESTDIR=/some/root       install below this folder (packagers)
#   TESTS="a b"              only these files of a suite, without their suffix
#   ACCEPT=1                 let regress/isolation results become the expected output
#   MINUTES=1                how long `make chaos` goes on; CHAOS_SEED=… repeats a plan
#   VERSIONS="15 17 18"      what `make matrix` runs on; also 16 and 18-assert; MATRIX_DIR=target/matrix keeps its systems
#   KEEP=1                   leave the cluster of `make demo` running
#
# The work is done by scripts/*.sh. Prerequisites: Debian 12 (or a relative of it), make, Rust 1.95 (rustup), and to
# be root or to have sudo. `make demo`, `make test` and `make lint` install what else they need; `make build` and
# `make install` install nothing but the extension.

SHELL := bash
.DEFAULT_GOAL := build
.NOTPARALLEL:

export PGVER PG_CONFIG DESTDIR TESTS ACCEPT KEEP MINUTES CHAOS_SEED MATRIX_DIR MATRIX_SUITES

SUITES := unit fuzz-smoke model regress isolation chaos tap

.PHONY: help setup build install uninstall installcheck demo test $(SUITES) matrix bench chaos-planted lint fmt clean distclean env

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@sed -n 's/^#   \([A-Z]\)/  \1/p' $(MAKEFILE_LIST)

build: ## build the library and the SQL into target/package/pgNN (the default)
	@scripts/build.sh

install: ## build, then copy into the PostgreSQL of PG_CONFIG, below DESTDIR if set
	@scripts/install.sh

uninstall: ## remove what `make install` copied
	@scripts/install.sh --uninstall

installcheck: ## regression tests against the running server that PGHOST, PGPORT, PGUSER name
	@scripts/installcheck.sh

demo: ## the story on real input, in a throw-away cluster (KEEP=1 leaves it running)
	@scripts/setup.sh build demo
	@scripts/install.sh
	@scripts/demo.sh

test: ## every suite: unit, fuzz-smoke, model, regress, isolation, chaos, tap
	@scripts/setup.sh build tap fuzz model chaos
	@scripts/test.sh $(SUITES)

unit: ## the pure crate: unit tests, property tests, published vectors
	@scripts/setup.sh build
	@scripts/test.sh unit

fuzz-smoke: ## the fuzz target of the canonical form, for FUZZ_SECONDS (20)
	@scripts/setup.sh build fuzz
	@scripts/test.sh fuzz-smoke

model: ## the claim protocol in every order of steps, crashes included, by spin
	@scripts/setup.sh build model
	@scripts/test.sh model

regress: ## SQL and expected output, without and with shared_preload_libraries
	@scripts/setup.sh build
	@scripts/test.sh regress

isolation: ## one spec per race
	@scripts/setup.sh build
	@scripts/test.sh isolation

tap: ## whole-server tests: worker, crash, dump, standby, roles
	@scripts/setup.sh build tap
	@scripts/test.sh tap

chaos: ## clients that are killed, cut off and crashed, and a checker of what they were told, for MINUTES (1)
	@scripts/setup.sh build chaos
	@scripts/test.sh chaos

chaos-planted: ## the same on builds with planted faults: each must be found
	@scripts/setup.sh build chaos
	@tests/chaos/planted.sh

matrix: ## regress, isolation, chaos and tap on each of VERSIONS, in a Debian of its own each; needs root
	@scripts/setup.sh matrix
	@scripts/matrix.sh $(VERSIONS)

bench: ## measured beside what people write themselves, in interleaved rounds (BENCH_ROUNDS, BENCH_SECONDS, BENCH_ONLY, BENCH_FULL)
	@scripts/setup.sh build bench
	@scripts/install.sh
	@scripts/bench.sh

lint: ## rustfmt, clippy, rustdoc, pgspot, shellcheck; warnings are errors
	@scripts/setup.sh build lint
	@scripts/lint.sh

fmt: ## format the Rust code
	cargo fmt --all

setup: ## what demo, test and lint do first: system packages and cargo-pgrx
	@scripts/setup.sh build tap demo fuzz model chaos lint

env: ## shell lines that make plain cargo commands share these builds: eval "$(make -s env)"
	@scripts/build.sh --env

clean: ## remove what was built, keep the tools
	@scripts/build.sh --clean

distclean: ## remove ./target altogether
	rm -rf target crates/core/fuzz/target
