#!/bin/sh
# Options and `serve` go to the server, under its own name or Triton's; any other command runs as it is.
# Always exec: the server must be process 1, or SIGTERM would end the shell and not drain the server.
set -eu

if [ "$#" -eq 0 ]; then
    set -- serve --model-repository=/models
fi

# A platform has a place of its own for models; the image's default is none.
if [ -n "${MODSERVE_PLATFORM:-}" ] && [ "$*" = "serve --model-repository=/models" ]; then
    exec modserve serve
fi

case "$1" in
    -* | serve) exec modserve "$@" ;;
    tritonserver)
        shift
        exec modserve "$@"
        ;;
    *) exec "$@" ;;
esac
