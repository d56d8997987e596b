# A dockerd of our own and the image in it, on this machine and inside the systemd machine. Nothing is pulled: the base
# is a tar file of Debian, and what the Dockerfile says of the image is built upon it.
# shellcheck shell=bash disable=SC2034,SC2154

# start_dockerd FOLDER: sets `dockerd` to its process and DOCKER_HOST.
start_dockerd() {
    local folder=$1 driver
    export DOCKER_HOST=unix://$folder/docker.sock DOCKER_BUILDKIT=0 DOCKER_CONFIG=$folder/config
    for driver in overlay2 vfs; do
        mkdir -p "$folder/data-$driver"
        dockerd --data-root "$folder/data-$driver" --exec-root "$folder/exec" --host "$DOCKER_HOST" \
            --pidfile "$folder/pid" --storage-driver "$driver" --bridge none --iptables=false --ip6tables=false \
            --cgroup-parent "$cgroup_parent" > "$folder/dockerd-$driver.txt" 2>&1 &
        dockerd=$!
        for _ in $(seq 600); do
            if docker version > /dev/null 2>&1; then
                docker version --format "Docker {{.Server.Version}}, storage driver $driver"
                return 0
            fi
            kill -0 "$dockerd" 2> /dev/null || break
            sleep 0.1
        done
    done
    echo "dockerd does not start here:" >&2
    tail -n 5 "$folder"/dockerd-*.txt >&2
    return 1
}

# build_image ROOTFS.TAR DOCKERFILE BINARY FOLDER: the last stage of the Dockerfile, its packages being in the base.
build_image() {
    local tar=$1 dockerfile=$2 binary=$3 folder=$4
    docker import "$tar" base:1 > /dev/null
    mkdir -p "$folder/context"
    cp "$binary" "$folder/context/rollcage"
    join_lines "$dockerfile" | sed -n '/^FROM debian/,$p' | sed -E \
        -e 's/^FROM .*/FROM base:1/' \
        -e 's/^RUN apt-get update.*rm -rf [^&]*&& /RUN /' \
        -e 's/^COPY --from=build [^ ]* /COPY rollcage /' > "$folder/context/Dockerfile"
    docker build --quiet --network none --tag rollcage "$folder/context" > /dev/null 2> "$folder/build.txt" || { cat "$folder/build.txt" >&2; return 1; }
}

join_lines() { sed -e ':a' -e '/\\$/{N; s/\\\n *//; ta' -e '}' "$1"; }

# The options of the `docker run` line in docs/deployment.md; there is no network to publish a port on.
documented_options() {
    join_lines "$1" | sed -n '/<!-- docker -->/,/^```$/s/^docker run \(.*\) rollcage$/\1/p' | sed -E 's/-p [^ ]+ //'
}

# contained [OPTION…] -- COMMAND…: one command of the image.
contained() {
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    # A volume belongs to the first who uses it.
    docker volume rm --force rollcage > /dev/null
    docker run --rm --network none -v "$tasks:/tasks:ro" "${options[@]}" rollcage "$@"
}

# prepare_docker FOLDER ROOTFS.TAR BINARY PAGE DOCKERFILE DEPLOY HELLO TASKS: everything that the cases refer to.
prepare_docker() {
    work=$1 deploy=$6 tasks=$1/tasks
    our_binary=/usr/local/bin/rollcage
    # On cgroup v2 under systemd Docker has its groups made by it, and calls them slices.
    cgroup_parent=/testmachines
    [ ! -e /sys/fs/cgroup/system.slice ] || cgroup_parent=testmachines.slice
    our_cgroups="*/testmachines*/*/rollcage-*"
    mkdir -p "$tasks"
    cp "$7" "$8"/*.toml "$tasks/"
    documented=$(documented_options "$4")
    [ -n "$documented" ] || { echo "docs/deployment.md has no docker run line" >&2; return 1; }
    start_dockerd "$work" || return 1
    build_image "$2" "$5" "$3" "$work"
}

stop_docker() {
    kill "$dockerd"
    wait "$dockerd" 2> /dev/null || true
    find /sys/fs/cgroup -depth -type d -path "*/testmachines*" -exec rmdir {} + 2> /dev/null || true
}
