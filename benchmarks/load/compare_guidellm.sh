#!/usr/bin/env bash
# Measures one server with guidellm and with penstock-bench under the same load, and fails if a figure differs by more
# than 5%. See docs/benchmarking.md.
#
#   compare_guidellm.sh URL MODEL TOKENIZER_FOLDER
#
# Settings: GUIDELLM and BENCH (the commands), STREAMS, REQUESTS, INPUT_LEN, OUTPUT_LEN, TOLERANCE (percent), WORK (a
# folder for the results). guidellm wants a virtual environment of its own: python -m venv v; v/bin/pip install guidellm
set -euo pipefail

url=${1:?usage: compare_guidellm.sh URL MODEL TOKENIZER_FOLDER}
model=${2:?MODEL is missing}
tokenizer=${3:?TOKENIZER_FOLDER is missing}
guidellm=${GUIDELLM:-guidellm}
bench=${BENCH:-penstock-bench}
streams=${STREAMS:-8}
requests=${REQUESTS:-160}
input_len=${INPUT_LEN:-64}
output_len=${OUTPUT_LEN:-64}
work=${WORK:-$(mktemp -d)}

HF_HUB_OFFLINE=1 "$guidellm" run \
    --backend "kind=openai_http,target=$url,model=$model,request_format=/v1/completions,http2=false" \
    --profile "kind=concurrent,streams=$streams" \
    --constraint "kind=max_requests,count=$requests" \
    --tokenizer "kind=huggingface_auto,model=$tokenizer" \
    --data "kind=synthetic_text,prompt_tokens=$input_len,output_tokens=$output_len" \
    --output "kind=json,path=$work/guidellm.json" --disable-console

"$bench" run --url "$url" --model "$model" --api completions --tokenizer "$tokenizer" \
    --concurrency "$streams" --num-requests "$requests" --input-len "$input_len" --output-len "$output_len" \
    --ignore-eos --quiet --output "$work/bench.json" > "$work/bench.txt"

python3 - "$work" "${TOLERANCE:-5}" <<'PY'
"""Compares the figures that both tools report; the names on the left are penstock-bench's."""
import json
import sys

work, tolerance = sys.argv[1], float(sys.argv[2])
ours = json.load(open(f"{work}/bench.json"))["runs"][0]["summary"]
theirs = json.load(open(f"{work}/guidellm.json"))["benchmarks"][0]["metrics"]
mean = lambda name: theirs[name]["successful"]["mean"]
latency, throughput = ours["latency_ms"], ours["throughput"]
rows = [
    ("requests/s", throughput["requests_per_s"], mean("requests_per_second")),
    ("output tokens/s", throughput["output_tokens_per_s"], mean("output_tokens_per_second")),
    ("output tokens/request", ours["tokens"]["output_per_request"]["mean"], mean("output_token_count")),
    ("TTFT mean, ms", latency["ttft"]["mean"], mean("time_to_first_token_ms")),
    # guidellm's inter-token latency is a mean per request, which is our time per output token
    ("TPOT mean, ms", latency["tpot"]["mean"], mean("inter_token_latency_ms")),
    ("E2E mean, ms", latency["e2e"]["mean"], 1e3 * mean("request_latency")),
]
worst = 0.0
print(f"{'':24}{'penstock-bench':>16}{'guidellm':>12}{'difference':>12}")
for name, mine, other in rows:
    difference = 100 * (mine / other - 1)
    worst = max(worst, abs(difference))
    print(f"{name:24}{mine:16.2f}{other:12.2f}{difference:+11.2f}%")
if worst > tolerance:
    sys.exit(f"differs by {worst:.1f}%, more than {tolerance:g}%")
PY
