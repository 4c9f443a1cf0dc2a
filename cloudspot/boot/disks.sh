
# The part of the boot script for jobs with inputs to stage; script.py sets own_disks and own_directories.

# Has nothing on it, and nothing uses it.
is_empty_disk() {
    [ -b "$1" ] && [ "$(lsblk --noheadings --raw --output TYPE "$1")" != part ] &&
        [ "$(lsblk --noheadings --raw "$1" | wc -l)" -eq 1 ] &&
        [ -z "$(lsblk --noheadings --output MOUNTPOINT "$1" | tr -d '[:space:]')" ] &&
        [ -z "$(blkid --probe "$1")" ]
}

# Inputs are kept on disks of the machine's own, if it has any that are empty, several as one.
use_own_disks() {
    local directory disk found=() device target=$CLOUDSPOT_NODE_DIR/own-disk
    for directory in $own_directories "$target"; do
        if mountpoint -q "$directory"; then
            export CLOUDSPOT_INPUT_CACHE=$directory
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
    # What is not there yet, mkfs and the kernel make while the disk is used.
    mkdir -p "$target" && mkfs.ext4 -q -F -m 0 -E nodiscard "$device" && mount -o noatime "$device" "$target" || return
    export CLOUDSPOT_INPUT_CACHE=$target
    echo "cloudspot: inputs are kept on $device, a disk of the machine's own; there are ${#found[@]}"
}
[ -n "${CLOUDSPOT_INPUT_CACHE-}" ] || use_own_disks
