//! Every flag of TGI's launcher and router, and what it becomes here. The launcher accepts and refuses flags by this table, and
//! `check-tgi-args` explains them by it, so the two cannot disagree.

use penstock_router::base::boolean::boolean;

/// How a flag or a variable of TGI is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It means here what it means in TGI; the note says what differs, and is empty if nothing does.
    Kept(&'static str),
    /// It has another name here, which the note gives without dashes.
    Renamed(&'static str),
    /// Accepted, and nothing changes, for the reason in the note.
    NoEffect(&'static str),
    /// Refused, because what is served would not be what was asked for; the note says what to do instead.
    Refused(&'static str),
    /// Not read, and something would have to be; the note says what to set.
    Unknown(&'static str),
}

/// One flag of TGI's launcher or router.
#[derive(Debug)]
pub struct TgiFlag {
    /// The name without dashes.
    pub name: &'static str,
    /// Its environment variable; empty where it has none.
    pub env: &'static str,
    pub status: Status,
}

macro_rules! flags {
    ($($status:ident $name:literal $env:literal $note:literal)*) => {
        &[$(TgiFlag { name: $name, env: $env, status: Status::$status($note) }),*]
    };
}

/// All flags of TGI.
pub const FLAGS: &[TgiFlag] = flags! {
    Kept "model-id" "MODEL_ID" ""
    Kept "revision" "REVISION" ""
    Kept "validation-workers" "VALIDATION_WORKERS" ""
    Kept "sharded" "SHARDED" ""
    Kept "num-shard" "NUM_SHARD" ""
    Kept "dtype" "DTYPE" ""
    Kept "kv-cache-dtype" "KV_CACHE_DTYPE" ""
    Kept "quantize" "QUANTIZE" "quantizes at load, or names the format of the folder, which is read from there in any case"
    Kept "max-concurrent-requests" "MAX_CONCURRENT_REQUESTS" ""
    Kept "max-best-of" "MAX_BEST_OF" ""
    Kept "max-stop-sequences" "MAX_STOP_SEQUENCES" ""
    Kept "max-top-n-tokens" "MAX_TOP_N_TOKENS" ""
    Kept "max-input-tokens" "MAX_INPUT_TOKENS" ""
    Renamed "max-input-length" "MAX_INPUT_LENGTH" "max-input-tokens"
    Kept "max-total-tokens" "MAX_TOTAL_TOKENS" ""
    Kept "max-batch-prefill-tokens" "MAX_BATCH_PREFILL_TOKENS" "the most tokens of one step, decodes included"
    Kept "max-batch-total-tokens" "MAX_BATCH_TOTAL_TOKENS" "sets the size of the KV cache; TGI ignores it for most models"
    Kept "max-batch-size" "MAX_BATCH_SIZE" "holds at every step"
    Kept "cuda-graphs" "CUDA_GRAPHS" ""
    Kept "hostname" "HOSTNAME" ""
    Kept "port" "PORT" ""
    Kept "huggingface-hub-cache" "HUGGINGFACE_HUB_CACHE" ""
    Kept "cuda-memory-fraction" "CUDA_MEMORY_FRACTION" ""
    Kept "lora-adapters" "LORA_ADAPTERS" "every kind that PEFT writes; they are loaded before the server is ready"
    Kept "speculate" "SPECULATE" "tokens are drafted by heads of MEDUSA where the model has them, else from those of the sequence"
    Kept "json-output" "JSON_OUTPUT" ""
    Kept "otlp-endpoint" "OTLP_ENDPOINT" ""
    Kept "otlp-service-name" "OTLP_SERVICE_NAME" ""
    Kept "cors-allow-origin" "CORS_ALLOW_ORIGIN" ""
    Kept "api-key" "API_KEY" "upper and lower case count; /info, /v1/models and /chat_tokenize ask for it, too"
    Kept "watermark-gamma" "WATERMARK_GAMMA" ""
    Kept "watermark-delta" "WATERMARK_DELTA" ""
    Kept "rope-scaling" "ROPE_SCALING" ""
    Kept "rope-factor" "ROPE_FACTOR" "without --rope-scaling it is linear, as in TGI"
    Kept "tokenizer-config-path" "TOKENIZER_CONFIG_PATH" "a local file"
    Kept "disable-grammar-support" "DISABLE_GRAMMAR_SUPPORT" ""
    Kept "env" "" ""
    Kept "max-client-batch-size" "MAX_CLIENT_BATCH_SIZE" ""
    Kept "payload-limit" "PAYLOAD_LIMIT" ""
    Kept "graceful-termination-timeout" "GRACEFUL_TERMINATION_TIMEOUT" ""
    NoEffect "trust-remote-code" "TRUST_REMOTE_CODE" "code of a model folder is never run"
    NoEffect "waiting-served-ratio" "WAITING_SERVED_RATIO" "requests join the batch at any step; see --target-itl-ms"
    NoEffect "max-waiting-tokens" "MAX_WAITING_TOKENS" "requests join the batch at any step; see --target-itl-ms"
    NoEffect "prometheus-port" "PROMETHEUS_PORT" "metrics are at /metrics of --port"
    NoEffect "shard-uds-path" "SHARD_UDS_PATH" "sockets are in a private folder of each run"
    NoEffect "master-shard-uds-path" "MASTER_SHARD_UDS_PATH" "sockets are in a private folder of each run"
    Kept "master-addr" "MASTER_ADDR" "used with --nnodes; shards of one machine meet in a private folder"
    Kept "master-port" "MASTER_PORT" "used with --nnodes; shards of one machine meet in a private folder"
    NoEffect "disable-custom-kernels" "DISABLE_CUSTOM_KERNELS" "kernels are chosen by --device"
    NoEffect "ngrok" "NGROK" "no tunnel is opened"
    NoEffect "ngrok-authtoken" "NGROK_AUTHTOKEN" "no tunnel is opened"
    NoEffect "ngrok-edge" "NGROK_EDGE" "no tunnel is opened"
    NoEffect "usage-stats" "USAGE_STATS" "nothing is ever reported to anyone"
    NoEffect "enable-prefill-logprobs" "ENABLE_PREFILL_LOGPROBS" "always possible, by `decoder_input_details`"
    NoEffect "max-image-fetch-size" "MAX_IMAGE_FETCH_SIZE" "images are refused, none is ever fetched"
    Refused "tokenizer-name" "TOKENIZER_NAME" "name the model by --model-id, or another tokenizer by --tokenizer"
    Refused "weights-cache-override" "WEIGHTS_CACHE_OVERRIDE" "name the folder by --model-id"
};

/// Flags that need not be given in TGI, and without which this server does something else: the flag, and what.
pub const OTHER_DEFAULTS: &[(&str, &str)] = &[
    ("model-id", "without it the demo model is served"),
    ("hostname", "without it the server listens on 127.0.0.1; TGI listens on 0.0.0.0"),
    ("cors-allow-origin", "without it no page of another origin may call the server; TGI allows all"),
];

/// The flag with this name, which has no dashes.
pub fn find(name: &str) -> Option<&'static TgiFlag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Manifests often spell out what is off, and what is off needs no counterpart.
pub fn is_on(value: &str) -> bool {
    !value.is_empty() && boolean(value).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Arg, Args as _, Command, CommandFactory, Parser};

    use super::*;
    use crate::args::Args;
    use crate::tgi::TgiArgs;

    /// The flags of TGI 3.3, each with a value that it takes; the last three are its router's.
    const OF_TGI: &str = "--model-id=m --revision=r --validation-workers=2 --sharded=true --num-shard=2 --quantize=awq \
        --speculate=2 --dtype=float16 --kv-cache-dtype=fp8_e4m3fn --trust-remote-code --max-concurrent-requests=128 \
        --max-best-of=2 --max-stop-sequences=4 --max-top-n-tokens=5 --max-input-tokens=1 --max-input-length=1 \
        --max-total-tokens=2 --waiting-served-ratio=0.3 --max-batch-prefill-tokens=4096 --max-batch-total-tokens=9 \
        --max-waiting-tokens=20 --max-batch-size=1 --cuda-graphs=1,2,4,8,16,32 --hostname=0.0.0.0 --port=3000 \
        --prometheus-port=9000 --shard-uds-path=/x --master-addr=localhost --master-port=29500 \
        --huggingface-hub-cache=/c --weights-cache-override=/w --disable-custom-kernels --cuda-memory-fraction=1.0 \
        --rope-scaling=linear --rope-factor=2 --json-output --otlp-endpoint=x --otlp-service-name=x \
        --cors-allow-origin=http://a --api-key=k --watermark-gamma=0.5 --watermark-delta=2.0 --ngrok \
        --ngrok-authtoken=x --ngrok-edge=x --tokenizer-config-path=x --disable-grammar-support --env \
        --max-client-batch-size=4 --lora-adapters=a --usage-stats=on --payload-limit=2000000 \
        --enable-prefill-logprobs --graceful-termination-timeout=90 --max-image-fetch-size=1 \
        --tokenizer-name=t --master-shard-uds-path=/x";

    fn name(argument: &str) -> &str {
        argument.trim_start_matches("--").split('=').next().expect("split gives one part at least")
    }

    #[test]
    fn the_table_has_every_flag_of_tgi_and_no_other() {
        let of_tgi: BTreeSet<&str> = OF_TGI.split_whitespace().map(name).collect();
        let rows: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
        assert_eq!(rows.iter().copied().collect::<BTreeSet<_>>(), of_tgi);
        assert_eq!(rows.len(), of_tgi.len(), "a flag has two rows");
    }

    #[test]
    fn variables_are_named_as_tgi_names_them() {
        for flag in FLAGS.iter().filter(|flag| flag.name != "env") {
            assert_eq!(flag.env, flag.name.to_uppercase().replace('-', "_"));
        }
    }

    #[test]
    fn the_launcher_parses_every_flag_of_tgi() {
        for argument in OF_TGI.split_whitespace() {
            let parsed = Args::try_parse_from(["launcher", "--model-id=m", argument]);
            assert_eq!(parsed.map(drop).map_err(|error| error.to_string()), Ok(()), "{argument}");
        }
    }

    #[test]
    fn the_table_declares_what_has_no_counterpart_and_the_launcher_the_rest() {
        let by_table = TgiArgs::augment_args(Command::new("table"));
        let own = Args::command();
        let own = |name: &str| own.get_arguments().find(|arg| arg.get_long() == Some(name));
        for flag in FLAGS {
            let declared = by_table.get_arguments().any(|arg| arg.get_long() == Some(flag.name));
            let needs_declaring = matches!(flag.status, Status::NoEffect(_) | Status::Refused(_));
            assert_eq!(declared, needs_declaring, "--{}", flag.name);
            match flag.status {
                Status::Renamed(to) => {
                    let aliases = own(to).and_then(Arg::get_all_aliases).unwrap_or_default();
                    assert!(aliases.contains(&flag.name), "--{} is no alias of --{to}", flag.name);
                }
                _ => {
                    let env = own(flag.name).expect("declared").get_env();
                    let env = env.map(|env| env.to_string_lossy().into_owned());
                    assert_eq!(env.unwrap_or_default(), flag.env);
                }
            }
        }
    }

    #[test]
    fn other_defaults_are_those_of_flags_that_are_kept() {
        for (name, _) in OTHER_DEFAULTS {
            assert!(find(name).is_some_and(|flag| matches!(flag.status, Status::Kept(_))), "{name}");
        }
    }
}
