# The program and nothing else: no shell, no package manager, no root.
#   docker build -t runcast .
#   docker run -p 8080:8080 -v runcast:/var/lib/runcast -v "$PWD/runcast.toml:/etc/runcast/runcast.toml:ro" runcast \
#     serve --config /etc/runcast/runcast.toml
# Without a token in that file it does not start, because others can reach it.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY translators translators
COPY config config
COPY client client
COPY gateway gateway
# Its recorded runs are what `serve --demo` shows.
COPY tests tests
RUN cargo build --profile dist --locked --package runcast --bin runcast \
    && mkdir -p /out/var/lib/runcast /out/usr/local/bin \
    && cp target/dist/runcast /out/usr/local/bin/

# With the certificates that the world believes, for upstreams and NATS over TLS.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/usr/local/bin/runcast /usr/local/bin/runcast
COPY --from=build --chown=65532:65532 /out/var/lib/runcast /var/lib/runcast
ENV RUNCAST__SERVER__LISTEN=0.0.0.0:8080 \
    RUNCAST__SERVER__ADMIN_LISTEN=0.0.0.0:9090 \
    RUNCAST__LOG__PATH=/var/lib/runcast/log
USER 65532:65532
VOLUME ["/var/lib/runcast"]
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/runcast"]
CMD ["serve"]
