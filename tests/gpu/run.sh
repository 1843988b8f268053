#!/usr/bin/env bash
# Everything that needs a GPU, in one command and under eight minutes: the tests, then the figures.
#
#   tests/gpu/run.sh [FOLDER]     tables on the standard output, figures also in FOLDER/gpu.json (default: .)
#
# Needs a Python with torch (CUDA or ROCm) and what tests/gpu/ready.py lists, and a C compiler; with click, pillow, psutil and
# scikit-image the demo runs too. PYTHON names it, else python3 is taken. Nothing is fetched and nothing is installed: what is
# missing is listed, and then the script ends with 1.
set -uo pipefail
mkdir -p "${1:-.}" && out=$(realpath "${1:-.}") || exit 1
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

# Each step is over by its second, counted from the start: what an earlier one did not need is the next one's.
by() { timeout -k 5 "$(($1 - SECONDS))" "${@:2}"; }

by 60 "$python" tests/gpu/ready.py || exit 1
by 80 "$python" -c "import arena._native" 2>/dev/null || by 120 "$python" setup.py -q build_ext --inplace || exit 1
status=0
# Each name as it begins, so that a run that is cut short says where; a warning of this machine's torch ends nothing.
by 270 "$python" -m pytest -v -m gpu -p no:cacheprovider --timeout 90 --timeout-method signal -W default \
    tests/gpu tests/test_gates_demo.py || status=$?
by 470 "$python" tests/gpu/measure.py --json "$out/gpu.json" || status=$?
exit "$status"
