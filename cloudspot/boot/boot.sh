# The body of the boot script; cloudspot/boot/script.py puts the exports in front of it.

end_machine() {
    # A machine that does not go down bills on: ask until it does.
    while :; do
        bash -c "$CLOUDSPOT_SHUTDOWN"
        sleep 30
    done
}

# The self-kill timer comes first: whatever breaks below, this machine ends. It ignores the hang-up
# that a boot service may send when the script is done, and holds no pipe of its parent open.
(
    trap '' HUP
    sleep "$CLOUDSPOT_MAX_SECONDS"
    end_machine
) </dev/null >/dev/null 2>&1 &

mkdir -p "$CLOUDSPOT_NODE_DIR"

# --- installation ---
# The agent is started again whenever it fails: it finds on disk and in the store what it needs to go
# on. One that cannot run at all must not keep a paid machine: ten short runs in a row end it, and so
# do fifty of any length.
delay=1
num_runs=0
num_short_runs=0
while :; do
    num_runs=$((num_runs + 1))
    started=$SECONDS
    "$CLOUDSPOT_AGENT_PYTHON" -m cloudspot.agent
    status=$?
    if [ "$status" -eq 0 ]; then
        break
    fi
    if [ $((SECONDS - started)) -lt 30 ]; then
        num_short_runs=$((num_short_runs + 1))
    else
        num_short_runs=0
        delay=1
    fi
    if [ "$num_short_runs" -ge 10 ]; then
        echo "cloudspot: the agent ended with status $status, ten short runs in a row: giving up"
        break
    fi
    if [ "$num_runs" -ge 50 ]; then
        echo "cloudspot: the agent ended with status $status, after 50 runs: giving up"
        break
    fi
    echo "cloudspot: the agent ended with status $status: starting it again in $delay s"
    sleep "$delay"
    delay=$((delay < 15 ? delay * 2 : 30))
done
end_machine
