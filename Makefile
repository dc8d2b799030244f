# Everything a maintainer of the template does. Each target sets itself up.
TEMPLATE := <<cookiecutter.project_slug>>
STAMP := .venv/.installed
SOURCES := hooks tests $(wildcard scripts benchmarks)

.PHONY: setup demo test lint bench clean

setup: $(STAMP)

# An interrupted .venv has no stamp: it is built anew, from pip's cache.
$(STAMP): $(TEMPLATE)/requirements.lock pyproject.toml
	test -e $(STAMP) || rm -rf .venv
	for python in python3 python3.13 python3.12 python3.11; do \
	    $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	    && exec $$python -m venv .venv; \
	done; echo 'Python 3.11, 3.12 or 3.13 is needed on the PATH.' >&2; exit 1
	.venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1'  # The first pip that knows --group.
	.venv/bin/python -m pip install --requirement '$(TEMPLATE)/requirements.lock'
	.venv/bin/python -m pip install --quiet --group dev
	touch $(STAMP)

demo: setup
	.venv/bin/python scripts/demo.py

test: setup
	.venv/bin/python -m pytest

lint: setup
	.venv/bin/ruff check $(SOURCES)
	.venv/bin/ruff format --check $(SOURCES)
	.venv/bin/mypy hooks/pre_gen_project.py hooks/post_gen_project.py

bench: setup  # SUBJECTS="mlp digits" measures these alone.
	.venv/bin/python benchmarks/bench.py $(SUBJECTS)

clean:
	rm -rf .venv build .hypothesis .mypy_cache .pytest_cache .ruff_cache
