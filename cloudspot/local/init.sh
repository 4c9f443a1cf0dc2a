#!/bin/bash
# The first program of an emulated machine. It fetches the user data and runs it once, as cloud-init does, and
# runs a shutdown script at the machine's end, if its cloud has such scripts.
# On an isolated machine it is process 1, and the machine ends with it.
#
#     init.sh METADATA_URL FETCH_SCRIPT SCRIPTS_DIRECTORY [EDITS [FETCH_SHUTDOWN_SCRIPT SECONDS]]
#
# EDITS is a sed script for the user data, for a machine whose paths differ from those of its image.
set -u
export METADATA_URL=$1
fetch=$2
scripts=$3
edits=${4:-}
fetch_at_end=${5:-}
end_seconds=${6:-}
url=$1

power_off() {
    trap '' PWR
    echo "init: powering off"
    run_shutdown_script
    # As in a system's shutdown, processes that do not end within five seconds are killed with this one.
    kill -TERM -1 2>/dev/null
    for _ in {1..100}; do
        kill -0 -1 2>/dev/null || break
        sleep 0.05
    done
    exit 0
}

# The machine's other processes go on meanwhile.
run_shutdown_script() {
    [ -n "$fetch_at_end" ] || return
    mkdir -p "$scripts"
    # The time is limited, because a metadata service that hangs must not delay the machine's end.
    METADATA_URL=$url timeout "$end_seconds" bash "$fetch_at_end" >"$scripts/shutdown-script" 2>/dev/null || return
    [ "$(head -c 2 "$scripts/shutdown-script" | tr -d '\0')" = '#!' ] || return
    chmod 700 "$scripts/shutdown-script"
    echo "init: the shutdown script runs"
    timeout --kill-after=1 "$end_seconds" "$scripts/shutdown-script" </dev/null
    echo "init: the shutdown script ended with status $?"
}

# A machine that is not isolated does not end itself, so its power button has another signal.
if [ $$ -eq 1 ]; then trap power_off PWR; else trap run_shutdown_script USR1; fi

run_user_data() {
    mkdir -p "$scripts"
    # A signal's trap waits for the foreground command, so no command may take long.
    for _ in {1..5}; do
        bash "$fetch" >"$scripts/user-data" 2>/dev/null && break
        : >"$scripts/user-data"
        sleep 0.2
    done
    unset METADATA_URL
    script=$scripts/part-001
    # gzip's magic number
    if [ "$(head -c 2 "$scripts/user-data" | od -An -tx1 | tr -d ' \n')" = 1f8b ]; then
        gzip -dc <"$scripts/user-data" >"$script" || return
    else
        cp "$scripts/user-data" "$script"
    fi
    case $(head -c 2 "$script" | tr -d '\0') in
        '#!') ;;
        '') echo "init: there is no user data" && return ;;
        *) echo "init: the user data is not a script (it does not begin with #!): not run" && return ;;
    esac
    if [ -n "$edits" ]; then
        mv "$script" "$script.as-fetched"
        sed -E -f "$edits" "$script.as-fetched" >"$script"
    fi
    chmod 700 "$script"
    cd / || return
    "$script" </dev/null
    echo "init: the user data ended with status $?"
}

run_user_data &
while :; do
    wait
    sleep 3600 &
done
