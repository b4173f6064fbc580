#!/usr/bin/env bash
# Trains on one node: asks istar plan whether the run fits, then starts one process for each GPU.
#
#   scripts/train_one_node.sh [--dry-run] CONFIG [--KEY VALUE ...]
#
# --dry-run only prints the commands. Every key of the configuration can be set after it, --resume goes on with a run.
# GPUS          processes; all GPUs that nvidia-smi lists by default
# GPU_MEMORY_GB memory of a GPU for the plan, 80 by default; SKIP_PLAN=1 starts without one
# ISTAR         the program istar, TORCHRUN the program torchrun, if they are not in .venv or on the path
set -euo pipefail
. "$(dirname "$0")/launch_common.sh"
take_common "$@"

GPUS=${GPUS:-$( (nvidia-smi --list-gpus 2>/dev/null || true) | wc -l)}
if [ "$GPUS" -lt 1 ]; then
    echo "$0: no GPU found; set GPUS, or train on the CPU with: istar train $CONFIG" >&2
    exit 2
fi
ISTAR=${ISTAR:-$(program istar)}
TORCHRUN=${TORCHRUN:-$(program torchrun)}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

if [ -z "${SKIP_PLAN:-}" ]; then
    KEYS=()
    for word in ${ARGS[@]+"${ARGS[@]}"}; do
        [ "$word" = --resume ] || KEYS+=("$word")
    done
    carry_out "$ISTAR" plan "$CONFIG" --gpus "$GPUS" --gpu-memory-gb "${GPU_MEMORY_GB:-80}" ${KEYS[@]+"${KEYS[@]}"}
fi
carry_out "$TORCHRUN" --standalone --nproc-per-node "$GPUS" --no-python \
    "$ISTAR" train "$CONFIG" ${ARGS[@]+"${ARGS[@]}"}
