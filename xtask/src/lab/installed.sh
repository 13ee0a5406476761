#!/bin/sh
# Run by systemd in the guest once everything else is started: is what the package has installed as it should be? One
# line for each check, `ok|WHAT|FOUND` or `FAIL|WHAT|FOUND`; the first one is `begun`, the last one `end`.

echo begun

# shellcheck disable=SC2153 # PAGES and NODES come from the unit.
check() {
    what=$1
    shift
    if found=$("$@" 2>&1); then word=ok; else word=FAIL; fi
    echo "$word|$what|$(echo "$found" | tr '\n' ' ')"
}

pid=$(systemctl show -p MainPID --value weir)

active() {
    [ "$(systemctl is-active weir)" = active ] && systemctl show -p StatusText --value weir
}

identity() {
    # A release that gives them up once it has started says so.
    held=000000c000004000
    weir status | grep -q '^privileges  *OK' && held=0000000000000000
    grep -E 'Cap(Eff|Bnd)' "/proc/$pid/status"
    grep -q "^CapEff:.$held" "/proc/$pid/status" && grep -q "^CapBnd:.000000c000004000" "/proc/$pid/status" &&
        [ "$(awk '/^Uid/ { print $2 }' "/proc/$pid/status")" = "$(id -u weir)" ]
}

memlock() {
    awk '/^Max locked memory/ { print $4, $5; found = $4 == "unlimited" && $5 == "unlimited" } END { exit !found }' \
        "/proc/$pid/limits"
}

# By node, and before anything else had its memory.
hugepages() {
    [ "$(systemctl is-active weir-hugepages)" = active ] || return 1
    for node in /sys/devices/system/node/node[0-9]*; do
        pages=$(cat "$node/hugepages/hugepages-2048kB/nr_hugepages")
        echo "${node##*/} $pages"
        [ "$pages" = "$PAGES" ] || return 1
    done
    [ "$(echo /sys/devices/system/node/node[0-9]* | wc -w)" = "$NODES" ]
}

early() {
    ended=$(systemctl show -p ExecMainExitTimestampMonotonic --value weir-hugepages)
    begun=$(systemctl show -p ActiveEnterTimestampMonotonic --value sysinit.target)
    echo "at $ended us, sysinit.target at $begun us"
    [ "$ended" -gt 0 ] && [ "$ended" -le "$begun" ]
}

settings() {
    sysctl -n net.ipv4.tcp_rmem net.ipv4.tcp_wmem | awk '{ print $3; if ($3 != 16777216) bad = 1 } END { exit bad }'
}

# The daemon's own, as user weir: every hook, and those without a tracepoint in this kernel at functions.
probes() {
    weir status | grep '^probes ' | grep ' OK ' && weir probes | grep -c fentry/
}

# The consumer comes when the producer's memory is there and was looked at.
stream() {
    seq 20000 | weir send --exchange numbers --strategy forward > /dev/null &
    pages=0
    for _ in $(seq 120); do
        pages=$(awk '/^HugetlbPages/ { print $2 }' "/proc/$pid/status")
        [ "$pages" -gt 0 ] && break
        sleep 0.5
    done
    weir recv --exchange numbers --consumer 0/1 | sha256sum > /run/received
    wait
    echo "$pages KiB of the daemon"
    seq 20000 | sha256sum | cmp - /run/received && [ "$pages" -gt 0 ]
}

# A daemon of its own with a shard bound on each node, and four producers on each: their regions are of that node alone, in
# the words of the daemon and of the kernel.
placement() {
    run=/run/placement-$1
    printf '[observe]\nprobes = "off"\n[shard]\npin = "on"\n[memory]\nhugepages = "%s"\n' "$2" > "$run.toml"
    weir daemon --config "$run.toml" --node "$1" --run-dir "$run" --listen 127.0.0.1:0 > "$run.log" 2>&1 &
    daemon=$!
    for _ in $(seq 120); do
        [ -S "$run/control.sock" ] && break
        sleep 0.5
    done
    for number in $(seq 8); do
        # Nothing of it may keep the output of this open.
        { sleep 600 | weir send --run-dir "$run" --exchange "e$number" --consumers 16; } > /dev/null 2>&1 &
    done
    for _ in $(seq 120); do
        [ "$(grep -c memfd:weir-send "/proc/$daemon/numa_maps")" = 8 ] && break
        sleep 0.5
    done
    weir shards --run-dir "$run" > "$run.txt"
    grep memfd:weir-send "/proc/$daemon/numa_maps" > "$run.maps"
    kill $daemon
    wait $daemon
    cat "$run.txt"
    grep -v ' N1=' "$run.maps" | grep -c ' N0='
    grep -v ' N0=' "$run.maps" | grep -c ' N1='
    [ "$(grep -c kernelpagesize_kB="$3" "$run.maps")" = 8 ] &&
        [ "$(awk '$2 == "bound" && $3 == $1 && $6 == $1 && $7 == $1 && $9 == "MiB" && !/ on /' "$run.txt" | wc -l)" = "$NODES" ] &&
        [ "$(grep -v ' N1=' "$run.maps" | grep -c ' N0=')" = 4 ] && [ "$(grep -v ' N0=' "$run.maps" | grep -c ' N1=')" = 4 ]
}

# The service, its shards bound, loses a processor by its control group (version 2) and gets it back: what it says, and what
# the kernel lets each shard use. Before Linux 6.2 the kernel undoes all bindings then.
cpuset() {
    printf '[shard]\npin = "on"\n' > /etc/weir/conf.d/pinned.toml
    systemctl restart weir
    pid=$(systemctl show -p MainPID --value weir)
    bound() {
        for _ in $(seq 60); do
            lists=
            for task in "/proc/$pid/task"/*; do
                grep -q weir-shard "$task/comm" && lists="$lists$(awk '/^Cpus_allowed_list/ { print $2 }' "$task/status") "
            done
            weir status | grep "^placement  *$1 " && [ "$lists" = "$2" ] && return
            sleep 0.5
        done
        return 1
    }
    bound OK "0 1 " && systemctl set-property --runtime weir.service AllowedCPUs=0 && bound DEGRADED "0 0 " &&
        systemctl set-property --runtime weir.service AllowedCPUs=0-1 && bound OK "0 1 "
}

doctor() {
    weir doctor > /run/doctor
    code=$?
    echo "exit code $code"
    awk '$2 == "DEGRADED" || $2 == "FAILED" { print }' /run/doctor
    [ $code = 0 ] || [ $code = 3 ]
}

# The switch of the whole machine: the daemon ends by itself and names it, and the doctor agrees. Kernels before 6.6 have none.
switched_off() {
    sysctl -q -w kernel.io_uring_disabled=2
    mkdir -p /run/systemd/system/weir.service.d
    printf '[Service]\nRestart=no\n' > /run/systemd/system/weir.service.d/once.conf
    systemctl daemon-reload
    ! systemctl restart weir || return 1
    # By itself (CLD_EXITED) and not by a signal.
    how=$(systemctl show -p ExecMainCode -p ExecMainStatus --value weir | tr '\n' ' ')
    # It may be behind.
    journalctl --sync
    said=$(journalctl -u weir -o cat --no-pager | grep 'kernel.io_uring_disabled is 2' | tail -n 1)
    weir doctor > /run/doctor
    code=$?
    sysctl -q -w kernel.io_uring_disabled=0
    rm /run/systemd/system/weir.service.d/once.conf
    systemctl daemon-reload
    systemctl reset-failed weir
    systemctl start weir || return 1
    echo "$how; $said; weir doctor: $code"
    [ "$how" = "1 1 " ] && [ -n "$said" ] && [ $code = 1 ] && grep -q '^io_uring_disabled  *FAILED' /run/doctor
}

failed() {
    units=$(systemctl --failed --plain --no-legend)
    echo "$units"
    [ -z "$units" ]
}

check "the service is active" active
check "it runs as weir with its capabilities" identity
check "LimitMEMLOCK holds" memlock
check "each NUMA node has its hugepages" hugepages
check "they were reserved before anything else" early
check "kernel settings were applied at boot" settings
check "every kernel probe is attached" probes
check "a stream arrives whole, through hugepages" stream
check "hugepages of each shard are on its NUMA node" placement huge require 2048
check "ordinary pages of each shard are on its NUMA node" placement small off 4
check "AllowedCPUs= that shrinks and grows is followed" cpuset
check "weir doctor finds nothing that keeps a daemon from running" doctor
check "no unit has failed" failed
if [ -e /proc/sys/kernel/io_uring_disabled ]; then
    check "kernel.io_uring_disabled=2 ends the daemon with its name, and the doctor agrees" switched_off
else
    echo "left|kernel.io_uring_disabled=2|this kernel has no such switch"
fi
echo end
sync
systemctl poweroff --force
