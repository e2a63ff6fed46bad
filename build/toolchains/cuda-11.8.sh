#!/usr/bin/env bash
# Gets CUDA 11.8 for sm_70, which CUDA 13 no longer targets: "cuda-11.8.sh [FOLDER]", by default the
# folder cuda-11.8 beside this script, where gemmsmith looks by itself. Needs no root and installs
# nothing: Debian 12's packages are downloaded with apt (900 MB) and unpacked (230 MB). g++-11, the
# newest g++ that this nvcc accepts, comes along where PATH has none. Does nothing where all is there.
# DEBIAN_MIRROR names another mirror than the one that apt uses here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${1:-$here/cuda-11.8}
# nvidia-cuda-dev brings the runtime that is linked in; the rest of it is libraries nobody needs here.
compiler=(nvidia-cuda-toolkit nvidia-cuda-dev libcu++-dev)
host=(g++-11 gcc-11 cpp-11 libgcc-11-dev libstdc++-11-dev)

sorry() {
    echo "cuda-11.8.sh: $1" >&2
    exit 1
}

# Prints nothing where the toolkit in folder $1 compiles and links for sm_70; else what it says.
fault_of() {
    local at=$1 trial
    if [[ $("$at/bin/nvcc" --version 2>&1) != *'release 11.8'* ]]; then
        echo "$at/bin/nvcc is no nvcc 11.8"
        return
    fi
    trial=$(mktemp -d)
    cat >"$trial/trial.cu" <<'CODE'
#include <cuda_fp16.h>
#include <cuda/std/utility>
#include <string>
__global__ void twice(__half *x) { x[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]); }
extern "C" int launch(void *x) {
  twice<<<1, 32>>>(static_cast<__half *>(x));
  return std::string(cudaGetErrorString(cudaGetLastError())).size();
}
CODE
    if ! "$at/bin/nvcc" -ccbin "$at/bin/g++-11" -std=c++17 -shared -Xcompiler=-fPIC \
        -cudart=static -gencode=arch=compute_70,code=sm_70 -o "$trial/trial.so" "$trial/trial.cu" \
        >"$trial/log" 2>&1; then
        echo "a trial compile for sm_70 failed: $(head -c 2000 "$trial/log")"
    elif [[ $("$at/bin/cuobjdump" --list-elf "$trial/trial.so" 2>&1) != *sm_70* ]]; then
        echo "a trial compile for sm_70 holds no code for it"
    fi
    rm -rf "$trial"
}

if [[ -e $target ]]; then
    fault=$(fault_of "$target")
    [[ -z $fault ]] || sorry "$fault; remove $target to have it made anew"
    echo "CUDA 11.8 is at $target"
    exit 0
fi

for tool in apt-get dpkg dpkg-deb tar; do
    command -v "$tool" >/dev/null ||
        sorry "no $tool: this works on Debian and its kin; elsewhere install CUDA 11.4 to 12.9 and name its folder in GEMMSMITH_TOOLKITS"
done
command -v g++ >/dev/null || sorry "no g++, whose linker and C library are used: apt install g++"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -r $keyring ]] || sorry "no $keyring, which the packages are checked with: apt install debian-archive-keyring"
mkdir -p "$(dirname "$target")" 2>/dev/null && [[ -w $(dirname "$target") ]] ||
    sorry "$(dirname "$target") cannot be written: name another folder, cuda-11.8.sh FOLDER, and set GEMMSMITH_TOOLKITS to it"

work=$(mktemp -d "$target.XXXXXX")
trap 'rm -rf "$work"' EXIT
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' |
    sed -n 's/^Packages bookworm main //p' | head -n 1)}
mirror=${mirror:-http://deb.debian.org/debian}
# A package index, a cache and a configuration of our own: that of the machine stays as it is.
mkdir -p "$work"/apt/{lists,cache/archives}/partial "$work"/{debs,root,toolkit}
echo "deb [target=Packages signed-by=$keyring] $mirror bookworm main contrib non-free" >"$work/apt/sources"
cat >"$work/apt/conf" <<CONF
Dir::Etc::SourceList "$work/apt/sources";
Dir::Etc::SourceParts "-";
Dir::State::Lists "$work/apt/lists";
Dir::Cache "$work/apt/cache";
APT::Sandbox::User "$(id -un)";
Acquire::Retries "3";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
apt() {
    apt-get -qq -c "$work/apt/conf" "$@"
}

packages=("${compiler[@]}")
own_host=$(command -v g++-11 || true)
[[ -n $own_host ]] || packages+=("${host[@]}")
echo "getting ${packages[*]} from $mirror (900 MB)"
apt update || sorry "no package index from $mirror (see above); DEBIAN_MIRROR names another mirror"
(cd "$work/debs" && apt download "${packages[@]}") ||
    sorry "a package could not be had from $mirror (see above); DEBIAN_MIRROR names another mirror"

echo "unpacking (half a minute)"
multiarch=$(uname -m)-linux-gnu
for deb in "$work"/debs/*.deb; do
    case ${deb##*/} in
    nvidia-cuda-dev_*)
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$work/root" --wildcards './usr/include/*' \
            "./usr/lib/$multiarch/libcudart_static.a" "./usr/lib/$multiarch/libcudadevrt.a"
        ;;
    *) dpkg-deb -x "$deb" "$work/root" ;;
    esac
    rm "$deb"
done

# The usual layout of a toolkit, which can be moved, in place of Debian's absolute paths.
from=$work/root/usr to=$work/toolkit
mkdir -p "$to"/{bin,lib64,nvvm/bin}
mv "$from"/lib/nvidia-cuda-toolkit/bin/{nvcc,crt} "$to/bin"
mv "$from"/bin/{ptxas,fatbinary,cudafe++,nvlink,bin2c,cuobjdump,nvdisasm} "$to/bin"
mv "$from/lib/nvidia-cuda-toolkit/bin/cicc" "$to/nvvm/bin"
mv "$from/lib/nvidia-cuda-toolkit/libdevice" "$to/nvvm"
mv "$from"/lib/"$multiarch"/libcud{art_static,adevrt}.a "$to/lib64"
if [[ -n $own_host ]]; then
    ln -s "$own_host" "$to/bin/g++-11"
else
    # gcc finds its parts from where it stands; the machine's libstdc++.so.6 does not stand there.
    mkdir -p "$to/gcc"/{bin,lib}
    mv "$from/bin/$multiarch-g++-11" "$to/gcc/bin"
    mv "$from/lib/gcc" "$to/gcc/lib"
    mkdir -p "$to/gcc/include/$multiarch"
    mv "$from/include/c++" "$to/gcc/include"
    mv "$from/include/$multiarch/c++" "$to/gcc/include/$multiarch"
    rm -f "$to/gcc/lib/gcc/$multiarch/11"/{lto1,cc1,lto-wrapper}
    ln -sf "$(g++ -print-file-name=libstdc++.so.6)" "$to/gcc/lib/gcc/$multiarch/11/libstdc++.so"
    ln -s "../gcc/bin/$multiarch-g++-11" "$to/bin/g++-11"
fi
mv "$from/include" "$to/include"
cat >"$to/bin/nvcc.profile" <<'PROFILE'
TOP                = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH              += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES          += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES         =+ $(_SPACE_) "-L$(TOP)/lib64"
PROFILE

fault=$(fault_of "$to")
[[ -z $fault ]] || sorry "$fault"
mv -T "$to" "$target"
echo "CUDA 11.8 is at $target, with $("$target/bin/g++-11" --version | head -n 1)"
