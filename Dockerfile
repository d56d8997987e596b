# `rollcage serve` in a container: any uid, a read-only root with a writable /tmp, port 8000.
#
#   docker build -t rollcage .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 rollcage
#
# The port is open to whoever can reach it, so publish it to loopback as above, or ask for a token:
#
#   docker run -e TOKEN -p 8000:8000 rollcage serve --host 0.0.0.0 --token-env TOKEN

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p rollcage

FROM debian:bookworm-slim
# What sandboxes show of the host to agents and verify commands.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bash ca-certificates git procps python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/rollcage /usr/local/bin/rollcage
# Records and agents: on the writable /tmp unless a volume is mounted elsewhere.
ENV ROLLCAGE_HOME=/tmp/rollcage HOME=/tmp
USER 65532:65532
EXPOSE 8000
ENTRYPOINT ["rollcage"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--without-token"]
