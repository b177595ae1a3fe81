#!/usr/bin/env bash
# Builds llama.cpp's server, for this processor alone, from the sources that the PyPI package llama-cpp-python carries,
# and prints the binary's path. Takes a quarter of an hour on two cores, the first time; needs cmake, a C++ compiler and pip.
#
#   export LLAMA_SERVER=$(benchmarks/compare/build_llama_cpp.sh [FOLDER])
set -euo pipefail

folder=${1:-target/llama.cpp}
# Its products by AMX end the server with a protection fault in `ldtilecfg`, where the same instruction works elsewhere.
no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
package=llama_cpp_python-0.3.36
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
# Unpacked again, the sources would be newer than what was built of them.
unpacked="$folder/.unpacked-$package"
if [ ! -e "$unpacked" ]; then
    python3 -m pip download --no-deps --no-binary llama-cpp-python --dest "$folder" "${package/_python-/_python==}" >&2
    tar -xzf "$folder/$package.tar.gz" -C "$folder"
    touch "$unpacked"
fi
{
    cmake -S "$folder/$package/vendor/llama.cpp" -B "$folder/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DCMAKE_C_FLAGS="$no_amx" -DCMAKE_CXX_FLAGS="$no_amx" \
        -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
    cmake --build "$folder/build" --target llama-server -j "$(nproc)"
} >&2
echo "$folder/build/bin/llama-server"
