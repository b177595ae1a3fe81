//! Flags of text-generation-inference that have no counterpart here. Those that change nothing a client can see are
//! accepted with a warning, so that manifests can be kept; those that would change what is served are refused by name.

use clap::{Arg, ArgMatches, Command, FromArgMatches};
use thiserror::Error;

/// What becomes of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Accepted, and nothing changes.
    None,
    /// Refused: what is served would not be what was asked for.
    Missing,
}

struct Flag {
    name: &'static str,
    env: &'static str,
    effect: Effect,
    /// Why nothing changes, or what is missing.
    why: &'static str,
}

macro_rules! flags {
    ($($effect:ident $name:literal $env:literal $why:literal)*) => {
        &[$(Flag { name: $name, env: $env, effect: Effect::$effect, why: $why }),*]
    };
}

const FLAGS: &[Flag] = flags! {
    None "speculate" "SPECULATE" "no tokens are guessed ahead yet; the output would be the same"
    None "trust-remote-code" "TRUST_REMOTE_CODE" "code of a model folder is never run"
    None "waiting-served-ratio" "WAITING_SERVED_RATIO" "requests join the batch at any step; see --target-itl-ms"
    None "max-waiting-tokens" "MAX_WAITING_TOKENS" "requests join the batch at any step; see --target-itl-ms"
    None "prometheus-port" "PROMETHEUS_PORT" "metrics are at /metrics of --port"
    None "shard-uds-path" "SHARD_UDS_PATH" "sockets are in a private folder of each run"
    None "master-addr" "MASTER_ADDR" "shards of one machine meet in a private folder"
    None "master-port" "MASTER_PORT" "shards of one machine meet in a private folder"
    None "disable-custom-kernels" "DISABLE_CUSTOM_KERNELS" "kernels are chosen by --device"
    None "ngrok" "NGROK" "no tunnel is opened"
    None "ngrok-authtoken" "NGROK_AUTHTOKEN" "no tunnel is opened"
    None "ngrok-edge" "NGROK_EDGE" "no tunnel is opened"
    None "usage-stats" "USAGE_STATS" "nothing is ever reported to anyone"
    None "enable-prefill-logprobs" "ENABLE_PREFILL_LOGPROBS" "always possible, by `decoder_input_details`"
    None "max-image-fetch-size" "MAX_IMAGE_FETCH_SIZE" "images are refused, none is ever fetched"
    Missing "quantize" "QUANTIZE" "weights are served as they are stored"
    Missing "lora-adapters" "LORA_ADAPTERS" "adapters are not served yet"
    Missing "rope-scaling" "ROPE_SCALING" "positions are as config.json has them"
    Missing "rope-factor" "ROPE_FACTOR" "positions are as config.json has them"
    Missing "tokenizer-config-path" "TOKENIZER_CONFIG_PATH" "the chat template is that of the model folder"
    Missing "weights-cache-override" "WEIGHTS_CACHE_OVERRIDE" "name the folder by --model-id"
};

/// Those that were given, in the order above.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TgiArgs(Vec<&'static str>);

/// A flag that cannot be ignored.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("--{name} is not supported: {why}")]
pub struct NotSupported {
    name: &'static str,
    why: &'static str,
}

impl TgiArgs {
    /// A line for each that changes nothing; an error for the first that should.
    pub fn warnings(&self) -> Result<Vec<String>, NotSupported> {
        self.0.iter().filter_map(|name| FLAGS.iter().find(|flag| flag.name == *name)).map(warning).collect()
    }
}

fn warning(flag: &Flag) -> Result<String, NotSupported> {
    let Flag { name, why, .. } = *flag;
    match flag.effect {
        Effect::None => Ok(format!("--{name} changes nothing here: {why}")),
        Effect::Missing => Err(NotSupported { name, why }),
    }
}

impl clap::Args for TgiArgs {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, flag| command.arg(arg(flag)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(flag: &Flag) -> Arg {
    let effect = if flag.effect == Effect::None { "No effect" } else { "Refused" };
    let help = format!("{effect}: {}", flag.why);
    Arg::new(flag.name).long(flag.name).env(flag.env).num_args(0..=1).default_missing_value("true").help(help)
}

impl FromArgMatches for TgiArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |flag: &&Flag| matches.get_one::<String>(flag.name).is_some_and(|value| is_on(value));
        Ok(Self(FLAGS.iter().filter(is_given).map(|flag| flag.name).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Manifests often spell out what is off.
fn is_on(value: &str) -> bool {
    !["", "0", "false", "off"].contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn warnings(line: &str) -> Result<Vec<String>, NotSupported> {
        Args::try_parse_from(line.split_whitespace()).expect("valid flags").tgi.warnings()
    }

    #[test]
    fn what_changes_nothing_is_told_in_a_line_each() {
        let told =
            warnings("launcher --speculate 3 --trust-remote-code --usage-stats off --ngrok=false --port 80");
        assert_eq!(
            told,
            Ok(vec![
                "--speculate changes nothing here: no tokens are guessed ahead yet; the output would be the same".into(),
                "--trust-remote-code changes nothing here: code of a model folder is never run".into(),
            ])
        );
    }

    #[test]
    fn what_would_change_the_output_is_refused_by_name() {
        let refused = warnings("launcher --speculate 3 --quantize awq").expect_err("refused");
        assert_eq!(refused.to_string(), "--quantize is not supported: weights are served as they are stored");
    }

    #[test]
    fn every_flag_of_tgi_is_known() {
        let flags = "--model-id m --revision r --validation-workers 2 --sharded true --num-shard 2 --dtype float16 \
            --max-concurrent-requests 1 --max-best-of 1 --max-stop-sequences 1 --max-top-n-tokens 1 \
            --max-input-tokens 1 --max-input-length 1 --max-total-tokens 2 --waiting-served-ratio 0.3 \
            --max-batch-prefill-tokens 9 --max-batch-total-tokens 9 --max-waiting-tokens 20 --max-batch-size 1 \
            --cuda-graphs 1,2 --hostname 0.0.0.0 --port 80 --prometheus-port 9000 --shard-uds-path /x \
            --master-addr localhost --master-port 29500 --huggingface-hub-cache /c --disable-custom-kernels \
            --cuda-memory-fraction 1.0 --json-output --otlp-endpoint x --otlp-service-name x \
            --cors-allow-origin http://a --cors-allow-origin http://b --api-key k --watermark-gamma 0.5 \
            --watermark-delta 2.0 --ngrok --ngrok-authtoken x --ngrok-edge x --tokenizer-config-path x \
            --env --max-client-batch-size 4 --lora-adapters a --usage-stats on --payload-limit 1 \
            --enable-prefill-logprobs --graceful-termination-timeout 9 --quantize awq --speculate 2 \
            --kv-cache-dtype fp8_e4m3fn --trust-remote-code --rope-scaling linear --rope-factor 2 \
            --weights-cache-override /w --disable-grammar-support --max-image-fetch-size 1";
        let args = Args::try_parse_from(std::iter::once("launcher").chain(flags.split_whitespace()));
        assert_eq!(args.map(|args| args.tgi.0.len()).map_err(|error| error.to_string()), Ok(FLAGS.len()));
    }
}
