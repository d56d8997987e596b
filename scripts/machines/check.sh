# How one case is run and judged; read by `run` and, inside the machine, by `start`.
# A case is a function `case_NAME`: it says with `want` and `want_not` what must be in its output, and runs a command.
# shellcheck shell=bash disable=SC2154

# files_of FOLDER PART: the files with its cases. The machine's dockerd has those of this machine's, too.
files_of() {
    [ "$2" != systemd-docker ] || echo "$1/cases/docker"
    echo "$1/cases/$2"
}
cases_of() { files_of "$@" | xargs sed -n 's/^case_\([a-z0-9_]*\)().*/\1/p' | tr _ -; }

want() { printf '%s\n' "$@" >> "$wants"; }
want_not() { printf '%s\n' "$@" >> "$wants.not"; }

# Cgroups and processes of ours that live now: `our_cgroups` is a pattern of paths, `our_binary` what they run.
remains() {
    find /sys/fs/cgroup -type d -path "$our_cgroups" 2> /dev/null
    find /proc -maxdepth 2 -name exe -lname "$our_binary" 2> /dev/null
}

# What ended a moment ago may still be in the kernel's hands.
remains_settled() {
    local left
    for _ in $(seq 50); do
        left=$(remains)
        [ -n "$left" ] || return 0
        sleep 0.1
    done
    echo "$left"
}

# run_case PART NAME OUTPUT: one line of results, tab-separated: case, ok or FAIL, seconds, expected, what came instead.
run_case() {
    local part=$1 name=$2 output=$3 begun ended line left problem='' verdict=ok
    wants=$output.wants
    : > "$wants"
    : > "$wants.not"
    begun=$(date +%s%N)
    ("case_${name//-/_}") > "$output" 2>&1 || true
    ended=$(date +%s%N)
    while IFS= read -r line; do
        grep -qF -e "$line" "$output" || problem+="no '$line'; "
    done < "$wants"
    while IFS= read -r line; do
        ! grep -qF -e "$line" "$output" || problem+="'$line'; "
    done < "$wants.not"
    left=$(remains_settled)
    [ -z "$left" ] || problem+="left behind: $(echo "$left" | head -3 | tr '\n' ' '); "
    if [ -n "$problem" ]; then
        verdict=FAIL
        problem+="last line: $(grep . "$output" | tail -1)"
    fi
    printf '%s\t%s\t%s\t%s\t%s\n' "$part/$name" "$verdict" "$(((ended - begun) / 100000000))" \
        "$(paste -sd '|' "$wants" | sed 's/|/; /g')" "$(tr '\t\n' '  ' <<< "$problem")" |
        awk -F'\t' -v OFS='\t' '{$3 = sprintf("%.1f", $3 / 10); print}'
    rm -f "$wants" "$wants.not"
}
