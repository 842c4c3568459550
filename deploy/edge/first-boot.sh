#!/bin/sh
# Written by `shoal flash image`; run once, at the first boot.
# Takes the offline bundle and the one-time enrolment token off the boot partition and installs.
set -eu
umask 077
state=@STATE@
say() { echo "shoal-first-boot: $*"; }

mkdir -p "$state"
if [ -e "$state/first-boot.done" ]; then say "done before"; exit 0; fi

boot=
mounted=
for directory in /boot/firmware /boot /boot/efi; do
  if [ -d "$directory/@DIRECTORY@" ]; then boot=$directory; break; fi
done
if [ -z "$boot" ]; then
  mounted=/run/shoal-boot
  mkdir -p "$mounted"
  mount -t vfat -o rw,umask=077 "/dev/disk/by-uuid/@VOLUME@" "$mounted"
  boot=$mounted
fi
finish() { if [ -n "$mounted" ]; then umount "$mounted" || true; fi; }
trap finish EXIT
seed=$boot/@DIRECTORY@
[ -w "$seed" ] || mount -o remount,rw "$boot"

# The token: kept on the device first, then wiped from the card, which others can read.
if [ -f "$seed/@TOKEN@" ]; then
  if [ -s "$seed/@TOKEN@" ] && ! [ -e "$state/token.wiped" ]; then
    cp "$seed/@TOKEN@" "$state/@TOKEN@.tmp"
    sync
    mv "$state/@TOKEN@.tmp" "$state/@TOKEN@"
    touch "$state/token.wiped"
    sync
  fi
  length=$(wc -c < "$seed/@TOKEN@")
  dd if=/dev/zero of="$seed/@TOKEN@" bs=1 count="$length" conv=notrunc,fsync 2>/dev/null
  rm -f "$seed/@TOKEN@"
  sync
  say "the enrolment token is off the card"
fi

if [ -f "$seed/@BUNDLE@" ]; then
  if ! (cd "$seed" && sha256sum -c --status @DIGEST@); then
    say "the bundle on the card is damaged: flash the card again" >&2
    exit 1
  fi
  rm -rf "$state/bundle"
  mkdir -p "$state/bundle"
  tar -xf "$seed/@BUNDLE@" -C "$state/bundle"
  SHOAL_ENROLMENT_TOKEN_FILE="$state/@TOKEN@" sh "$state/bundle/@INSTALLER@"
  rm -f "$seed/@BUNDLE@" "$seed/@DIGEST@"
  rm -rf "$state/bundle"
fi
touch "$state/first-boot.done"
sync
say "done"
