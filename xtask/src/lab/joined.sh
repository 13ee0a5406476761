#!/bin/sh
# Run by systemd in each of two guests with a network between them, when everything else is started: the service as the
# package has installed it sends to the one on the other guest. One line for each check, `ok|WHAT|FOUND` or
# `FAIL|WHAT|FOUND`; the first one is `begun`, the last one `end`.

exec 2> /dev/console

echo begun

check() {
    what=$1
    shift
    if found=$("$@" 2>&1); then word=ok; else word=FAIL; fi
    echo "$word|$what|$(echo "$found" | tr '\n' ' ')"
}

# Waits until a command succeeds: two minutes at most.
until_true() {
    for _ in $(seq 240); do
        "$@" > /dev/null 2>&1 && return
        sleep 0.5
    done
    echo "gave up: $*"
    return 1
}

role=$(sed 's/.*weir\.role=\([ab]\).*/\1/' /proc/cmdline)
case $role in
a) other=b own_address=10.9.0.1 other_address=10.9.0.2 ;;
*) other=a own_address=10.9.0.2 other_address=10.9.0.1 ;;
esac

linked() {
    for driver in "/root/drivers/$(uname -r | cut -d . -f 1,2)"/*; do
        case $driver in
        *.xz) /root/busybox unxz -c "$driver" > /run/driver.ko ;;
        *) cp "$driver" /run/driver.ko ;;
        esac
        /root/busybox insmod /run/driver.ko || echo "$driver is not loaded"
    done
    until_true [ -e /sys/class/net/eth0 ] || return 1
    ip address add "$own_address/24" dev eth0 && ip link set eth0 up || return 1
    printf 'a key that only these two share.' > /etc/weir/cluster.key
    chown weir:weir /etc/weir/cluster.key && chmod 600 /etc/weir/cluster.key || return 1
    cat > /etc/weir/weir.toml << END
node = "$role"
listen = "$own_address:7070"
key_file = "/etc/weir/cluster.key"

[peers]
$other = "$other_address:7070"

[metrics]
listen = "127.0.0.1:9107"

[link]
heartbeat_timeout = "60s"
grace = "2min"
END
    systemctl restart weir || return 1
    # Twice as long: the other guest may have been started once more.
    set -- sh -c "weir status | grep -q '^peer/$other  *OK'"
    { until_true "$@" || until_true "$@"; } && weir status | grep "^peer/$other"
}

arrives() {
    if [ "$role" = a ]; then
        seq "$LINES_SENT" | weir send --quiet --exchange numbers --strategy forward > /dev/null
    else
        weir recv --quiet --exchange numbers --consumer 0/1 | sha256sum > /run/received
        seq "$LINES_SENT" | sha256sum | cmp - /run/received && cat /run/received
    fi
}

# The kernel lets go of the last batches when they are acknowledged.
none_copied() {
    until_true sh -c "weir status --output json | grep -q '\"outstanding\": *0'"
    line=$(weir status | sed -n 's/.*; \([0-9]*\) batches sent so, \([0-9]*\) of them copied.*/\1 \2/p')
    echo "zc_copied ${line#* } of ${line% *}"
    [ "${line% *}" -ge "$SENDS_MIN" ] && [ "${line#* }" = 0 ]
}

metrics() {
    /root/busybox wget -q -O /run/metrics http://127.0.0.1:9107/metrics || return 1
    sum() {
        awk -v name="weir_link_zero_copy_$1_total{" 'index($1, name) == 1 { sum += $2 } END { print sum + 0 }' /run/metrics
    }
    echo "$(sum copied) of $(sum sends)"
    [ "$(sum sends)" -ge "$SENDS_MIN" ] && [ "$(sum copied)" = 0 ]
}

check "the service is linked with the other guest's" linked
check "a stream arrives whole" arrives
if [ "$role" = a ]; then
    check "none of its zero-copy sends is copied" none_copied
    check "its metrics say the same" metrics
else
    # Until the other one has looked.
    until_true sh -c "! /root/busybox ping -c 1 -W 2 $other_address" > /dev/null
fi
echo end
sync
systemctl poweroff --force
