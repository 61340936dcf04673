# Needs make, Python 3.11 or later and a package index; everything else is installed in .venv. `make help` lists the targets.

# The targets start hundreds of Python processes; without bytecode files each would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
INSTALLED := .venv/installed
CORES ?= all
# Parallel tests: one worker for each core that this process may use (taskset and containers count), at most 8.
# OMP_NUM_THREADS is cleared for nproc, which would print its value instead.
ifndef WORKERS
WORKERS := $(shell cores=$$(OMP_NUM_THREADS= nproc 2>/dev/null || echo 2); echo $$(( cores < 8 ? cores : 8 )))
endif
# A text as one argument, and each of its words as one. What users give is taken as it is, by $(value ...), and not exported,
# because make would expand it for that.
quoted = '$(subst ','\'',$(strip $(1)))'
quoted_words = $(foreach word,$(1),$(call quoted,$(word)))
unexport ANYWAY CORES EXPERIMENT FOLDERS JOBS LABEL MODULE PYTHON SAMPLE TIER WAIT WORKERS
CHECKED := .ci mkor_core baselines workflow/bench workflow/cluster workflow/plugins benchmarks docs tests

# tests/faults, and the files that count what they try or try more under the hypothesis profile "long".
FAULT_TESTS = tests/faults $(filter-out tests/faults/% tests/test_tally.py, $(shell grep -rlwE 'tally|MOST' --include='test_*.py' tests))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help reproduce evidence field test test-types test-all test-faults test-mutations test-kernels test-slurm audit timing compare tune partial status refresh crate bench benchmark lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) ":" } /^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo; echo "Single commands: $(BIN)/python -m workflow.bench --help"

# The stamp is written last, so that make resumes an interrupted installation and installs a changed lock. A suitable
# PyTorch that is already in .venv, such as a CPU build, is kept. Python compiles a module when it is first imported: to compile
# all of them here would double the time.
$(INSTALLED): requirements.lock
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    for python in $(if $(value PYTHON),$(call quoted,$(value PYTHON))) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	        if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "No Python >= 3.11 on the PATH: install one, or give its path: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; \
	    fi; \
	    echo "Making .venv with $$("$$found" --version)"; \
	    "$$found" -m venv --clear .venv || { echo "$$found cannot create .venv: is its venv module installed (python3-venv)?" >&2; exit 1; }; \
	fi
	@echo "Installing the $$(grep -c == $<) packages of $< in .venv; the log is .venv/install.log"
	@$(BIN)/python -m pip install --quiet --log .venv/install.log --disable-pip-version-check --no-compile --requirement $<
	@touch $@

##@ Reproduce

reproduce: $(INSTALLED) ## train, measure, and make every figure, table and claim, and the report
	PYTHONPATH=workflow/plugins $(BIN)/snakemake --cores $(call quoted,$(value CORES)) --logger progress
	@echo "Figures are in figures/, everything else in results/. Report: $$(ls -t results/*/*/report.html | head -n 1)"

evidence: $(INSTALLED) ## train longer and on more seeds, to decide the claims; about 10 core-hours, resumable
	$(BIN)/python -m workflow.bench.evidence --cores $(call quoted,$(value CORES))

field: $(INSTALLED) ## compare every optimizer, equally tuned, in eight experiments; about 5 core-hours, resumable
	$(BIN)/python -m workflow.bench.adopt --tier field
	PYTHONPATH=workflow/plugins $(BIN)/snakemake --cores $(call quoted,$(value CORES)) --config tier=field --logger progress

tune: $(INSTALLED) ## write config/tuned, of all or of EXPERIMENT=update_rules LABEL=mkor; TIER=... JOBS=...
	$(BIN)/python -m workflow.bench.tune $(call quoted_words,$(value EXPERIMENT)) $(if $(value LABEL),--label $(call quoted_words,$(value LABEL))) $(if $(value TIER),--tier=$(call quoted,$(value TIER))) $(if $(value JOBS),--jobs=$(call quoted,$(value JOBS)))

refresh: $(INSTALLED) ## train the runs made by older code again
	$(BIN)/python -m workflow.bench.refresh
	$(MAKE) reproduce

##@ Look at a run

status: $(INSTALLED) ## list runs that are done, running, failed or left, the time left, and runs made by older code
	@$(BIN)/python -m workflow.bench.status

partial: $(INSTALLED) ## draw every artefact that has data while runs are missing, in results/partial
	$(BIN)/python -m workflow.bench.partial

##@ Measure and compare machines and optimizers

timing: $(INSTALLED) ## measure time, memory and bytes of a step; 12 minutes. WAIT=minutes, ANYWAY=1 if busy; TIER=...
	$(BIN)/python -m workflow.bench.timing --cores $(call quoted,$(value CORES)) $(if $(value TIER),--tier=$(call quoted,$(value TIER))) $(if $(value WAIT),--wait=$(call quoted,$(value WAIT))) $(if $(value ANYWAY),--anyway)

compare: $(INSTALLED) ## compare this machine with results/reference and FOLDERS="results/<hardware>/<tier> ..."; TIER=...
	$(BIN)/python -m workflow.bench.compare $(call quoted_words,$(value FOLDERS)) $(if $(value TIER),--tier=$(call quoted,$(value TIER)))

bench: $(INSTALLED) ## measure what a step of every optimizer costs on this machine, kept otherwise idle; 5 minutes
	$(BIN)/python -m benchmarks.steps
	@echo "Kernels and host waits of a step on a GPU, counted without one: $(BIN)/python -m benchmarks.counting"

benchmark: $(INSTALLED) ## measure the bench's own cost per training step; keep the machine otherwise idle
	$(BIN)/python -m benchmarks.bench_overhead

# HeavyBall is installed in a folder of its own, because nothing else needs it. Its steps are not compiled, which would take minutes.
audit: $(INSTALLED) ## audit the optimizers of torch, timm, pytorch_optimizer and heavyball (docs/audit.md); 20 minutes
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["audit"], sep="\n")' > .venv/audit.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target .venv/audit --requirement .venv/audit.txt
	TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 PYTHONPATH=$(call quoted,$(CURDIR)/.venv/audit) $(BIN)/python -m benchmarks.audit --workers $(call quoted,$(value WORKERS))

##@ Share

crate: $(INSTALLED) ## pack the results as a Workflow Run RO-Crate, a zip file; TIER=...
	$(BIN)/python -m workflow.bench.crate $(if $(value TIER),--tier=$(call quoted,$(value TIER)))

##@ Test

test: $(INSTALLED) ## check lint, formatting and types, and run all tests, including a miniature pipeline
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	@$(MAKE) --no-print-directory --jobs=2 test-types test-all

# Two targets, so that the checks that use one core run beside the tests.
test-types: $(INSTALLED)
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow/Snakefile workflow/rules
	$(BIN)/snakemake --lint

test-all: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(call quoted,$(value WORKERS)) --dist loadscope --no-loadscope-reorder

# Single tests, not files, are shared among the workers: most of the time goes to a few files.
test-faults: $(INSTALLED) ## kill runs, damage files, fill disks, and count how often; 20 minutes on 2 cores
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(call quoted,$(value WORKERS)) --dist worksteal --hypothesis-profile long --require-counts $(FAULT_TESTS)

test-mutations: $(INSTALLED) ## list changes of the code that no test notices; an hour; MODULE=mkor_core/maths/knee.py SAMPLE=200
	$(BIN)/python -m tests.mutation $(call quoted_words,$(value MODULE)) $(if $(value SAMPLE),--sample $(call quoted,$(value SAMPLE))) --workers $(call quoted,$(value WORKERS))

# Triton takes a gigabyte of disk, so neither the lock nor `make test` brings it. Its interpreter is chosen when it is imported,
# so kernels are compiled by another process.
test-kernels: $(INSTALLED) ## run the Triton kernels in Triton's interpreter, and compile them for A100 and H100; 4 minutes
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["kernels"], sep="\n")' > .venv/kernels.txt
	test -d .venv/kernels/triton || $(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --target .venv/kernels --requirement .venv/kernels.txt
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 PYTHONPATH=$(call quoted,$(CURDIR)/.venv/kernels) $(BIN)/pytest -q --numprocesses $(call quoted,$(value WORKERS)) tests/mkor_core/test_kernels.py
	PYTHONPATH=$(call quoted,$(CURDIR)/.venv/kernels) $(BIN)/python -m benchmarks.kernels --check --out .venv/kernels.csv

# The plugin is installed in a folder of its own, because Snakemake imports every installed plugin at each start, which takes seconds.
test-slurm: $(INSTALLED) ## test the Slurm profile on a real Slurm of one node; needs slurm-wlm, munge and root
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["slurm"], sep="\n")' > .venv/slurm.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target .venv/slurm --requirement .venv/slurm.txt
	OMP_NUM_THREADS=1 PYTHONPATH=$(call quoted,$(CURDIR)/.venv/slurm) $(BIN)/pytest -rs tests/slurm

##@ Maintain

lock: $(INSTALLED) ## after changing pins in pyproject.toml: install them and write the lock
	$(BIN)/python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*extras["bench"], *extras["dev"], sep="\n")' > .venv/direct.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement .venv/direct.txt
	$(BIN)/python .ci/lock.py

clean: ## delete .venv and the tools' caches; results stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
