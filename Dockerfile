# The same image as `cargo xtask image` makes, for those who build with docker:
#
#   docker build --build-arg LENO_COMMIT="$(git rev-parse --short=12 HEAD)" -t localhost/leno:0.1.0 .

FROM rust:1.95-bookworm AS build
ARG LENO_COMMIT
ARG PROFILE=dist
ENV LENO_COMMIT=$LENO_COMMIT
WORKDIR /leno
COPY . .
RUN cargo xtask image --profile $PROFILE

FROM scratch
COPY --from=build /leno/target/image/leno /leno
USER 65532:65532
ENTRYPOINT ["/leno"]
