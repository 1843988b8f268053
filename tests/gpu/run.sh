#!/usr/bin/env bash
# Everything that needs a GPU, in one command and under eight minutes: the tests, then the figures.
#
#   tests/gpu/run.sh [FOLDER]     tables on the standard output, figures also in FOLDER/gpu.json (default: .)
#
# Needs a Python with torch (CUDA or ROCm), numpy, cffi, setuptools, pyzmq, pytest, pytest-timeout, hypothesis, rich, and a C
# compiler; with click and scikit-image the demo runs too.
# PYTHON names it, else python3 is taken.
set -uo pipefail
mkdir -p "${1:-.}" && out=$(realpath "${1:-.}") || exit 1
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

"$python" -c "import torch, numpy, cffi, setuptools, zmq, pytest, pytest_timeout, hypothesis, rich" || exit 1
"$python" -c "import arena._native" 2>/dev/null || "$python" setup.py -q build_ext --inplace || exit 1
status=0
# Each name as it begins, so that a run that is cut short says where; a warning of this machine's torch ends nothing.
timeout -k 10 200 "$python" -m pytest -v -m gpu -p no:cacheprovider --timeout 90 --timeout-method signal -W default \
    tests/gpu tests/test_gates_demo.py || status=$?
timeout -k 10 250 "$python" tests/gpu/measure.py --json "$out/gpu.json" || status=$?
exit "$status"
