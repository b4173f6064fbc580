#!/usr/bin/env bash
# Trains under Slurm: submits a job in which every node runs torchrun, one process for each GPU. A job that Slurm queues
# again, after a lost node or for a more urgent one, goes on with what is in run_dir.
#
#   scripts/train_slurm.sh [--dry-run] CONFIG [--KEY VALUE ...]
#
# NODES, GPUS_PER_NODE   2 and 8 by default
# TIME, PARTITION, ACCOUNT  as sbatch knows them; TIME is 24:00:00 by default
# PORT                   port on the first node where the processes meet; 29500 by default
# ISTAR, TORCHRUN        the programs, if they are not in .venv or on the path
set -euo pipefail
. "$(dirname "$0")/launch_common.sh"
take_common "$@"

NODES=${NODES:-2}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
PORT=${PORT:-29500}
ISTAR=${ISTAR:-$(program istar)}
TORCHRUN=${TORCHRUN:-$(program torchrun)}
OPTIONS=(--job-name istar --nodes "$NODES" --ntasks-per-node 1 --gpus-per-node "$GPUS_PER_NODE"
    --time "${TIME:-24:00:00}" --requeue --open-mode append --output "slurm-%j.log")
[ -z "${PARTITION:-}" ] || OPTIONS+=(--partition "$PARTITION")
[ -z "${ACCOUNT:-}" ] || OPTIONS+=(--account "$ACCOUNT")

launch=$(printf '%q ' "$TORCHRUN" --nnodes "$NODES" --nproc-per-node "$GPUS_PER_NODE" --rdzv-backend c10d)
train=$(printf '%q ' --no-python "$ISTAR" train "$CONFIG" ${ARGS[@]+"${ARGS[@]}"})
job="#!/usr/bin/env bash
set -euo pipefail
cd $(printf '%q' "$PWD")
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
first=\$(scontrol show hostnames \"\$SLURM_JOB_NODELIST\" | head -n 1)
resume=()
[ \"\${SLURM_RESTART_COUNT:-0}\" -eq 0 ] || resume=(--resume)
srun --kill-on-bad-exit=1 $launch--rdzv-id \"\$SLURM_JOB_ID\" --rdzv-endpoint \"\$first:$PORT\" $train\"\${resume[@]}\""

if $DRY_RUN; then
    carry_out sbatch "${OPTIONS[@]}"
    echo "$job"
else
    sbatch "${OPTIONS[@]}" <<<"$job"
fi
