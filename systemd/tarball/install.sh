#!/bin/sh
# Installs Weir from this directory on a machine with systemd, or takes it away again.
set -eu
# Directories are for all to read, whoever makes them.
umask 022

usage() {
    cat <<'TEXT'
usage: ./install.sh install      install or upgrade; a configuration that is there is kept
       ./install.sh uninstall    stop and remove the service and all files but the configuration
       ./install.sh purge        the same, and the configuration too, with the cluster key
With DESTDIR set, files go below it and no service or user is touched.
TEXT
}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

root=${DESTDIR:-}
units="weir.service weir-hugepages.service"
here=$(cd "$(dirname "$0")" && pwd)

# Whether the services of this machine are meant, and systemd runs them.
is_live() { [ -z "$root" ] && [ -d /run/systemd/system ]; }

# Whether the files of this machine are dpkg's. Of a package that was removed it has the configuration at most.
is_packaged() {
    # shellcheck disable=SC2016 # The name of a field.
    case "$(dpkg-query --show --showformat '${db:Status-Status}' weir 2>/dev/null)" in
    '' | not-installed | config-files) false ;;
    esac
}

files() { cat "$here/files.list"; }

# Files that administrators edit.
is_configuration() { case "$1" in etc/*) true ;; *) false ;; esac }

install_files() {
    files | while read -r mode path; do
        target=$root/$path
        if is_configuration "$path" && [ -e "$target" ]; then
            cmp -s "$here/root/$path" "$target" && continue
            echo "install.sh: $target is kept; the new one is $target.new"
            target=$target.new
        fi
        mkdir -p "${target%/*}"
        # A program that runs cannot be written over; one beside it takes its place.
        cp "$here/root/$path" "$target.install"
        chmod "$mode" "$target.install"
        mv -f "$target.install" "$target"
    done
    mkdir -p "$root/etc/weir/conf.d"
}

remove_files() {
    files | while read -r _ path; do
        is_configuration "$path" || rm -f "$root/$path"
    done
    # Directories that are Weir's alone.
    for directory in usr/share/doc/weir usr/share/weir; do
        [ ! -d "$root/$directory" ] || find "$root/$directory" -depth -type d -empty -delete
    done
}

do_install() {
    install_files
    if [ -z "$root" ]; then
        systemd-sysusers weir.conf
        systemd-tmpfiles --create weir.conf
    fi
    if is_live; then
        systemctl daemon-reload
        /usr/lib/systemd/systemd-sysctl --prefix=/net/ipv4/tcp_rmem --prefix=/net/ipv4/tcp_wmem || true
        # Only if it runs: an upgrade.
        systemctl try-restart weir.service
    fi
    echo "install.sh: installed. Edit /etc/weir/weir.toml, then: systemctl enable --now weir-hugepages weir"
}

do_uninstall() {
    # shellcheck disable=SC2086 # Two words.
    ! is_live || systemctl disable --now $units 2>/dev/null || true
    remove_files
    ! is_live || systemctl daemon-reload
    [ -n "$root" ] || rm -rf /run/weir
}

[ $# -eq 1 ] || { usage >&2; exit 2; }
case "$1" in
-h | --help) usage; exit 0 ;;
install | uninstall | purge) ;;
*) usage >&2; exit 2 ;;
esac
[ -n "$root" ] || [ "$(id -u)" = 0 ] || fail "only root can install: sudo ./install.sh $1"
[ -n "$root" ] || ! is_packaged || fail "the package weir is installed: use apt, or remove it first"
case "$1" in
install) do_install ;;
uninstall) do_uninstall ;;
purge)
    do_uninstall
    rm -rf "$root/etc/weir"
    rm -f "$root/etc/default/weir-hugepages" "$root/etc/default/weir-hugepages.new"
    ;;
esac
