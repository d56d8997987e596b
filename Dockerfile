# `rollcage serve` in a container: any uid, a read-only root, records and agents on a volume, port 8000.
#
#   docker build -t rollcage .
#   docker run --rm -p 127.0.0.1:8000:8000 --read-only --tmpfs /tmp -v rollcage:/data \
#       --security-opt seccomp=unconfined --security-opt systempaths=unconfined --security-opt apparmor=unconfined \
#       rollcage
#
# Sandboxes are made of user namespaces and mounts, which Docker's default profiles forbid: hence the three options, and
# docs/deployment.md has narrower ones. No capability is needed, nor root. The port is open to whoever can reach it, so publish
# it to loopback as above, or ask for a token: -e TOKEN … rollcage serve --host 0.0.0.0 --token-env TOKEN

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --profile dist --locked -p rollcage

FROM debian:bookworm-slim
# What sandboxes show of the host to agents and verify commands; agents from PyPI are installed with the host's pip.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bash ca-certificates curl git procps python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -m 1777 /data
COPY --from=build /src/target/dist/rollcage /usr/local/bin/rollcage
# Records and agents. A tmpfs of Docker's would not do: it is noexec unless asked.
ENV ROLLCAGE_HOME=/data HOME=/tmp
VOLUME /data
USER 65532:65532
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["rollcage"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--without-token"]
