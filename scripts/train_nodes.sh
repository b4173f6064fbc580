#!/usr/bin/env bash
# Trains on several nodes that a hostfile lists, one process for each GPU. The nodes share a file system with this
# folder, the environment and run_dir, and can be reached by ssh without a password.
#
#   scripts/train_nodes.sh [--dry-run] CONFIG [--KEY VALUE ...]
#
# HOSTFILE    lines "HOST slots=GPUS"; hostfile by default
# LAUNCHER    deepspeed (its launcher, over pdsh) or torchrun (over ssh); deepspeed by default
# PORT        port on the first host where the processes meet; 29500 by default
# ISTAR, DEEPSPEED, TORCHRUN  the programs, if they are not in .venv or on the path
set -euo pipefail
. "$(dirname "$0")/launch_common.sh"
take_common "$@"

HOSTFILE=${HOSTFILE:-hostfile}
PORT=${PORT:-29500}
ISTAR=${ISTAR:-$(program istar)}
if [ ! -f "$HOSTFILE" ]; then
    echo "$0: no hostfile $HOSTFILE; write one line \"HOST slots=GPUS\" for each node, or set HOSTFILE" >&2
    exit 2
fi
mapfile -t HOSTS < <(sed -n 's/^\([^#[:space:]]\{1,\}\)[[:space:]]\{1,\}slots=\([0-9]\{1,\}\).*/\1 \2/p' "$HOSTFILE")
if [ ${#HOSTS[@]} -eq 0 ]; then
    echo "$0: $HOSTFILE has no line \"HOST slots=GPUS\"" >&2
    exit 2
fi
FIRST=${HOSTS[0]%% *}

case ${LAUNCHER:-deepspeed} in
    deepspeed)
        carry_out "${DEEPSPEED:-$(program deepspeed)}" --hostfile "$HOSTFILE" \
            --master_addr "$FIRST" --master_port "$PORT" --no_python --no_local_rank \
            "$ISTAR" train "$CONFIG" ${ARGS[@]+"${ARGS[@]}"}
        ;;
    torchrun)
        TORCHRUN=${TORCHRUN:-$(program torchrun)}
        PIDS=()
        stop_all() { kill "${PIDS[@]}" 2>/dev/null || true; }
        trap stop_all EXIT
        for rank in "${!HOSTS[@]}"; do
            read -r host slots <<<"${HOSTS[$rank]}"
            command=$(printf '%q ' cd "$PWD")
            command+=$(printf '&& %s' "$(printf '%q ' env "OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}" "$TORCHRUN" \
                --nnodes "${#HOSTS[@]}" --node-rank "$rank" --nproc-per-node "$slots" \
                --master-addr "$FIRST" --master-port "$PORT" --no-python \
                "$ISTAR" train "$CONFIG" ${ARGS[@]+"${ARGS[@]}"})")
            if $DRY_RUN; then
                carry_out ssh -tt "$host" "$command"
            else
                ssh -tt "$host" "$command" </dev/null &
                PIDS+=($!)
            fi
        done
        for _ in ${PIDS[@]+"${PIDS[@]}"}; do
            wait -n || exit $?   # the first node that fails ends all
        done
        ;;
    *)
        echo "$0: LAUNCHER=$LAUNCHER; choose deepspeed or torchrun" >&2
        exit 2
        ;;
esac
