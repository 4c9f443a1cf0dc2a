# The body of the boot script; cloudspot/boot/script.py puts the exports in front of it.

end_machine() {
    # A machine that stays up is billed, so the command is repeated until it goes down.
    while :; do
        bash -c "$CLOUDSPOT_SHUTDOWN"
        sleep 30
    done
}

# The self-kill timer comes first, so that this machine ends even if something below fails. It ignores the
# hang-up that a boot service may send when the script is done, and keeps no pipe of its parent open.
(
    trap '' HUP
    # shellcheck disable=SC2086 # three numbers
    set -- $CLOUDSPOT_LIFE
    sleep "$1"
    # For the agent this is a notice, so that the job goes on elsewhere. Nothing here depends on the agent.
    "$CLOUDSPOT_NODE_DIR/on-shutdown" --seconds "$2" --source "its age" &
    sleep "$3"
    end_machine
) </dev/null >/dev/null 2>&1 &

# Waits so that drivers can read the console, which some clouds delete with the machine; a signal ends it.
linger() {
    sleep 120 &
    wait "$!"
}

# Reports why this machine will never run the agent.
cannot_serve() {
    echo "cloudspot: this machine cannot serve its job: $1"
    linger
}

(umask 077 && mkdir -p "$CLOUDSPOT_NODE_DIR")

# Writes a program that only its owner may read, because it sets an environment that may contain secrets.
write_program() (
    umask 077
    cat >"$1.tmp" && chmod 700 "$1.tmp" && mv "$1.tmp" "$1"
)

# A machine that boots again has lost its timer, its agent and its memory, so it ends itself, as if it had
# been reclaimed. Only some clouds run this script at each boot. A file records the first boot; it names the
# instance and the launch, because an image made from the machine contains that file.
describe_machine() {
    cat /var/lib/cloud/data/instance-id 2>/dev/null
    echo "$CLOUDSPOT_STORE $CLOUDSPOT_JOB $CLOUDSPOT_LAUNCH"
}
describe_boot() { cat /proc/sys/kernel/random/boot_id 2>/dev/null; }
end_if_booted_again() {
    local first=$CLOUDSPOT_NODE_DIR/first-boot
    if [ "$(cat "$first.machine" 2>/dev/null)" = "$(describe_machine)" ] &&
        [ "$(cat "$first" 2>/dev/null)" != "$(describe_boot)" ]; then
        echo "cloudspot: this machine has booted a second time: it ends itself"
        end_machine
    fi
}

end_if_booted_again
first=$CLOUDSPOT_NODE_DIR/first-boot
# On an image made from another machine, only the results of its setup are kept.
if [ -e "$first.machine" ] && [ "$(cat "$first.machine")" != "$(describe_machine)" ]; then
    find "$CLOUDSPOT_NODE_DIR" -mindepth 1 -maxdepth 1 ! -name agent ! -name work ! -name image.json \
        -exec rm -rf {} +
fi
describe_boot >"$first"
describe_machine >"$first.machine"
case $0 in
    /var/lib/cloud/*)
        # cloud-init runs this script once, but the programs in this directory at each boot.
        hook=/var/lib/cloud/scripts/per-boot/cloudspot-end-if-booted-again
        mkdir -p "${hook%/*}"
        {
            echo "#!$BASH"
            export -p
            declare -f end_machine describe_machine describe_boot end_if_booted_again
            echo end_if_booted_again
        } | write_program "$hook"
        # The next boot may follow a crash.
        sync "$hook" "$first"*
        ;;
esac

# Not every boot service sets these variables, and none raises the limits, which are meant for logins.
HOME=${HOME:-~}
export HOME USER="${USER:-$(id -un)}" LOGNAME="${LOGNAME:-$(id -un)}"
ulimit -n 1048576 2>/dev/null || ulimit -n "$(ulimit -Hn)"
ulimit -l unlimited 2>/dev/null || ulimit -l "$(ulimit -Hl)"

if ! command -v "$CLOUDSPOT_AGENT_PYTHON" >/dev/null; then
    cannot_serve "the image has no $CLOUDSPOT_AGENT_PYTHON, which the agent needs"
    end_machine
fi
# --- installation ---
# Starts the agent again whenever it fails; it continues from its files and the store. An agent that cannot run
# must not keep a paid machine, so ten short runs in a row, or fifty runs of any length, end the machine.
# SIGTERM to this loop stops the agent, which then saves and leaves.
run_agent() {
    local agent=0 delay=1 num_runs=0 num_short_runs=0 started status again stopped=no ended=no
    trap 'stopped=yes; kill -TERM "$agent" 2>/dev/null' TERM
    while [ "$stopped" = no ]; do
        num_runs=$((num_runs + 1))
        started=$SECONDS
        "$CLOUDSPOT_AGENT_PYTHON" -m cloudspot.agent &
        agent=$!
        # A signal interrupts the wait, but not the agent.
        while wait "$agent"; status=$?; [ "$status" -gt 128 ] && kill -0 "$agent" 2>/dev/null; do :; done
        if [ "$status" -gt 128 ]; then # perhaps the signal's status, and the agent has ended: wait again
            wait "$agent" 2>/dev/null
            again=$?
            [ "$again" -eq 127 ] || status=$again
        fi
        if [ "$status" -eq 0 ]; then
            ended=yes
            break
        fi
        if [ "$status" -eq 3 ]; then
            linger # the agent has reported why
            ended=yes
            break
        fi
        if [ $((SECONDS - started)) -lt 30 ]; then
            num_short_runs=$((num_short_runs + 1))
        else
            num_short_runs=0
            delay=1
        fi
        if [ "$num_short_runs" -ge 10 ]; then
            cannot_serve "the agent ended with status $status, ten short runs in a row"
            ended=yes
            break
        fi
        if [ "$num_runs" -ge 50 ]; then
            cannot_serve "the agent ended with status $status, after 50 runs"
            ended=yes
            break
        fi
        echo "cloudspot: the agent ended with status $status: starting it again in $delay s"
        sleep "$delay"
        delay=$((delay < 15 ? delay * 2 : 30))
    done
    trap - TERM
    [ "$ended" = no ] || : >"$CLOUDSPOT_NODE_DIR/agent-ended"
}

# The provider's shutdown hook runs this program, which signals the agent, waits for it, and reports in place of
# a dead agent. An agent that has ended has already reported.
{
    echo "#!$BASH"
    export -p
    cat <<'CLOUDSPOT_ON_SHUTDOWN'
[ -e "$CLOUDSPOT_NODE_DIR/agent-ended" ] || exec "$CLOUDSPOT_AGENT_PYTHON" -m cloudspot.agent.shutdown "$@"
CLOUDSPOT_ON_SHUTDOWN
} | write_program "$CLOUDSPOT_NODE_DIR/on-shutdown"

# With systemd the loop is a unit. It does not end with the boot script's own unit, and at a shutdown systemd
# stops it first, while there is a network, and waits for it. The training runs in it too, so the unit must
# survive a rank that is killed for lack of memory, and must set only the limits above.
units=/run/systemd/system

# The arena and torch's workers share /dev/shm, which needs half of the memory; some images make it smaller.
grow_shared_memory() {
    local half
    half=$(($(awk '/^MemTotal:/ {print $2}' /proc/meminfo) / 2))
    [ "$(df -k --output=size /dev/shm | tail -n 1)" -ge "$half" ] ||
        mount -o "remount,size=${half}k" /dev/shm
}

start_unit() {
    [ -d "$units" ] && systemctl show --property=Version >/dev/null 2>&1 || return
    grow_shared_memory
    {
        echo "set -u"
        export -p
        declare -f end_machine linger cannot_serve run_agent
        printf 'run_agent\nend_machine\n'
    } | write_program "$units/cloudspot-agent.sh" || return
    cat >"$units/cloudspot-agent.service" <<CLOUDSPOT_UNIT || return
[Unit]
Description=The agent of a cloudspot job
Wants=network-online.target
After=network-online.target nss-lookup.target docker.service containerd.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart=$BASH $units/cloudspot-agent.sh
Restart=always
RestartSec=1
KillMode=mixed
TimeoutStopSec=90
OOMPolicy=continue
TasksMax=infinity
LimitMEMLOCK=infinity
LimitNOFILE=1048576
StandardOutput=journal+console
CLOUDSPOT_UNIT
    systemctl daemon-reload && systemctl start cloudspot-agent.service
}

if start_unit; then
    echo "cloudspot: the agent runs as cloudspot-agent.service"
    exit 0
fi
run_agent
end_machine
