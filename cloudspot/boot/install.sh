
# The image may have no cloudspot, or another version. The agent then gets its own environment from the archive
# that the submitter has staged, whose hash is part of this script. The image needs only Python.
agent_home=$CLOUDSPOT_NODE_DIR/agent

has_agent() {
    # shellcheck disable=SC2086 # several names
    [ "$("$1" -m cloudspot.boot.agentarchive $agent_requirements 2>/dev/null)" = "$agent_digest" ]
}

install_agent() {
    local archive=$agent_home/archive python=$agent_home/venv/bin/python pip
    mkdir -p "$agent_home" || return
    write_install_program "$agent_home/install.py" || return
    "$CLOUDSPOT_AGENT_PYTHON" "$agent_home/install.py" "$CLOUDSPOT_STORE" "$agent_key" "$agent_sha256" \
        "$agent_home" || return
    for pip in "$archive"/installer/pip-*.whl; do :; done
    # Debian's Python cannot make an environment with pip, so pip is staged; a new Python may not run an old pip.
    if "$CLOUDSPOT_AGENT_PYTHON" "$pip/pip" install --help >/dev/null 2>&1; then
        "$CLOUDSPOT_AGENT_PYTHON" -m venv --clear --without-pip "$agent_home/venv" || return
        set -- "$python" "$pip/pip"
    else
        "$CLOUDSPOT_AGENT_PYTHON" -m venv --clear "$agent_home/venv" || return
        set -- "$python" -m pip
    fi
    set -- "$@" --disable-pip-version-check --quiet --retries 1 install
    # Files are installed, never names: a package index may offer a stranger's code under a name.
    "$@" --no-index "$archive"/wheels/*.whl "$archive"/compiled/*.whl || {
        echo "cloudspot: the staged dependencies do not all fit this image: taking the others from the package index"
        take_from_index "$@" --constraint "$archive/index.txt" "$archive"/wheels/*.whl || return
    }
    has_agent "$python" || {
        echo "what was installed is not what was staged" >&2
        return 1
    }
}

take_from_index() {
    local said error
    said=$("$@" 2>&1) && return
    # pip's last lines are about its help.
    error=$(printf '%s' "$said" | sed -n "s/^ERROR: //p; s/^WARNING: Retrying .* broken by/no answer:/p" | head -n 1)
    printf '%s\n' "$said" "the package index does not give what this image lacks: $error" >&2
    return 1
}

# Sets `said` to the last line of standard error if the installation fails; all of it is shown, too.
try_install() {
    said=$(install_agent 2>&1 >&3 | tee >(cat >&2); exit "${PIPESTATUS[0]}") && return
    said=$(printf '%s' "$said" | grep -v '^[[:space:]]*$' | tail -n 1)
    return 1
}

if has_agent "$CLOUDSPOT_AGENT_PYTHON"; then
    echo "cloudspot: the image has this cloudspot"
elif has_agent "$agent_home/venv/bin/python"; then
    echo "cloudspot: the image has this agent"
    CLOUDSPOT_AGENT_PYTHON=$agent_home/venv/bin/python
else
    delay=1
    until try_install 3>&1; do
        if [ "$delay" -gt 60 ]; then
            cannot_serve "the agent cannot be installed: $said"
            end_machine
        fi
        echo "cloudspot: the agent could not be installed: $said: trying again in $delay s"
        sleep "$delay"
        delay=$((delay * 2))
    done
    CLOUDSPOT_AGENT_PYTHON=$agent_home/venv/bin/python
fi

