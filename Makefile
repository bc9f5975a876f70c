# The two commands of the README: `make run` shows brodo at work, `make test` passes every test. Both set up
# what they need. `make bench` measures it against its peers, `make soak` works it for long.

CARGO ?= cargo
# The end-to-end tests and the benchmark build network namespaces, which needs root; the program under test
# runs as nobody.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo 'sudo --preserve-env=CI,BRODO_E2E_SCALE,BRODO_WORKERS,BRODO_PEERS')
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BENCH_ARGS ?=
SOAK_MINUTES ?= 20

.PHONY: help run test bench soak setup setup-test fmt clippy tidy deny unit sim e2e e2e-workers smoke replay doc

help:
	@echo 'make run    build the release and watch it work: a download through brodo, checked and timed'
	@echo 'make test   format, lints, tidiness, licences, unit, simulation and end-to-end tests, fuzz replay, documentation'
	@echo 'make bench  throughput, latency, CPU and memory against the direct path and the peers (BENCH_ARGS=...)'
	@echo 'make soak   one brodo under every load for SOAK_MINUTES=20: does it grow, drop or corrupt anything?'

run: setup
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) $(TARGET_DIR)/release/brodo-bench demo

bench: setup
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) $(TARGET_DIR)/release/brodo-bench $(BENCH_ARGS)

soak: setup
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) $(TARGET_DIR)/release/brodo-bench soak --minutes $(SOAK_MINUTES) $(BENCH_ARGS)

# In this order: what fails fastest and most often comes first. All tests share cargo's test profile, and name
# the whole workspace: with `-p` features are resolved anew and half of the dependencies are built again.
test: setup-test
	@set -e; for step in fmt clippy tidy deny unit sim e2e smoke replay doc; do \
	  echo "==> $$step"; start=$$(date +%s); $(MAKE) --no-print-directory $$step; \
	  echo "==> $$step passed in $$(( $$(date +%s) - start )) s"; done
	@echo '==> all tests passed'

setup:
	@scripts/setup

setup-test:
	@scripts/setup test

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --workspace --test e2e -- -D warnings

tidy:
	$(CARGO) test --workspace --test tidy

deny:
	$(CARGO) fetch --quiet
	$(CARGO) deny --offline --log-level error check licenses bans sources

unit:
	$(CARGO) test --workspace --exclude brodo-sim --exclude brodo-fuzz

sim:
	$(CARGO) test -p brodo-sim

# Built as the user, run as root; with it the brodo under test. All of it with one worker. With two and with
# four a fifth of the many short connections, and not what takes long and is about one flow or about memory:
# `make e2e-workers` is that.
E2E = $$($(CARGO) test -q --workspace --test e2e --no-run --message-format=json \
	  | sed -n 's/.*"executable":"\([^"]*\/deps\/e2e-[0-9a-f]*\)".*/\1/p')
e2e:
	$(CARGO) test --workspace --test e2e --no-run
	$(SUDO) $(E2E)
	BRODO_WORKERS=2 BRODO_E2E_SCALE=$(or $(BRODO_E2E_SCALE),20) $(SUDO) $(E2E) --skip wan --skip 'slow readers'
	BRODO_WORKERS=4 BRODO_E2E_SCALE=$(or $(BRODO_E2E_SCALE),20) $(SUDO) $(E2E) --skip wan --skip 'slow readers'

e2e-workers:
	$(CARGO) test --workspace --test e2e --no-run
	BRODO_WORKERS=2 $(SUDO) $(E2E) wan
	BRODO_WORKERS=2 $(SUDO) $(E2E) 'slow readers'
	BRODO_WORKERS=4 $(SUDO) $(E2E) wan
	BRODO_WORKERS=4 $(SUDO) $(E2E) 'slow readers'

# All of the benchmark in about a minute; its figures say nothing, so they are not shown.
smoke:
	$(CARGO) build --workspace --bins
	$(SUDO) $(TARGET_DIR)/debug/brodo-bench --smoke >/dev/null

replay:
	$(CARGO) test -p brodo-fuzz

# For those who work on brodo: private items are documented and linked too.
doc:
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' $(CARGO) doc --workspace --no-deps --document-private-items
