# Needs make, a Python of at least 3.11 and a package index; everything else goes into .venv. `make help` lists what there is.

BIN := .venv/bin
INSTALLED := .venv/installed
CORES ?= all
# Parallel tests: one worker for each core that this process may use (taskset and containers count), at most 8.
WORKERS ?= $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$(( cores < 8 ? cores : 8 )))
CHECKED := .ci mkor_core baselines workflow/bench workflow/cluster benchmarks docs tests

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help reproduce test test-faults test-slurm timing compare tune partial status refresh benchmark lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# The stamp comes last, so that an interrupted installation is taken up again, and a changed lock is installed anew. A
# .venv that already holds a suitable PyTorch (a CPU build, say) keeps it.
$(INSTALLED): requirements.lock
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	        if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "No Python >= 3.11 on the PATH: install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; \
	    fi; \
	    echo "Making .venv with $$($$found --version)"; \
	    $$found -m venv --clear .venv || { echo "$$found cannot make .venv: is its venv module installed (python3-venv)?" >&2; exit 1; }; \
	fi
	$(BIN)/python -m pip install --disable-pip-version-check --requirement requirements.lock
	@touch $@

reproduce: $(INSTALLED) ## train, measure, and make every figure, table, claim and the report
	$(BIN)/snakemake --cores $(CORES)
	@echo "Figures are in figures/, tables and all else in results/; the report: $$(ls -t results/*/*/report.html | head -n 1)"

test: $(INSTALLED) ## lint, types, and all tests, a miniature pipeline run among them
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow/Snakefile workflow/rules
	$(BIN)/snakemake --lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(WORKERS) --dist loadscope

test-faults: $(INSTALLED) ## the long forms: kills at random moments, full disks, damaged files; half an hour, prints its figures
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 0 --hypothesis-profile long tests/faults tests/bench/commands/test_faults.py tests/bench/commands/test_fuzz.py tests/bench/data/test_damaged_data.py

# The plugin lies beside the installation and not in it, since its import alone costs every start of Snakemake seconds.
test-slurm: $(INSTALLED) ## the Slurm profile on a real Slurm of one node; needs slurm-wlm, munge, and root
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["slurm"], sep="\n")' > .venv/slurm.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target .venv/slurm --requirement .venv/slurm.txt
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venv/slurm $(BIN)/pytest -rs tests/slurm

timing: $(INSTALLED) ## measure this machine anew: time, memory and bytes of a step; 5 minutes, no data set
	$(BIN)/snakemake --cores $(CORES) --forceall timing
	@echo "The tables are in $$(ls -dt results/*/*/probes | head -n 1); make compare sets them beside other machines'"

compare: $(INSTALLED) ## this machine beside others: results/reference, and FOLDERS="results/<hardware>/<tier> ..."; TIER=...
	$(BIN)/python -m workflow.bench.compare $(FOLDERS) $(if $(TIER),--tier $(TIER))

tune: $(INSTALLED) ## tune learning rates anew, all of them or those of EXPERIMENT=update_rules; writes config/tuned
	$(BIN)/python -m workflow.bench.tune $(EXPERIMENT)

partial: $(INSTALLED) ## draw what has data while runs are missing, in results/partial; captions name the missing runs
	$(BIN)/python -m workflow.bench.partial

status: $(INSTALLED) ## what ran, runs, failed and is left, how long it takes, and what older code made
	@$(BIN)/python -m workflow.bench.status

refresh: $(INSTALLED) ## train again what older code made
	$(BIN)/python -m workflow.bench.refresh
	$(MAKE) reproduce

benchmark: $(INSTALLED) ## what the bench costs a training step; wants the machine to itself
	$(BIN)/python -m benchmarks.bench_overhead

lock: $(INSTALLED) ## after a change of pyproject.toml's pins: install them and write requirements.lock and environment.yml
	$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["dev"], sep="\n")' > .venv/direct.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --requirement .venv/direct.txt
	$(BIN)/python .ci/lock.py

clean: ## remove .venv and the tools' caches; results stay
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
