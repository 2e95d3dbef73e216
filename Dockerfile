# stdio:  docker run -i --rm --init -v perdure-data:/data perdure
# HTTP:   docker run --rm --init -v perdure-data:/data -p 127.0.0.1:8420:8420 \
#           -e PERDURE_HTTP__HOST=0.0.0.0 -e PERDURE_HTTP__TOKEN=... perdure serve
# --init, because the workers are processes of their own and somebody has to collect them when they end.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/perdure
# The model first: it changes least and weighs most.
COPY models/bge-small-en models/bge-small-en
RUN /opt/perdure/bin/pip install --no-cache-dir ./models/bge-small-en
COPY pyproject.toml README.md LICENSE ./
COPY server server
RUN /opt/perdure/bin/pip install --no-cache-dir '.[otel,postgres]'

FROM python:3.12-slim
LABEL org.opencontainers.image.title="Perdure" \
      org.opencontainers.image.description="A memory for tool-using agents that outlives the process." \
      org.opencontainers.image.licenses="Apache-2.0" \
      io.modelcontextprotocol.server.name="io.github.perdure/perdure"
COPY --from=build /opt/perdure /opt/perdure
# A volume takes over the owner and the mode of the directory it is first mounted on.
RUN useradd --system --uid 10001 --create-home perdure && install -d -o perdure -g perdure -m 0700 /data
ENV PATH="/opt/perdure/bin:$PATH" \
    PERDURE_DATA_DIR=/data
# As a number, so that an orchestrator can tell that it is not root.
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8420
# Whether memory is safe: a directory that is no volume, a full disk or a damaged database makes it unhealthy.
HEALTHCHECK --interval=5m --timeout=30s --start-period=30s CMD ["perdure", "doctor"]
ENTRYPOINT ["perdure"]
