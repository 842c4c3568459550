#!/bin/sh
# Installs Shoal's agent on this device from the bundle that this file lies in; needs no network.
#
#   sh install.sh [--dry-run] [--prefix DIRECTORY] [OPTION OF `shoal-slots setup`]...
#
# Run it as root, or anywhere with --prefix. It is safe to run again: what is there already stays.
# A one-time enrolment token is taken from the file that SHOAL_ENROLMENT_TOKEN_FILE names. It is
# used and wiped by the agent's unit, which keeps trying while there is no network.
# Exit codes: 0 installed, 1 failed, 4 this device or this call does not fit; nothing was changed.
set -eu
umask 022
arch=@ARCH@
python=@PYTHON@
glibc=@GLIBC@
needed_mb=@NEEDED_MB@

say() { echo "shoal-install: $*"; }
refuse() {
  echo "shoal-install: $*" >&2
  exit 4
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=/opt/shoal
dry_run=
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  case $argument in
    --dry-run)
      dry_run=1
      continue
      ;;
    --prefix)
      [ "$count" -gt 0 ] || refuse "--prefix needs a directory"
      prefix=$1
      ;;
    --prefix=*) prefix=${argument#--prefix=} ;;
  esac
  set -- "$@" "$argument"
done
[ "$prefix" != /opt/shoal ] || [ "$(id -u)" = 0 ] ||
  refuse "run it as root: sudo sh $0 (or give --prefix, for an installation of your own)"

# --- whether it fits: the processor, the C library, Python, the disk --------------------------
found=$(uname -m)
case $found in arm64) found=aarch64 ;; amd64) found=x86_64 ;; esac
[ "$found" = "$arch" ] ||
  refuse "this device is $found, the bundle is for $arch: make one with --arch $found"

# A 32-bit system may run on a 64-bit kernel: the word size is that of programs.
bits=$(getconf LONG_BIT 2>/dev/null || echo 64)
[ "$bits" = 64 ] || refuse "this system is $bits-bit: the bundle needs a 64-bit one"

libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || true)
libc=${libc#glibc }
case $libc in
  2.[0-9]*) ;;
  *) refuse "no GNU C library here (Alpine has another): the bundle's wheels need glibc $glibc" ;;
esac
minor=${libc#2.}
[ "${minor%%[!0-9]*}" -ge "${glibc#2.}" ] ||
  refuse "glibc $libc is here, the bundle needs $glibc or newer: upgrade the system, or make a bundle with --glibc $libc"

interpreter=
seen=
for candidate in "python$python" python3 /usr/bin/python3; do
  command -v "$candidate" >/dev/null 2>&1 || continue
  version=$("$candidate" -Ic 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  seen="$seen $version"
  if [ "$version" = "$python" ]; then
    interpreter=$(command -v "$candidate")
    break
  fi
done
if [ -z "$interpreter" ]; then
  [ -n "$seen" ] || refuse "no Python here: apt-get install python3"
  seen=${seen# }
  refuse "Python ${seen%% *} is here, the bundle is for $python: make one with --python ${seen%% *}"
fi
"$interpreter" -Ic 'import ctypes, hashlib, json, ssl, venv' 2>/dev/null ||
  refuse "$interpreter lacks parts of its standard library: apt-get install python3 libpython3-stdlib"

# --- whether it is whole -------------------------------------------------------------------
# The way here is trusted (the card, or the host key); what a bad copy does to it is not.
"$interpreter" -IB - "$here" <<'PYTHON' || exit 1
import hashlib, json, os, stat, sys

here = sys.argv[1]
try:
    with open(os.path.join(here, "manifest.json"), "rb") as file:
        files = json.loads(file.read(256 << 10))["files"]
    for entry in files:
        path = os.path.join(here, *entry["path"].split("/"))
        if ".." in entry["path"].split("/") or not stat.S_ISREG(os.lstat(path).st_mode):
            sys.exit("shoal-install: %s is not a plain file" % entry["path"])
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
        if digest.hexdigest() != entry["sha256"]:
            sys.exit("shoal-install: %s is damaged: copy the bundle again" % entry["path"])
except (OSError, ValueError, KeyError, TypeError) as error:
    sys.exit("shoal-install: the bundle is damaged: %s: %s" % (type(error).__name__, error))
PYTHON

# --- whether there is room -----------------------------------------------------------------
above=$prefix
while [ ! -d "$above" ]; do above=$(dirname -- "$above"); done
free_mb=$(df -Pk -- "$above" | awk 'NR == 2 { printf "%d", $4 * 1024 / 1000000 }')
digest=$(sha256sum "$here/manifest.json" | cut -d ' ' -f 1)
there=
for slot in a b; do
  if [ -f "$prefix/slots/$slot/manifest.json" ] &&
    [ "$(sha256sum "$prefix/slots/$slot/manifest.json" | cut -d ' ' -f 1)" = "$digest" ]; then
    there=$slot
  fi
done
# A bundle that is in a slot already needs none.
[ -n "$there" ] || [ "$free_mb" -ge "$needed_mb" ] ||
  refuse "$above has $free_mb MB free, the installation takes $needed_mb MB: make room first"

if [ -n "$dry_run" ]; then
  say "fits: $arch, Python $python ($interpreter), glibc $libc, $free_mb MB free of $needed_mb MB"
  say "would run: $interpreter -IB $here/boot setup $here $*"
  exit 0
fi
exec "$interpreter" -IB "$here/boot" setup "$here" "$@"
