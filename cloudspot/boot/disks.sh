
# The part of the boot script for jobs with inputs to stage; script.py sets own_disks and own_directories.

# Succeeds if the disk has no content and is not used. A disk that cannot be examined does not count as empty.
is_empty_disk() {
    local signatures
    [ -b "$1" ] && [ "$(lsblk --noheadings --raw --output TYPE "$1")" != part ] &&
        [ "$(lsblk --noheadings --raw "$1" | wc -l)" -eq 1 ] &&
        [ -z "$(lsblk --noheadings --output MOUNTPOINT "$1" | tr -d '[:space:]')" ] &&
        signatures=$(wipefs --no-act "$1") && [ -z "$signatures" ]
}

room_in() { df --block-size=1 --output=avail "$1" | tail -n 1; }

# Keeps inputs in the directory if it has at least as much room as the boot disk, whose size the job requested.
keep_inputs_in() {
    [ "$(room_in "$1")" -ge "$(room_in "$CLOUDSPOT_NODE_DIR")" ] || return
    export CLOUDSPOT_INPUT_CACHE=$1
    echo "cloudspot: inputs are kept in $1, on a disk of the machine's own"
}

# Keeps inputs on the machine's own empty disks, if it has any; several disks are joined into one.
use_own_disks() {
    local directory disk found=() device target=$CLOUDSPOT_NODE_DIR/own-disk
    for directory in $own_directories "$target"; do
        if mountpoint -q "$directory"; then
            keep_inputs_in "$directory"
            return
        fi
    done
    for disk in $own_disks; do # patterns
        disk=$(readlink -f "$disk")
        [[ " ${found[*]-} " == *" $disk "* ]] || ! is_empty_disk "$disk" || found+=("$disk")
    done
    [ "${#found[@]}" -gt 0 ] || return
    device=${found[0]}
    if [ "${#found[@]}" -gt 1 ] &&
        mdadm --create /dev/md/cloudspot --run --homehost=any --level=0 "--raid-devices=${#found[@]}" "${found[@]}"; then
        device=/dev/md/cloudspot
    fi
    mkdir -p "$target" && mkfs.ext4 -q -F -m 0 -E nodiscard "$device" &&
        mount -o noatime "$device" "$target" && keep_inputs_in "$target"
}
[ -n "${CLOUDSPOT_INPUT_CACHE-}" ] || use_own_disks
