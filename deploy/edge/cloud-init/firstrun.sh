#!/bin/sh
# Written by `shoal flash image`; run once, by the kernel's command line.
boot=$(dirname -- "$0")
custom=/usr/lib/raspberrypi-sys-mods/imager_custom
"$custom" set_hostname reef-1
/usr/lib/userconf-pi/userconf ops '*'
"$custom" enable_ssh -k 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExampleExampleExampleExampleExampleExam me@example.org'
"$custom" set_wlan Example dda5109064a145e8327c2fe94188bed3b83c59ccba0dddc3bc75adcb8bf1bc74 DE
rfkill unblock wifi
cat >/usr/local/sbin/shoal-first-boot <<'SHOAL_FIRST_BOOT'
#!/bin/sh
# Written by `shoal flash image`; run once, at the first boot.
# Takes the offline bundle and the one-time enrolment token off the boot partition and installs.
set -eu
umask 077
state=/var/lib/shoal
say() { echo "shoal-first-boot: $*"; }

mkdir -p "$state"
if [ -e "$state/first-boot.done" ]; then say "done before"; exit 0; fi

boot=
mounted=
for directory in /boot/firmware /boot /boot/efi; do
  if [ -d "$directory/shoal" ]; then boot=$directory; break; fi
done
if [ -z "$boot" ]; then
  mounted=/run/shoal-boot
  mkdir -p "$mounted"
  mount -t vfat -o rw,umask=077 "/dev/disk/by-uuid/1A2B-3C4D" "$mounted"
  boot=$mounted
fi
finish() { if [ -n "$mounted" ]; then umount "$mounted" || true; fi; }
trap finish EXIT
seed=$boot/shoal
[ -w "$seed" ] || mount -o remount,rw "$boot"

# The token: kept on the device first, then wiped from the card, which others can read.
if [ -f "$seed/enrolment-token" ]; then
  if [ -s "$seed/enrolment-token" ] && ! [ -e "$state/token.wiped" ]; then
    cp "$seed/enrolment-token" "$state/enrolment-token.tmp"
    sync
    mv "$state/enrolment-token.tmp" "$state/enrolment-token"
    touch "$state/token.wiped"
    sync
  fi
  length=$(wc -c < "$seed/enrolment-token")
  dd if=/dev/zero of="$seed/enrolment-token" bs=1 count="$length" conv=notrunc,fsync 2>/dev/null
  rm -f "$seed/enrolment-token"
  sync
  say "the enrolment token is off the card"
fi

if [ -f "$seed/bundle" ]; then
  if ! (cd "$seed" && sha256sum -c --status bundle.sha256); then
    say "the bundle on the card is damaged: flash the card again" >&2
    exit 1
  fi
  rm -rf "$state/bundle"
  mkdir -p "$state/bundle"
  tar -xf "$seed/bundle" -C "$state/bundle"
  SHOAL_ENROLMENT_TOKEN_FILE="$state/enrolment-token" sh "$state/bundle/install.sh"
  rm -f "$seed/bundle" "$seed/bundle.sha256"
  rm -rf "$state/bundle"
fi
touch "$state/first-boot.done"
sync
say "done"
SHOAL_FIRST_BOOT
chmod 0700 /usr/local/sbin/shoal-first-boot
cat >/etc/systemd/system/shoal-first-boot.service <<'SHOAL_UNIT'
[Unit]
Description=Install Shoal from the boot partition, once
Wants=network-online.target
After=network-online.target
ConditionPathExists=!/var/lib/shoal/first-boot.done

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/shoal-first-boot

[Install]
WantedBy=multi-user.target
SHOAL_UNIT
systemctl enable shoal-first-boot.service
rm -f "$boot/firstrun.sh"
sed -i -e 's| systemd\.run[^ ]*||g' -e 's| systemd\.unit=kernel-command-line\.target||g' "$boot/cmdline.txt"
exit 0
