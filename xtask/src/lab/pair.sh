#!/bin/sh
# The first program of each of two guests: one sends, the other receives, through a daemon on each. What is found goes to
# the second serial line in sections, each under a line `@@ NAME`; the last is `end`.

/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs -o size=256m tmpfs /tmp
stty -F /dev/ttyS1 -opost
exec < /dev/null > /dev/ttyS1 2> /dev/console

section() {
    echo "@@ $1"
}

finish() {
    section log
    cat /run/weir.log
    # Whatever it ended with.
    echo
    section end
    # The line has to be closed for what lies in it to be sent.
    exec > /dev/console
    poweroff -f
}

# Whoever has started the guest may be gone before it is over.
(sleep "${WEIR_SECONDS:-600}"; poweroff -f) > /dev/null &

status() {
    weir status --run-dir /run/weir --output json
}

# Waits until a command succeeds: two minutes at most.
until_true() {
    tries=0
    until "$@" > /dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 240 ]; then
            echo "gave up: $*" > /dev/console
            return 1
        fi
        sleep 0.5
    done
}

section kernel
uname -r
for driver in /drivers/*; do
    case "$driver" in
    *.xz) unxz -c "$driver" > /tmp/driver.ko ;;
    *) cp "$driver" /tmp/driver.ko ;;
    esac
    insmod /tmp/driver.ko || echo "$driver is not loaded" > /dev/console
done
until_true [ -e /sys/class/net/eth0 ] || finish

case "$WEIR_ROLE" in
a) own=10.9.0.1 other=10.9.0.2 ;;
*) own=10.9.0.2 other=10.9.0.1 ;;
esac
ip link set lo up
ip addr add "$own/24" dev eth0
ip link set eth0 up

mkdir -p /run/weir
printf 'a key that only these two share.' > /run/key
chmod 600 /run/key
cat > /run/weir.toml << END
node = "$WEIR_ROLE"
run_dir = "/run/weir"
listen = "$own:7001"
key_file = "/run/key"
shards = 1
drain_timeout = "1s"

[memory]
total = "64 MiB"
hugepages = "require"

[io]
level = "$WEIR_LEVEL"

[observe]
probes = "off"

[link]
zero_copy = "auto"
heartbeat_timeout = "60s"
grace = "2min"
END
if [ "$WEIR_ROLE" = a ]; then
    printf '\n[peers]\nb = "%s:7001"\n' "$other" >> /run/weir.toml
fi
# As the unit does it.
# shellcheck disable=SC3045 # busybox knows it
ulimit -l unlimited
weir daemon --config /run/weir.toml > /run/weir.log 2>&1 &
until_true [ -S /run/weir/attach.sock ] || finish
until_true ping -c 1 -W 1 "$other" || finish

if [ "$WEIR_ROLE" = a ]; then
    # Lines, each another one: what is lost, repeated or in another order has another sum.
    seq 1 "$WEIR_LINES" > /tmp/input
    section bytes
    wc -c < /tmp/input
    section sum
    sha256sum < /tmp/input
    weir send --quiet --run-dir /run/weir --exchange x --consumers 1 < /tmp/input > /dev/null
    section outcome
    echo $?
    # The kernel lets go of the last batches when they are acknowledged.
    sleep 3
    section status
    status
else
    weir recv --quiet --run-dir /run/weir --exchange x > /tmp/output
    section outcome
    echo $?
    section sum
    sha256sum < /tmp/output
    section status
    status
    # Until the other one has ended.
    tries=0
    while ping -c 1 -W 2 "$other" > /dev/null && [ "$tries" -lt 30 ]; do
        tries=$((tries + 1))
        sleep 1
    done
fi
finish
