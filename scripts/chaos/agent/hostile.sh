#!/bin/bash
# A hostile agent: does a few bad things in a random order, then ends somehow, or not at all.
set +e
RANDOM=$(( $(cksum < /etc/hostname | cut -d' ' -f1) % 32768 ))

# Asks the model, with the rollout's id in the question: the endpoint is a witness of who has started.
ask() {
    local body length
    body="{\"model\":\"m\",\"stream\":$1,\"messages\":[{\"role\":\"user\",\"content\":\"rollout $(cat /etc/hostname) end\"}]}"
    length=${#body}
    exec 3<>/dev/tcp/127.0.0.1/7000 || return
    printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' \
        "$OPENAI_API_KEY" "$length" "$body" >&3
    timeout 5 cat <&3 > /dev/null
    exec 3<&-
}

daemons() {
    for _ in 1 2 3; do
        setsid bash -c 'trap "" TERM INT HUP; (setsid bash -c "trap \"\" TERM; while :; do sleep 1; done" &); while :; do sleep 1; done' \
            > /dev/null 2>&1 < /dev/null &
    done
    # One that keeps our output open.
    (trap '' TERM INT HUP; setsid sleep 1000 &)
}

deep() {
    local at=$PWD
    for _ in $(seq 40); do mkdir dddddddddddddddddddddddddddddddd && cd dddddddddddddddddddddddddddddddd || break; done
    cd "$at" || exit
}

ask false
for _ in 1 2 3 4; do
    case $((RANDOM % 12)) in
        0) daemons ;;
        1) cat /dev/zero > full 2> /dev/null ;;
        2) head -c 8M /dev/urandom | base64 ;;
        3) ask true ;;
        4) ask false & ;;
        5) deep ;;
        6) trap '' TERM INT HUP QUIT ;;
        7) rm -rf ~/workdir; chmod 000 ~ ;;
        8) for _ in $(seq 200); do sleep 100 & done 2> /dev/null ;;
        9) mkfifo fifo; ln -s / root; seq 300 | xargs touch 2> /dev/null ;;
        10) sleep 0.$((RANDOM % 5)) ;;
        11) printf 'junk\r\n\r\n' > /dev/tcp/127.0.0.1/7000 ;;
    esac
done
case $((RANDOM % 6)) in
    0) exit 1 ;;
    1) kill -9 $$ ;;
    2) kill -9 -1; exit 1 ;;
    3) trap '' TERM; while :; do sleep 1; done ;;
    *) exit 0 ;;
esac
