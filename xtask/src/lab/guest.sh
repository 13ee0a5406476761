#!/bin/sh
# The first program of the guest: two daemons on one link, one of which stands still for a while. What is found goes
# to the second serial line in sections, each under a line `@@ NAME`; the last is `end`. What programs say on the way goes
# to the first one, beside the kernel's own words.

/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /run/a /run/b
stty -F /dev/ttyS1 -opost
exec < /dev/null > /dev/ttyS1 2> /dev/console

section() {
    echo "@@ $1"
}

finish() {
    for node in a b; do
        section "log-$node"
        cat "/run/$node.log"
        # Whatever it ended with.
        echo
    done
    section end
    # The line has to be closed for what lies in it to be sent.
    exec > /dev/console
    poweroff -f
}

# Whoever has started the guest may be gone before it is over.
(sleep "${WEIR_SECONDS:-600}"; poweroff -f) > /dev/null &

config() {
    cat > "/run/$1.toml" << END
node = "$1"
run_dir = "/run/$1"
listen = "$2"
shards = 1
drain_timeout = "1s"

[memory]
total = "64 MiB"
hugepages = "off"

[pool]
exclusive = 16

[observe]
probes = "require"

# An emulated machine is slow, and one end of the link stands still on purpose.
[link]
heartbeat_timeout = "60s"
grace = "2min"
$3
END
}

daemon() {
    weir daemon --config "/run/$1.toml" > "/run/$1.log" 2>&1 &
}

status() {
    weir status --run-dir "/run/$1" --output json
}

# Whether a process goes on: one that has ended has no program any more.
runs() {
    [ -e "/proc/$1/exe" ]
}

# Waits until a command succeeds: two minutes at most, and only while both daemons run.
until_true() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 240 ] || ! runs "$a" || ! runs "$b"; then
            echo "gave up: $*" > /dev/console
            return 1
        fi
        sleep 0.5
    done
}

is_linked() {
    status a 2> /dev/null | grep -q '"socket":{'
}

# Each program of the probes, and each place where one stands, as the kernel tells it of the daemon's descriptors.
hooks() {
    for file in "/proc/$1/fdinfo"/*; do
        if grep -q prog_id "$file"; then
            echo "--"
            cat "$file"
        fi
    done
}

# Records from what stands on the standard input, from the first daemon.
records() {
    weir send --quiet --run-dir /run/a --exchange "$1" --strategy forward > /dev/null 2> /dev/console
}

# A reader of them, at the second.
reader() {
    name="$1"
    shift
    weir recv --quiet --run-dir /run/b --exchange "$name" "$@" > /dev/null 2> /dev/console &
}

many() {
    yes 'a record of sixty-four bytes, as the lines of many a log are____'
}

# Less at a time than what fits into a socket that is read.
some() {
    many | head -n 800 > /tmp/some
    while sleep 0.2; do
        cat /tmp/some || return
    done
}

few() {
    while sleep 1; do
        date || return
    done
}

hundredths() {
    cut -d ' ' -f 1 /proc/uptime | tr -d .
}

section kernel
uname -r
ip link set lo up
# One end gets an address of its own. Without the route that comes with it, who connects there comes from 127.0.0.1.
ip addr add 127.0.0.2/32 dev lo
ip route del local 127.0.0.2 dev lo table local
# The kernel counts the runs of each program from here on.
echo 1 > /proc/sys/kernel/bpf_stats_enabled
# Less room than what one daemon may send to the other without an answer.
echo "4096 131072 131072" > /proc/sys/net/ipv4/tcp_rmem

section probes
weir probes --output json
# Programs at functions would be attached, and never run.
echo 0 > /proc/sys/kernel/ftrace_enabled
section untraced
weir probes --output json
echo 1 > /proc/sys/kernel/ftrace_enabled

# The second dials the first, from 127.0.0.1: each end of the link has an address of its own.
config a 127.0.0.2:7001 ''
config b 127.0.0.1:7002 '
[peers]
a = "127.0.0.2:7001"'
daemon b
b=$!
daemon a
a=$!
until_true [ -S /run/a/attach.sock -a -S /run/b/attach.sock ] || finish

# Next to nothing is sent.
reader few
few | records few &
until_true is_linked || finish
sleep 2
section quiet-begins
status a
sleep 4
section quiet-ends
status a

# A reader of records that is slow, and one that is not.
reader slow --rate 5
many | records slow &
reader some
some | records some &
sleep 3
section read-begins
status a
sleep 4
section read-ends
status a

# A slow reader of the socket: the daemon at its other end stands still.
began=$(hundredths)
kill -STOP "$b"
sleep 5
ended=$(hundredths)
kill -CONT "$b"
sleep 1
section slow-ends
status a
section stood-still
echo "$((ended - began))"

# Nothing reaches the first daemon for a while, so that what it has sent is not acknowledged, and is sent again.
ip route add blackhole 127.0.0.2 table local
sleep 2
ip route del blackhole 127.0.0.2 table local
sleep 2

section last
status a
section stalls
weir stalls --run-dir /run/a --output json
section peer
status b
section hooks-b
hooks "$b"
# The connection ends.
kill "$b"
wait "$b"
section hooks-a
hooks "$a"
finish
