
# The image may have no cloudspot, or another one. The agent then gets an environment of its own from the
# wheels that the submitter has staged. It needs only Python: dependencies come with the wheels or else from
# the package index.
agent_home=$CLOUDSPOT_NODE_DIR/agent

has_agent() {
    # shellcheck disable=SC2086 # several names
    [ "$("$1" -m cloudspot.boot.agentarchive $agent_requirements 2>/dev/null)" = "$agent_digest" ]
}

install_agent() {
    mkdir -p "$agent_home" || return
    write_install_program "$agent_home/install.py" || return
    "$CLOUDSPOT_AGENT_PYTHON" "$agent_home/install.py" "$CLOUDSPOT_STORE" "$agent_key" "$agent_sha256" \
        "$agent_home" || return
    for staged in "$agent_home"/wheels/pip-*.whl; do :; done
    if [ -e "$staged" ]; then
        # Debian's Python cannot make an environment with pip.
        "$CLOUDSPOT_AGENT_PYTHON" -m venv --clear --without-pip "$agent_home/venv" || return
        set -- "$CLOUDSPOT_AGENT_PYTHON" "$staged/pip" --python "$agent_home/venv/bin/python"
    else
        "$CLOUDSPOT_AGENT_PYTHON" -m venv --clear "$agent_home/venv" || return
        set -- "$agent_home/venv/bin/python" -m pip
    fi
    set -- "$@" --disable-pip-version-check --quiet install --find-links "$agent_home/wheels"
    # shellcheck disable=SC2086 # several names
    "$@" --no-index $agent_requirements 2>/dev/null || "$@" $agent_requirements || return
    has_agent "$agent_home/venv/bin/python"
}

if has_agent "$CLOUDSPOT_AGENT_PYTHON"; then
    echo "cloudspot: the image has this cloudspot"
else
    delay=1
    until install_agent; do
        if [ "$delay" -gt 60 ]; then
            echo "cloudspot: the agent cannot be installed: giving up"
            end_machine
        fi
        echo "cloudspot: the agent could not be installed: trying again in $delay s"
        sleep "$delay"
        delay=$((delay * 2))
    done
    CLOUDSPOT_AGENT_PYTHON=$agent_home/venv/bin/python
fi

