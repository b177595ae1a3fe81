# One target per habit; CI calls these and nothing else. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY ?= python3
# Given to the launcher by `make serve ARGS="--model-id …"`, and to the programs of `make gpu…`.
ARGS ?=
# Names for `make bench` (of `python -m benchmarks`) and `make peers` (of `python -m peers`); none means all.
WHAT ?=
# Where `make bench-load` serves what it measures.
BENCH_PORT ?= 3999
# How long random faults and the soak of `make reliability` take, each.
MINUTES ?= 30
# How many tests of Python run at a time. Most take one core; a file's tests share models and servers, and stay together.
TEST_WORKERS ?= 2
# How many random faults `make chaos` tries.
CHAOS_SEEDS ?= 50

BIN := .venv/bin
INSTALLED := .venv/.installed
CLIENTS := .venv-clients/.installed
RIVALS := .venv-rivals/.installed
PEERS := .venv-peers/.installed
PACKERS := .venv-packers/.installed
RAY := .venv-ray/.installed
SCHEMA_SUITE := target/json_schema_suite/.installed
SOURCES := Cargo.toml Cargo.lock pyproject.toml \
	$(shell find router launcher endpoint proto server kernels -type f -not -path '*/__pycache__/*' -not -name '*.pyc' -not -name '*.so' 2>/dev/null)

# The release profile, so that every dependency that the wheel was built with is there already; our own crates are
# compiled for tests anyway, so they get their debug assertions and overflow checks back. Only the scheduler is optimised,
# for its simulations: the tests of the others wait more than they compute, and it takes minutes less to compile.
CHECKED := $(foreach crate,router scheduler launcher load,$(foreach check,debug-assertions overflow-checks,\
	--config profile.release.package.penstock-$(crate).$(check)=true)) \
	$(foreach crate,router launcher load,--config profile.release.package.penstock-$(crate).opt-level=0)
CARGO_TEST := cargo test --release --workspace --locked --no-fail-fast $(CHECKED)

# `make setup` builds ours while it installs what they need: crates take the processors, wheels the network and the disk.
# The C of the kernels is nobody's dependency, so it is compiled where crates leave a processor idle.
# Python compiles a module when it is first imported; to compile all of them takes the processors half a minute.
OURS := ./endpoint .
BUILT := target/setup
PIP := $(BIN)/python -m pip
NEEDED := $(BIN)/python -c 'import tomllib; \
	read = lambda path: tomllib.load(open(path, "rb"))["project"]; \
	server, kernels = read("pyproject.toml"), read("kernels/pyproject.toml"); \
	needed = server["dependencies"] + server["optional-dependencies"]["dev"] + kernels["dependencies"]; \
	print(*(it for it in needed if not it.startswith("penstock-")), sep="\n")'

# What was compiled is kept, whatever the environment says: else each process that imports PyTorch compiles it again, and
# takes twice as long. The tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(INSTALLED) ## .venv with everything built (release) and installed; does nothing when nothing changed

$(INSTALLED): $(SOURCES)
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Python 3.11 or newer is needed: make PY=python3.12 …'; exit 1; }
	@test -x $(BIN)/python || $(PY) -m venv .venv
	@rm -rf $(BUILT)
	@ours=; trap 'kill $$ours 2> /dev/null || true' EXIT; \
	nice -n 19 $(PIP) wheel --quiet --no-deps --wheel-dir $(BUILT) ./kernels & ours="$$!"; \
	for part in $(OURS); do \
		$(PIP) wheel --quiet --no-deps --wheel-dir $(BUILT) $$part & ours="$$ours $$!"; done; \
	$(NEEDED) | $(PIP) install --no-compile -r /dev/stdin; \
	for part in $$ours; do wait $$part; done
	$(PIP) install --no-deps --force-reinstall $(BUILT)/*.whl
	@touch $@

.PHONY: serve
serve: setup ## serve the demo model on http://localhost:3000; ARGS="--model-id M" for another
	@exec $(BIN)/launcher $(ARGS)

# The page is tested in a real browser. Where there is none and none may be installed, those tests are skipped.
.PHONY: browser
browser:
	@command -v chromium-headless-shell chromium chromium-browser google-chrome > /dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq \
			&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell; } \
		|| echo 'No Chromium: the tests of the page will be skipped.'

# Clients that cannot share an environment with the server; where they cannot be had, their tests are skipped.
.PHONY: clients
clients:
	@$(MAKE) --no-print-directory $(CLIENTS) || echo 'Clients cannot be installed: their tests will be skipped.'

$(CLIENTS): tests/clients/requirements.txt
	@test -x .venv-clients/bin/python || $(PY) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --no-compile -r tests/clients/requirements.txt
	@touch $@

# Libraries that write quantized checkpoints; where they cannot be had, what compares our readers with them is skipped.
.PHONY: packers
packers: setup
	@$(MAKE) --no-print-directory $(PACKERS) || echo 'Libraries of quantized formats cannot be installed: their tests will be skipped.'

# Ray, whose newest packages are others than ours; where it cannot be had, the tests of a cluster are skipped.
.PHONY: ray
ray: setup
	@$(MAKE) --no-print-directory $(RAY) || echo 'Ray cannot be installed: its tests will be skipped.'

# The public JSON-Schema test suite, which the source distribution of a validator carries; where it cannot be had, its
# test is skipped.
.PHONY: schema-suite
schema-suite:
	@$(MAKE) --no-print-directory $(SCHEMA_SUITE) || echo 'The JSON-Schema test suite cannot be had: its test will be skipped.'

$(SCHEMA_SUITE): tests/json_schema/requirements.txt
	@rm -rf $(@D) && mkdir -p $(@D)
	$(PY) -m pip download --quiet --no-deps --no-binary jsonschema --require-hashes -r $< -d $(@D)
	@tar -xzf $(@D)/*.tar.gz -C $(@D) --strip-components=3 --wildcards '*/json/tests/draft2020-12/*'
	@touch $@

# What `make bench` compares ours with; what cannot be had is named in the results with the reason.
.PHONY: rivals
rivals: setup
	@$(MAKE) --no-print-directory $(RIVALS) || echo "transformers' server cannot be installed: it will not be compared."

$(RIVALS): benchmarks/compare/requirements.txt
$(PEERS): tests/peers/requirements.txt
$(PACKERS): tests/packers/requirements.txt
$(RAY): tests/clusters/requirements.txt
$(PACKERS): INSTALL_FLAGS := --no-deps

# Our environment is on the path of these, so that they use the same torch and transformers.
$(RIVALS) $(PEERS) $(PACKERS) $(RAY):
	@test -x $(@D)/bin/python || $(PY) -m venv $(@D)
	@purelib='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(BIN)/python -c "$$purelib" > "$$($(@D)/bin/python -c "$$purelib")/shared.pth"
	$(@D)/bin/python -m pip install --quiet --no-compile $(INSTALL_FLAGS) -r $<
	@touch $@

.PHONY: peers
peers: setup ## run what other projects test servers with, and write the table of docs/clients.md
	@$(MAKE) --no-print-directory $(PEERS)
	PYTHONPATH=tests $(BIN)/python -m peers $(WHAT)

# A worker that dies fails its test and is not replaced: another would get the same test, and once waited for ever. Files
# come in the order of tests/conftest.py, not by their numbers of tests. What only the tests of Python need is fetched while
# those of Rust are compiled: one takes the network, the other the processors.
FETCHED := $(MAKE) --no-print-directory browser clients packers ray
# The variants of kernels that shards launched in the tests are written here; what no case of a kernel has is compiled last.
VARIANTS := $(CURDIR)/target/variants
COMPILER := PYTHONPATH=$(if $(TRITON),target/triton-$(TRITON):)tests TRITON_CACHE_DIR=target/triton CUDA_VISIBLE_DEVICES= \
	$(BIN)/python -m kernel_variants.compiler
.PHONY: test
test: setup schema-suite ## every test that needs no GPU: Rust, then Python
	@rm -rf $(VARIANTS); mkdir -p $(VARIANTS); failed=0; fetching=; trap 'kill $$fetching 2> /dev/null || true' EXIT; \
	$(FETCHED) > target/fetched.log 2>&1 & fetching=$$!; \
	$(CARGO_TEST) 2>&1 | tee target/rust-tests.log || failed=1; \
	wait $$fetching || failed=1; cat target/fetched.log; \
	PENSTOCK_VARIANTS=$(VARIANTS) $(BIN)/python -m pytest -m 'not gpu' -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations=25 2>&1 | tee target/python-tests.log || failed=1; \
	[ ! -e $(VARIANTS)/cases.txt ] || $(COMPILER) --beside $(VARIANTS)/cases.txt $(VARIANTS)/served-*.txt || failed=1; \
	rust=$$(awk '/^test result:/ { sum += $$4 } END { print sum + 0 }' target/rust-tests.log); \
	python=$$(tail -n 1 target/python-tests.log | tr -d '='); \
	echo; echo "Rust:   $$rust passed"; echo "Python:$$python"; \
	[ $$failed = 0 ] && echo 'All tests passed.' || { echo 'Some tests FAILED: see above.'; exit 1; }

.PHONY: chaos
chaos: setup ## kill, stop and corrupt every process at random, CHAOS_SEEDS times; a failure prints the line that replays it
	PENSTOCK_CHAOS_SEEDS=$(CHAOS_SEEDS) $(BIN)/python -m pytest tests/e2e/test_faults.py tests/e2e/test_chaos.py -s

# Needs root, buildah and debootstrap. CPU_INDEX: the index of PyTorch's CPU wheels, for the images without CUDA. WHEELS: a
# folder of our wheels, such as target/setup, which are then not built again.
.PHONY: image-check
image-check: setup ## build the images of deploy/Dockerfile without an image registry, and try them
	$(BIN)/python -m deploy.check.images $(if $(CPU_INDEX),--cpu-index $(CPU_INDEX)) $(if $(WHEELS),--wheels $(WHEELS))

.PHONY: helm-check
helm-check: setup ## render the chart of deploy/helm for every example, and check it against the schemas; needs Go
	$(BIN)/python -m deploy.check.charts

# Skips what is not installed or cannot reach its database: an offline machine can still build.
.PHONY: audit
audit: ## known vulnerabilities, licences and sources of all dependencies
	@if cargo deny --version > /dev/null 2>&1; then \
		cargo deny --all-features check licenses bans sources; \
		cargo deny fetch db > /dev/null 2>&1 && cargo deny --all-features check advisories \
			|| echo 'No advisory database: known vulnerabilities of crates were not checked.'; \
	else echo 'cargo-deny is not installed: crates were not checked (cargo install cargo-deny).'; fi
	@if $(BIN)/python -m pip_audit --version > /dev/null 2>&1; then mkdir -p target; \
		$(BIN)/python -m pip_audit --timeout 10 2>&1 | tee target/pip-audit.log || true; \
		skipped=$$(grep -c 'could not be audited' target/pip-audit.log || true); \
		[ "$$skipped" = 0 ] || echo "No advisory for $$skipped Python packages could be asked for: they were not checked."; \
		! grep -q 'known vulnerabilit' target/pip-audit.log || grep -q 'No known' target/pip-audit.log; \
	else echo 'pip-audit is not installed: Python packages were not checked (pip install pip-audit).'; fi

.PHONY: test-gpu
test-gpu: setup ## the tests that need a GPU, and those of the whole server on it
	$(BIN)/python -m pytest -m gpu
	PENSTOCK_TEST_DEVICE=cuda $(BIN)/python -m pytest tests/e2e

# What compiles once is found again in target/triton.
SERVING := tests/server/test_warm_up.py tests/server/test_warm_up_drafts.py tests/server/test_capture.py \
	tests/server/test_capture_drafts.py tests/server/test_gpu_activations.py tests/server/test_measured_models.py
.PHONY: variants
variants: setup ## compile every variant of every kernel that the tests launch, for each kind of GPU; takes an hour or so; TRITON=3.6.0 for another Triton
	@rm -rf $(VARIANTS); mkdir -p $(VARIANTS)
	$(if $(TRITON),$(BIN)/python -m pip install --quiet --no-deps --upgrade --target target/triton-$(TRITON) triton==$(TRITON))
	PENSTOCK_COMPILE_ALL=1 PENSTOCK_TRITON=$(if $(TRITON),$(CURDIR)/target/triton-$(TRITON)) $(BIN)/python -m pytest \
		tests/kernels/test_cases.py::test_every_variant_compiles_without_a_spill $(if $(TRITON),,tests/kernels/test_resources.py)
	PENSTOCK_VARIANTS=$(VARIANTS) $(BIN)/python -m pytest -m 'not gpu' $(SERVING)
	for capability in 80 89 90 100; do $(COMPILER) --all --capability $$capability $(VARIANTS)/served-*.txt; done

.PHONY: check
check: setup ## formatting, lints and types
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.PHONY: fmt
fmt: setup ## format everything
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: proto
proto: setup ## Python stubs from proto/*.proto (the Rust ones are made by the build)
	$(BIN)/python -m grpc_tools.protoc -Ipenstock_server/pb=proto --python_out=server --pyi_out=server \
		--grpc_python_out=server proto/engine.proto proto/api.proto

.PHONY: docs
docs: setup ## docs/flags.md, docs/openapi.json and the chart's flags from the launcher, docs/models.md from the registry
	$(BIN)/launcher --markdown-help > target/flags.md
	mv target/flags.md docs/flags.md
	$(BIN)/python -m deploy.check.chart_flags
	$(BIN)/launcher --openapi > target/openapi.json
	mv target/openapi.json docs/openapi.json
	PYTHONPATH=server:kernels:tests/server $(BIN)/python tests/server/models_page.py

.PHONY: bench
bench: setup rivals ## measure everything that needs no GPU and renew benchmarks/RESULTS.md; WHAT="startup …" for some of it
	$(BIN)/python -m benchmarks $(WHAT)

.PHONY: gpu
gpu: gpu-pack ## measure on this machine's GPU; ARGS="3 4" for some parts, ARGS=--rehearse on a CPU; into target/gpu
	PYTHON=$(BIN)/python benchmarks/gpu.sh --out target/gpu $(ARGS)

.PHONY: gpu-pack
gpu-pack: setup ## pack what `benchmarks/gpu.sh` needs on a bare machine with a GPU; ARGS="--with fa3-fwd" for more
	$(BIN)/python -m benchmarks.gpu.pack $(if $(filter gpu,$(MAKECMDGOALS)),,$(ARGS))

.PHONY: gpu-report
gpu-report: setup ## keep the lines of a run on a GPU, and renew benchmarks/RESULTS.md; ARGS=target/gpu/lines.jsonl
	$(BIN)/python -m benchmarks.gpu.report $(ARGS)

.PHONY: reliability
reliability: setup ## the battery, then random faults and a soak, MINUTES each; into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks --minutes $(MINUTES) battery availability soak

.PHONY: bench-load
bench-load: setup ## put the demo model under load on this machine; the report is target/bench.html
	@$(BIN)/launcher --port $(BENCH_PORT) 2> target/bench-server.log & server=$$!; \
	trap 'kill $$server; wait $$server || true' EXIT; \
	until curl --silent --fail http://127.0.0.1:$(BENCH_PORT)/health; do kill -0 $$server; sleep 0.2; done; \
	$(BIN)/penstock-bench run --url http://127.0.0.1:$(BENCH_PORT) --concurrency 16 --num-requests 200 \
		--output target/bench.json --html target/bench.html

.PHONY: demo-model
demo-model: setup ## train the demo model again, from nothing (an hour or two on two cores)
	$(BIN)/python -m demo.build

.PHONY: demo-adapter
demo-adapter: setup ## train the adapter of the demo model again (some minutes on one core)
	$(BIN)/python -m demo.adapter

.PHONY: demo-heads
demo-heads: setup ## train what drafts for the demo model again (half an hour on one core)
	$(BIN)/python -m demo.medusa
	$(BIN)/python -m demo.eagle

.PHONY: demo-eval
demo-eval: setup ## how often the demo model is right on phrasings that it never saw
	$(BIN)/python -m demo.evaluate

.PHONY: ci
ci: test ## what .ci/run runs

.PHONY: clean
clean: ## remove everything that was built
	rm -rf .venv .venv-clients .venv-rivals .venv-peers .venv-packers .venv-ray target build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
