# What the launch scripts share; sourced by them. Nothing here decides how a run is trained: that is the configuration.
# shellcheck shell=bash

# usage SCRIPT: prints the comment at its top.
usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$1"
}

# take_common ARGUMENTS: reads --dry-run, --help and CONFIG; what follows CONFIG is kept for istar train in ARGS.
take_common() {
    DRY_RUN=false
    while [ $# -gt 0 ]; do
        case $1 in
            --dry-run) DRY_RUN=true ;;
            -h | --help) usage "$0"; exit 0 ;;
            -*) echo "$0: unknown option $1; see $0 --help" >&2; exit 2 ;;
            *) break ;;
        esac
        shift
    done
    if [ $# -eq 0 ]; then
        echo "$0: no configuration given; see $0 --help" >&2
        exit 2
    fi
    CONFIG=$1
    if [ ! -f "$CONFIG" ]; then
        echo "$0: no configuration $CONFIG" >&2
        exit 2
    fi
    shift
    # shellcheck disable=SC2034  # the scripts read it
    ARGS=("$@")
}

# carry_out COMMAND ...: runs it, or only prints it so that it could be pasted.
carry_out() {
    if $DRY_RUN; then
        printf '%q ' "$@"
        echo
    else
        "$@"
    fi
}

# program NAME: the program of the repository's environment, or else the one on the path.
program() {
    local own
    own="$(dirname "${BASH_SOURCE[0]}")/../.venv/bin/$1"
    if [ -x "$own" ]; then
        echo "$own"
    else
        echo "$1"
    fi
}
