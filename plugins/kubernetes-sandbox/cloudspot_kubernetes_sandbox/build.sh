#!/usr/bin/env bash
# Builds a Kubernetes control plane from Debian's source packages, as root on Debian 12 or what is made of it.
#
#     build.sh DIR    puts kube-apiserver, kube-controller-manager, kube-scheduler, etcd and kubectl into DIR/bin
#
# It skips each step whose result is there, so a run that broke off is repeated as it is.
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
mkdir -p "$1/bin" "$1/deb" "$1/home"
dir=$(cd "$1" && pwd)
apt() { apt-get -q -o APT::Sandbox::User=root "$@"; }

# Source packages come from the archive of the binary ones, by the same key.
if ! apt-cache showsrc kubernetes 2>/dev/null | grep '^Package: kubernetes$' >/dev/null; then
    if [ -e /etc/apt/sources.list.d/debian.sources ]; then
        sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources \
            >/etc/apt/sources.list.d/cloudspot-src.sources
    else
        sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >/etc/apt/sources.list.d/cloudspot-src.list
    fi
    apt-get -q update
fi
# Only what is missing: apt-get install of what is there upgrades it.
missing=()
for want in golang-go:/usr/lib/go/bin/go dpkg-dev:dpkg-source make:make rsync:rsync openssl:openssl; do
    command -v "${want#*:}" >/dev/null || missing+=("${want%:*}")
done
[ ${#missing[@]} = 0 ] ||
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}"

# Unpacked and not installed: the packages would start a daemon, and replace another kubectl.
cd "$dir/deb"
for want in etcd-server:etcd kubernetes-client:kubectl; do
    [ ! -x "$dir/bin/${want#*:}" ] || continue
    rm -rf unpacked
    apt download "${want%:*}"
    dpkg -x "${want%:*}"_*.deb unpacked
    install -m 755 "unpacked/usr/bin/${want#*:}" "$dir/bin/"
    rm -rf unpacked
done

cd "$dir"
if [ ! -e src/Makefile ]; then
    apt source --download-only kubernetes
    rm -rf src
    dpkg-source -x kubernetes_*.dsc src
fi
cd src
# The reflect2 1.0.1 that the source carries corrupts memory when Go 1.18 or later builds it: the API server dies
# at its first requests. Debian packages 1.0.2, which has the fix.
fixed=vendor/github.com/modern-go/reflect2
if [ ! -e $fixed/go_above_118.go ]; then
    (cd "$dir/deb" && apt download golang-github-modern-go-reflect2-dev &&
        dpkg -x golang-github-modern-go-reflect2-dev_*.deb unpacked)
    rm -f $fixed/*.go $fixed/*.s
    cp "$dir"/deb/unpacked/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} $fixed/
    rm -f $fixed/*_test.go
fi
# Without the clouds' SDKs (providerless), which are most of the time that it takes to compile. No setting of the
# caller's Go is read or written, and no module is fetched: the source has all of them.
env -i PATH=/usr/lib/go/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$dir/home" LC_ALL=C.UTF-8 \
    CGO_ENABLED=0 GOPROXY=off GOFLAGS=-tags=providerless GOLDFLAGS="-s -w" GIT_CEILING_DIRECTORIES="$dir" \
    make all WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler"
out=_output/local/bin/linux/$(dpkg --print-architecture)
install -m 755 "$out"/kube-apiserver "$out"/kube-controller-manager "$out"/kube-scheduler "$dir/bin/"
# The source and what was made on the way have 3 GB.
cd "$dir"
rm -rf src deb home kubernetes_*
"$dir/bin/kube-apiserver" --version
