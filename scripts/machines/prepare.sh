# What the parts need, made once and kept: packages of this machine, a root file system, a kernel, disk images.
# shellcheck shell=bash disable=SC2154

machine_suite=bookworm
machine_packages=systemd-sysv,dbus,udev,dbus-user-session,libpam-systemd,kmod,apparmor,bubblewrap,busybox-static,docker.io

# need_packages COMMAND:PACKAGE…
need_packages() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%:*}" > /dev/null || [ -e "${pair%%:*}" ] || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" > "$logs/apt.txt"
}

# The packages that the image gets, from the one place that names them.
image_packages() {
    join_lines Dockerfile | sed -n '/^FROM debian/,$p' |
        sed -n 's/.*apt-get install -y --no-install-recommends \(.*\) && rm.*/\1/p' | xargs | tr ' ' ,
}

# A mirror of Debian as this machine's apt has it, in whatever form it is written down.
mirror() {
    local found
    # shellcheck disable=SC2016
    found=$(apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
        awk '$2 == "main" && $1 !~ /security/ {print $1; exit}')
    found=${DEBIAN_MIRROR:-$found}
    [ -n "$found" ] || { echo "apt here knows no mirror of Debian: set DEBIAN_MIRROR to one" >&2; exit 2; }
    echo "$found"
}

# Debian's packages and its kernel as a tar file and a boot folder. The settings of this machine's apt (proxies,
# certificates) hold, since it is apt that fetches.
build_base() {
    local into=$1 settings=() setting from
    from=$(mirror)
    while IFS= read -r setting; do settings+=("--aptopt=$setting"); done < <(
        apt-config dump | grep -E '^Acquire::(https?|ftp|Retries|Check-Valid-Until)[: ]' || true)
    mkdir -p "$into/boot"
    mmdebstrap --quiet --mode=root --variant=minbase --include="$machine_packages,$(image_packages)" "${settings[@]}" \
        --customize-hook="$here/kernel \"\$1\" '$into/boot'" \
        "$machine_suite" "$into/rootfs.tar" "$from"
    mkdir "$into/root"
    tar -xf "$into/rootfs.tar" -C "$into/root"
    rm "$into/rootfs.tar"
    local without=(--exclude './usr/lib/modules' --exclude './usr/bin/docker*' --exclude './usr/bin/containerd*'
        --exclude './usr/bin/ctr' --exclude './usr/sbin/dockerd' --exclude './usr/sbin/runc' --exclude './usr/share/doc'
        --exclude './usr/share/man' --exclude './usr/share/locale' --exclude './dev/*')
    tar -cf "$into/image.tar" -C "$into/root" "${without[@]}" .
    # An emulated processor takes minutes to import all of it.
    tar -cf "$into/small.tar" -C "$into/root" "${without[@]}" --exclude '*/python3*' --exclude '*/git*' \
        --exclude '*/perl*' --exclude '*/systemd' --exclude './usr/share/*/*' --exclude './var/cache' --exclude './var/lib/*/*' .
}

# Sets `base` to the folder with image.tar and small.tar (for containers), boot/ and root.img; it is made anew when one of
# its ingredients has changed.
need_base() {
    local key
    key=$( { echo "$machine_suite $machine_packages $(image_packages)"; declare -f build_base furnish; cat "$here/kernel"
        } | sha256sum | cut -c1-16)
    base=$cache/$key
    [ ! -e "$base/done" ] || return 0
    need_packages mmdebstrap:mmdebstrap mke2fs:e2fsprogs \
        /usr/share/keyrings/debian-archive-keyring.gpg:debian-archive-keyring
    echo "building the root file system in $base" >&2
    find "$cache" -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -rf {} +
    rm -rf "$base"
    mkdir "$base"
    build_base "$base" 2> "$logs/mmdebstrap.txt" || { cat "$logs/mmdebstrap.txt" >&2; exit 1; }
    furnish "$base/root"
    mke2fs -q -t ext4 -d "$base/root" "$base/root.img" 3G > /dev/null
    rm -rf "$base/root"
    touch "$base/done"
}

# What a stock machine lacks to run our cases: a user, the drive with the cases, and a service that starts them.
furnish() {
    local root=$1
    chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash tester
    echo machine > "$root/etc/hostname"
    mkdir -p "$root/machine"
    echo '/dev/vdb /machine ext4 ro 0 0' >> "$root/etc/fstab"
    cat > "$root/etc/systemd/system/cases.service" <<'UNIT'
[Unit]
After=systemd-logind.service dbus.service local-fs.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStart=/bin/bash /machine/start
StandardOutput=journal+console
ExecStopPost=/bin/systemctl poweroff --force --force
UNIT
    ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
    ln -s ../cases.service "$root/etc/systemd/system/multi-user.target.wants/cases.service"
    # Started by the case that asks for it, with settings of its own.
    ln -sf /dev/null "$root/etc/systemd/system/docker.service"
    ln -sf /dev/null "$root/etc/systemd/system/docker.socket"
    ln -sf /dev/null "$root/etc/systemd/system/containerd.service"
}
