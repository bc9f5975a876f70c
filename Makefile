# `make run` shows brodo at work, `make test` passes every test; both set up what they need. `make bench`
# measures brodo beside other forwarders, `make soak` loads one brodo for SOAK_MINUTES.

CARGO ?= cargo
# Root: the end-to-end tests and the benchmark build network namespaces. The program under test runs as
# the user `nobody`.
SUDO := $(shell [ "$$(id -u)" = 0 ] || \
	echo 'sudo --preserve-env=CI,BRODO_E2E_SCALE,BRODO_E2E_SYSTEM,BRODO_WORKERS,BRODO_PEERS')
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BENCH_ARGS ?=
SOAK_MINUTES ?= 20
# The crates made for use by other programs, each after those it depends on.
PUBLISHED := brodo-core brodo-link brodo-net

.PHONY: help run test bench soak setup setup-test fmt clippy tidy deny unit sim replay report-test e2e e2e-workers e2e-vm vm-guests \
	vm-callers smoke doc suites systemd package deb deb-test

help:
	@echo 'make run      demonstration with the release build: a download through brodo, checked and timed'
	@echo 'make test     every test: format, lints, licences, unit, simulation, fuzz replay, end to end, documentation'
	@echo 'make bench    throughput, latency, CPU and memory beside the direct path and other forwarders (BENCH_ARGS=...)'
	@echo 'make soak     one brodo under every load for SOAK_MINUTES=20: growth, drops, wrong bytes'
	@echo 'make e2e-workers, e2e-vm  end-to-end tests with several workers, and on a machine of brodo vm'
	@echo 'make vm-guests  brodo vm with real guests: Linux in QEMU, DPDK (needs QEMU 8 or later, busybox-static)'
	@echo 'make vm-callers  QEMU -netdev passt, libvirt and libguestfs with brodo in the place of passt (needs mmdebstrap)'
	@echo 'make suites   suites of podman, slirp4netns, passt, and callers of plugins (SUITES=folder with sources)'
	@echo 'make systemd  brodo as a service of a real systemd, killed beneath uploads (systemd, python3)'
	@echo 'make package  the published crates as crates.io would get them, each by itself with its minimum Rust version'
	@echo 'make deb      Debian packages: brodo, brodo-podman, brodo-passt, brodo-slirp4netns (needs cargo-deb)'
	@echo 'make deb-test  those packages by lintian, installed and purged in a Debian of their own (debootstrap, lintian)'

run: setup
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) $(TARGET_DIR)/release/brodo-bench demo

bench: setup
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) $(TARGET_DIR)/release/brodo-bench $(BENCH_ARGS)

soak: setup
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) $(TARGET_DIR)/release/brodo-bench soak --minutes $(SOAK_MINUTES) $(BENCH_ARGS)

# Order: the steps that fail fastest and most often come first. One build for all of them: every step names
# the whole workspace, because cargo resolves features anew for `-p` and builds half of the dependencies a
# second time.
test: setup-test
	@set -e; begin=$$(date +%s); for step in fmt clippy tidy deny unit e2e smoke doc package; do \
	  echo "==> $$step"; start=$$(date +%s); $(MAKE) --no-print-directory $$step; \
	  echo "==> $$step passed in $$(( $$(date +%s) - start )) s"; done; \
	echo "==> all tests passed in $$(( $$(date +%s) - begin )) s"

setup:
	@scripts/setup

setup-test:
	@scripts/setup test

fmt:
	$(CARGO) fmt --all --check

# Includes clippy::incompatible_msrv: no item of the standard library younger than the rust-version of its
# crate.
clippy:
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --workspace --test e2e -- -D warnings

tidy:
	$(CARGO) test --workspace --test tidy

deny:
	$(CARGO) fetch --quiet
	$(CARGO) deny --offline --log-level error check licenses bans sources

# Tests without root: unit tests and examples, simulation, fuzz replay, the program's sessions, examples in
# the documentation. Two at a time on each processor: sessions mostly wait.
unit:
	RUST_TEST_THREADS=$$(( 2 * $$(nproc) )) $(CARGO) test --workspace

# Two parts of `unit` by themselves.
sim:
	$(CARGO) test --workspace --test conformance --test handover --test tables

replay:
	$(CARGO) test --workspace --test replay --test seeds --test snapshots

# Pages of `brodo report` in headless Chromium, with the time in which a large one opens. Skipped with a
# message where ChromeDriver is missing; BRODO_SCREENSHOTS=FOLDER keeps pictures.
report-test:
	$(CARGO) test --workspace --test browser -- --nocapture

# Built as the user, run as root, with the brodo of the same build. With one worker all tests run on all their
# links; with four workers each on one link, a fifth of the short connections, without the tests that take
# long and concern one flow or memory. `make e2e-workers`: all of them with two and with four. Two tests at a
# time on each processor: most of their time they wait.
E2E = $$($(CARGO) test -q --workspace --test e2e --no-run --message-format=json \
	  | sed -n 's/.*"executable":"\([^"]*\/deps\/e2e-[0-9a-f]*\)".*/\1/p')
E2E_THREADS = --test-threads $$(( 2 * $$(nproc) ))
e2e:
	$(CARGO) test --workspace --test e2e --no-run
	$(SUDO) $(E2E) $(E2E_THREADS)
	BRODO_WORKERS=4 BRODO_E2E_SCALE=$(or $(BRODO_E2E_SCALE),20) $(SUDO) $(E2E) $(E2E_THREADS) --skip wan --skip 'slow readers'

e2e-workers:
	$(CARGO) test --workspace --test e2e --no-run
	BRODO_WORKERS=2 $(SUDO) $(E2E) $(E2E_THREADS)
	BRODO_WORKERS=4 $(SUDO) $(E2E) $(E2E_THREADS)

# With a machine as the guest, on a stream and on shared rings, without the tests of a namespace alone: kernel
# sockets of bulk flows, ports of the host on the guest's loopback, the transmit queue of a TAP, more workers
# than pairs.
NAMESPACE_ONLY = 'bulk flows' 'promoted flows' 'flood of datagrams' rejects loopbacks 'auto follows' \
	'several workers' 'transmit queue' --tx-queue-len 'system call' spliced 'datagrams of ports survive' \
	'socket broker' 'four workers' 'sixty-four workers' 'is deleted'
e2e-vm:
	$(CARGO) test --workspace --test e2e --no-run
	set -e; for only in $(NAMESPACE_ONLY); do set -- "$$@" "--skip=$$only"; done; \
	  BRODO_E2E_SYSTEM=brodo-stream $(SUDO) $(E2E) $(E2E_THREADS) "$$@"; \
	  BRODO_E2E_SYSTEM=brodo-vhost-user $(SUDO) $(E2E) $(E2E_THREADS) "$$@"

# Real guests without KVM: some ten minutes.
vm-guests:
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) scripts/vm-guests $(TARGET_DIR)/release/brodo $(TARGET_DIR)/release/brodo-bench $(TARGET_DIR)/vm-guests

# Programs that start passt, in a root of Debian's unstable suite, 1 GB. Three minutes, half of them for the
# root, which is kept.
vm-callers:
	$(CARGO) build --release -p brodo -p brodo-bench
	$(SUDO) scripts/vm-callers $(TARGET_DIR)/release/brodo $(TARGET_DIR)/release/brodo-bench \
		$(TARGET_DIR)/vm-callers

# Suites of other projects, as an ordinary user. Sources that are not in the folder are cloned from their
# public addresses.
SUITES ?= $(TARGET_DIR)/suites
suites:
	$(CARGO) build --release -p brodo
	scripts/suites $(TARGET_DIR)/release/brodo $(SUITES)

# A systemd of its own in namespaces: some twenty seconds.
systemd:
	$(CARGO) build --release -p brodo
	$(SUDO) scripts/systemd $(TARGET_DIR)/release/brodo

# All of the benchmark in about a minute. Its figures mean nothing at that length, so they are not shown. All
# targets, because `--bins` alone resolves features without those of tests and builds most dependencies anew.
smoke:
	$(CARGO) build --workspace --all-targets
	$(SUDO) $(TARGET_DIR)/debug/brodo-bench --smoke >/dev/null

# Documentation for contributors: private items are documented and linked too.
doc:
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' \
	  $(CARGO) doc --workspace --no-deps --document-private-items

# Published crates as crates.io would get them, with the compiler of their `rust-version` and, one by one,
# with default features and without: each from its package, that is with the files and dependencies that its
# manifest names, and with the packages of the other two in place of this workspace. Not with `smoltcp`, whose
# dependency needs a younger compiler. Offline: what Cargo.lock names is there after the other steps. rustup
# fetches the compiler (minimal profile); where it cannot (static.rust-lang.org out of reach, no rustup), the
# workspace's own takes its place, also under CI=true: the registry's state is no property of the code, and
# clippy::incompatible_msrv still finds items of the standard library that are too young.
MSRV = $$(sed -n 's/^rust-version = "\(.*\)"/\1/p' crates/core/Cargo.toml)
package:
	$(CARGO) fetch --quiet
	@rustup run $(MSRV) rustc --version >/dev/null 2>&1 || \
	  rustup toolchain install --no-self-update --profile minimal $(MSRV) || \
	  echo "SKIPPED minimum compiler: Rust $(MSRV) is not installed and cannot be fetched"
	CARGO='$(CARGO)' scripts/package-check $(TARGET_DIR)/package-check $(MSRV) $(PUBLISHED)

# Debian packages of the release build, in target/debian. The lists are in crates/cli/Cargo.toml.
deb:
	@$(CARGO) deb --version >/dev/null 2>&1 || { echo 'make deb: please install cargo-deb: cargo install --locked cargo-deb' >&2; exit 1; }
	$(CARGO) build --release --workspace --bins
	scripts/package-files $(TARGET_DIR)/release/brodo $(TARGET_DIR)/release/package
	for variant in '' --variant=podman --variant=passt --variant=slirp4netns; do $(CARGO) deb --no-build --strip -p brodo $$variant || exit 1; done

# A minute: lintian, then installed, used, removed and purged beside podman, passt and slirp4netns.
deb-test: deb
	$(SUDO) scripts/package-try $(TARGET_DIR)/debian
