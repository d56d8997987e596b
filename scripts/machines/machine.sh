# The systemd machine: boots it once, with the cases on a second drive, and reads results from its second serial line.
# shellcheck shell=bash disable=SC2154

# A /dev/kvm without the processor's help is there on some hosts, and does not work.
accelerator() {
    if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then echo kvm; else echo tcg,thread=multi; fi
}

# boot PART NAME…
boot() {
    local part=$1 output=$scratch/drive qemu
    shift
    need_packages qemu-system-x86_64:qemu-system-x86 mke2fs:e2fsprogs
    need_base
    rm -rf "$output" && mkdir -p "$output"
    cp "$rollcage" "$output/rollcage"
    cp -r "$here/check.sh" "$here/start" "$here/cases" "$here/tasks" examples/hello.toml "$output/"
    mkdir "$scratch/disk" && echo vendor-tool > "$scratch/disk/tool"
    mke2fs -q -t ext4 -d "$scratch/disk" "$output/disk.img" 8M > /dev/null
    rm -r "$scratch/disk"
    printf '%s\n' "$part" "$@" > "$output/wanted"
    [ ! -d "$scratch/extra" ] || mv "$scratch/extra/"* "$output/"
    mke2fs -qF -t ext4 -d "$output" "$scratch/drive.img" "$(($(du -sm "$output" | cut -f1) + 64))M" > /dev/null
    : > "$scratch/lines"
    # No case takes minutes; a machine that hangs is ended.
    timeout 1800 qemu-system-x86_64 -accel "$(accelerator)" -cpu max -smp 2 -m 2048 -nodefaults -display none \
        -no-reboot -snapshot \
        -kernel "$base/boot/vmlinuz" -initrd "$base/boot/initrd" \
        -append 'root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service' \
        -drive "file=$base/root.img,format=raw,if=virtio" -drive "file=$scratch/drive.img,format=raw,if=virtio" \
        -chardev "file,id=console,path=$logs/$part-console.txt" -serial chardev:console \
        -chardev "file,id=lines,path=$scratch/lines" -serial chardev:lines 2> "$logs/$part-qemu.txt" &
    qemu=$!
    started+=("$qemu")
    tail --pid="$qemu" -n +1 -F "$scratch/lines" 2> /dev/null |
        sed -un 's/\r$//; s/^result\t//p' | tee -a "$results" | sed -u "s|\t[^\t]*\t[^\t]*$||" >&2 &
    wait "$qemu" || cat "$logs/$part-qemu.txt" >&2
    wait
    sed 's/\r$//' "$logs/$part-console.txt" > "$logs/$part.txt"
}

part_systemd() { boot systemd "$@"; }

part_systemd-docker() {
    need_base
    mkdir "$scratch/extra"
    cp -r "$base/small.tar" "$here/docker.sh" docs/deployment.md Dockerfile deploy "$scratch/extra/"
    boot systemd-docker "$@"
}

# part_docker NAME…: on this machine.
part_docker() {
    local name work=$scratch/docker
    # shellcheck source=scripts/machines/cases/docker
    source "$here/cases/docker"
    need_packages dockerd:docker.io
    need_base
    mkdir -p "$work"
    prepare_docker "$work" "$base/image.tar" "$rollcage" docs/deployment.md Dockerfile deploy examples/hello.toml "$here/tasks" \
        >&2 || exit 1
    started+=("$dockerd")
    for name in "$@"; do
        run_case docker "$name" "$logs/docker-$name.txt" | tee -a "$results" | cut -f1-3 >&2
    done
    stop_docker
}

# The benchmark knows the path of its second program, so that is where it goes in the machine.
part_bench() {
    local messages=$scratch/messages.json
    cargo bench --locked -p rollcage-sandbox --no-run --message-format json > "$messages"
    mkdir "$scratch/extra"
    cp "$(executable sandbox "$messages")" "$scratch/extra/bench"
    cp "$(executable rollcage-test-zygote "$messages")" "$scratch/extra/zygote"
    executable rollcage-test-zygote "$messages" > "$scratch/extra/zygote-path"
    boot bench "$@"
    grep -E '^(==|create|kill|bwrap|ours|exec)' "$logs/bench.txt"
}

executable() { python3 -c '
import json, sys
for line in open(sys.argv[2]):
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])
' "$@" | tail -1; }
