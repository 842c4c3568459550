#!/bin/sh
# Installs Shoal's agent on this device from the bundle that this file lies in; needs no network.
# Run it as root; it is safe to run again. Filled in by `shoal flash bundle`.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
exec python3 -I "$here/boot" setup "$here" "$@"
