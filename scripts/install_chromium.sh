#!/bin/sh
# Install Chromium and its driver, with which tests/browser opens pages, if this is root on Debian or similar.
# Those tests are skipped without it, so nothing here fails.
set -eu
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "note: no chromium, so tests/browser is skipped; install chromium and chromium-driver to run it" >&2
    exit 0
fi
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    chromium chromium-driver >/dev/null; } >&2 || echo "note: chromium was not installed; tests/browser is skipped" >&2
