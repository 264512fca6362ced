# Every target sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
BUILT_WITH := torch==2.13.0
CXX ?= g++
NATIVE := $(wildcard csrc/*)

.PHONY: all demo test test-all mutants coverage test-fast test-kills test-triton test-torch elsewhere \
	lint sanitize wheels bench clean docs

all: $(VENV)/installed

$(VENV)/dependencies: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(BUILT_WITH) numpy "setuptools>=77" ninja "pybind11>=2.13"
	touch $@

# a new package under python/ has a py.typed of its own, and is found after an installation alone
$(VENV)/installed: $(VENV)/dependencies setup.py $(NATIVE) $(wildcard python/*/py.typed)
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[fl,flower,test]"
	touch $@

# Twenty clients with very different digits, three seeds that are the same with and without the
# filter; only what is missing in the folder demo is run.
demo: $(VENV)/installed
	$(BIN)/specgrad-fl compare --filters none,fft --seeds 0,1,2 --eval-every 1 --target 0.9 --out demo

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Three processes of one thread each, for two cores: tests that wait for Flower leave theirs idle.
# One process runs the tests that share what they set up, see tests/conftest.py; some ask for threads
# themselves.
# Compiled sources are kept, whatever the shell says: a hundred processes import them.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses 3 \
	--dist loadgroup --no-loadscope-reorder

# One proof of everything.
test: lint
	$(PYTEST) -m "not exhaustive"

# Every proof: more methods, seeds, dtypes and kernels of what `make test` tries once.
test-all: lint
	$(PYTEST)

# The faults of tests/mutants, planted one by one: `make test` finds each of them. Half an hour.
mutants: $(VENV)/installed
	$(BIN)/python tests/mutants/run.py

# All tests, counting the lines of the op that they reach; half as slow again.
coverage: $(VENV)/installed
	$(PYTEST) --cov=specgrad_kernels --cov-report=term:skip-covered --cov-fail-under=90

# The op and the heart of the trainer, in less than two minutes.
FAST := specgrad_kernels python tests/kernels \
	$(addprefix tests/fl/test_,config.py models.py partition.py reductions.py)

test-fast: $(VENV)/installed
	$(PYTEST) -m "not slow and not exhaustive" -x $(FAST)

# docs/integrations.md with the real packages, in an environment that borrows what .venv has; Flower
# is installed once more, since what is borrowed has no commands.
INTEGRATIONS := .venv-integrations
PURELIB := -c "import sysconfig; print(sysconfig.get_path('purelib'))"

$(INTEGRATIONS)/installed: $(VENV)/installed
	$(BIN)/python -m venv $(INTEGRATIONS)
	echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" \
		> "$$($(INTEGRATIONS)/bin/python $(PURELIB))/borrowed.pth"
	$(INTEGRATIONS)/bin/pip install --quiet $(BUILT_WITH) "lightning~=2.6" "transformers~=5.22" \
		"accelerate~=1.15" "opacus~=1.6" "pytorch_optimizer~=4.1" "wandb~=0.31" \
		"mlflow-skinny~=3.17" sqlalchemy alembic "flwr[simulation]~=1.41.0" "kernels~=0.17"
	$(INTEGRATIONS)/bin/pip install --quiet --no-deps --ignore-installed "flwr~=1.41.0" \
		"timm~=1.0" "torchvision==0.28.*"
	touch $@

.PHONY: test-integrations
test-integrations: $(INTEGRATIONS)/installed
	OMP_NUM_THREADS=1 $(INTEGRATIONS)/bin/python -m pytest -q tests/integrations tests/test_hub.py

# The oldest releases that were tried, without their dependencies: theirs would replace NumPy.
OLDEST := lightning==2.4.0 pytorch-lightning==2.4.0 accelerate==1.0.0 opacus==1.5.0 \
	pytorch_optimizer==3.0.0 huggingface_hub==0.26.0
OLDEST_NEED := lightning-utilities torchmetrics opt-einsum psutil pyyaml requests urllib3 idna \
	certifi charset-normalizer tqdm

$(INTEGRATIONS)-oldest/installed: $(VENV)/installed
	$(BIN)/python -m venv $(@D)
	echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" \
		> "$$($(@D)/bin/python $(PURELIB))/borrowed.pth"
	$(@D)/bin/pip install --quiet --no-deps $(OLDEST) $(OLDEST_NEED)
	touch $@

.PHONY: test-integrations-oldest
test-integrations-oldest: $(INTEGRATIONS)-oldest/installed
	OMP_NUM_THREADS=1 $(INTEGRATIONS)-oldest/bin/python -m pytest -q \
		tests/integrations/test_recipes.py \
		-k "lightning or accelerate or opacus or sharpness or lookahead or processes"

# Stock Flower processes of the oldest and the newest release that docs/flower.md names, each in an
# environment that borrows the rest from .venv.
FLOWERS ?= 1.28.0 1.42.0

.PHONY: test-flower
test-flower: $(VENV)/installed
	for version in $(FLOWERS); do \
		folder=$(VENV)/flower/$$version; \
		test -d $$folder || { $(BIN)/python -m venv $$folder && \
			echo "import site; site.addsitedir('$$($(BIN)/python $(PURELIB))')" \
				> "$$($$folder/bin/python $(PURELIB))/borrowed.pth" && \
			$$folder/bin/pip install --quiet --no-deps flwr==$$version; } || exit 1; \
		echo "Flower $$version"; \
		OMP_NUM_THREADS=1 $$folder/bin/python -m pytest -q tests/fl/flower/test_processes.py \
			|| exit 1; \
	done

# The suite as other machines would run it: tests/elsewhere.sh says how.
elsewhere: $(VENV)/installed
	tests/elsewhere.sh

# The AVX-512 kernels in an emulated processor, where this one has none: tests/avx512/run.sh says how.
.PHONY: test-avx512
test-avx512: $(VENV)/installed
	tests/avx512/run.sh

# What was built with torch 2.13, under another torch: make test-torch TORCH="torch==2.15.*"
OTHER := build/other-torch
test-torch: $(VENV)/installed
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install --quiet "$(TORCH)" numpy pytest hypothesis
	$(OTHER)/bin/python -c "import torch; print('torch', torch.__version__)"
	PYTHONPATH="$(CURDIR):$(CURDIR)/python" OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -q \
		-p no:cacheprovider tests/kernels

# The kernels for ARM in an emulated processor, without torch: tests/cross/run.py says how.
AARCH64_CXX ?= aarch64-linux-gnu-g++

.PHONY: test-aarch64
test-aarch64: $(VENV)/installed
	OMP_NUM_THREADS=1 PYTHONPATH="$(CURDIR)" $(BIN)/python tests/cross/run.py --isa neon \
		--compiler "$(AARCH64_CXX) -static" --run qemu-aarch64

# One wheel for each platform, in dist/, for every Python from 3.10 on.
wheels: $(VENV)/installed
	.ci/wheels

# kill -9 at thirty random moments for all methods, and two hundred changed files: an hour.
test-kills: $(VENV)/installed
	SPECGRAD_KILLS=30 $(PYTEST) tests/fl/test_kills.py tests/fl/test_damaged.py tests/fl/test_resume.py

# The GPU kernels with each version of Triton that a PyTorch from 2.10 on brings along: compiled,
# launched through its own launcher into a stand-in driver, and executed. About 700 MB a version.
TRITONS ?= 3.6.0 3.7.1 3.8.0 3.9.0

test-triton: $(VENV)/installed
	for version in $(TRITONS); do \
		folder=$(VENV)/triton/$$version; \
		test -d $$folder || $(BIN)/pip install --quiet --no-deps --target $$folder \
			triton==$$version || exit 1; \
		echo "Triton $$version"; \
		OMP_NUM_THREADS=1 PYTHONPATH=$$folder $(BIN)/pytest -q tests/triton/test_launched.py \
			tests/triton/test_warps.py tests/triton/test_ptx.py || exit 1; \
	done

# The native code under AddressSanitizer and UndefinedBehaviorSanitizer, then under ThreadSanitizer.
# The last does not see how OpenMP's threads wait for each other: under Python it watches calls of one
# thread each, and in a program without Python calls that three threads share.
SANITIZED := SPECGRAD_CALLS=10000 $(BIN)/pytest -q -p no:cacheprovider --capture=sys \
	-m "not slow and not exhaustive" --override-ini addopts=--import-mode=importlib

sanitize: $(VENV)/installed
	SPECGRAD_BUILD_EXT=1 SPECGRAD_SANITIZE=1 $(BIN)/python setup.py --quiet build \
		--build-base build/sanitize
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
		ASAN_OPTIONS=detect_leaks=0 $(SANITIZED) \
		--override-ini pythonpath="$$(echo build/sanitize/lib*) tests tests/kernels" \
		tests/kernels/test_filter_grads.py tests/kernels/test_refusals.py \
		tests/kernels/test_overlap.py tests/kernels/test_native.py tests/kernels/test_random_calls.py
	SPECGRAD_BUILD_EXT=1 SPECGRAD_SANITIZE=thread $(BIN)/python setup.py --quiet build \
		--build-base build/sanitize-threads
	LD_PRELOAD="$$($(CXX) -print-file-name=libtsan.so)" OMP_NUM_THREADS=1 \
		TSAN_OPTIONS=ignore_noninstrumented_modules=1 $(SANITIZED) \
		--override-ini pythonpath="$$(echo build/sanitize-threads/lib*) tests tests/kernels" \
		tests/kernels/test_threads.py \
		tests/kernels/test_native.py::test_the_library_under_a_sanitizer_was_built_with_it
	PYTHONPATH="$(CURDIR)" $(BIN)/python tests/cross/run.py \
		--compiler "$(CXX) -fsanitize=thread -g -Wno-maybe-uninitialized"  # in GCC's own headers

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.run $(BENCH)
	$(BIN)/python -m benchmarks.plot

# Other simulators on the same rounds, each in an environment of its own: docs/peers.md. All have the
# torch of this one. BlazeFL asks for Python 3.12; of its versions, 2.0.3 is the last that 3.11 can read.
PEERS := build/peers
PEER_PACKAGES := pfl==0.6.0 flwr[simulation]==1.41.0 blazefl==2.0.3

$(PEERS)/installed: $(VENV)/installed
	for package in $(PEER_PACKAGES); do \
		folder=$(PEERS)/$$(echo $$package | sed 's/flwr/flower/; s/[=[].*//'); \
		$(PYTHON) -m venv $$folder && \
		$$folder/bin/pip install --quiet torch==2.13.0 numpy tqdm || exit 1; \
		case $$package in blazefl*) options="--no-deps --ignore-requires-python";; *) options=;; esac; \
		$$folder/bin/pip install --quiet $$options torch==2.13.0 "$$package" || exit 1; \
	done
	touch $@

.PHONY: bench-peers
bench-peers: $(PEERS)/installed
	$(BIN)/python -m benchmarks.peers.run $(BENCH)

# The documentation as a site in build/site; a warning is an error.
docs: $(VENV)/installed
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[docs]"
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

clean:
	rm -rf $(VENV) $(INTEGRATIONS) $(INTEGRATIONS)-oldest build dist *.egg-info specgrad_kernels/*.so
