//! The workload and the sampling that the flags of a run describe, and the checks across flags that clap cannot make.

use super::{ArrivalKind, CountTokens, InputKind, RunArgs};
use crate::api::Sampling;
use crate::error::Error;
use crate::workload::{Adapters, Source, WorkloadConfig};

impl RunArgs {
    /// Checks what clap cannot: flags that need or exclude one another.
    pub fn check(&self) -> Result<(), Error> {
        self.load.shape()?;
        self.source()?;
        self.check_trace()?;
        self.check_unused()?;
        self.sampling("")?;
        if self.output.count_tokens == CountTokens::Tokenizer && self.input.tokenizer.is_none() {
            return Err(Error::flag(
                "--count-tokens",
                "tokenizer",
                "needs --tokenizer, a folder or `server`",
            ));
        }
        Ok(())
    }

    /// Flags that the others leave without any effect are mistakes; they are refused rather than ignored.
    fn check_unused(&self) -> Result<(), Error> {
        let unused = self.unused_load_flags().into_iter().chain(self.unused_input_flags());
        let first =
            unused.into_iter().find_map(|(flag, value, problem)| Some(Error::flag(flag, value?, problem)));
        first.map_or(Ok(()), Err)
    }

    fn unused_load_flags(&self) -> [Unused; 4] {
        let (load, arrival) = (&self.load, self.load.kind());
        let by_rate = !matches!(arrival, ArrivalKind::Closed | ArrivalKind::Trace);
        let (is_closed, is_gamma, is_ramp) =
            (arrival == ArrivalKind::Closed, arrival == ArrivalKind::Gamma, arrival == ArrivalKind::Ramp);
        let problem = |instead: &str| format!("has no effect with --arrival {}; {instead}", arrival.name());
        [
            ("--rate", given(load.rate, by_rate), problem("use --concurrency or --trace-speed")),
            ("--concurrency", given(load.concurrency, is_closed), problem("use --max-concurrency")),
            ("--burstiness", given(load.burstiness, is_gamma), problem("it needs gamma")),
            ("--ramp-to", given(load.ramp_to, is_ramp), problem("it needs ramp")),
        ]
    }

    fn unused_input_flags(&self) -> [Unused; 4] {
        let (input, kind) = (&self.input, self.input_kind());
        let (is_random, is_prompt) = (kind == InputKind::Random, kind == InputKind::Prompt);
        let ratio = Some(input.range_ratio).filter(|ratio| *ratio > 0.0);
        let prefix = Some(input.prefix_len).filter(|len| *len > 0);
        let dataset = input.dataset.as_ref().map(|path| path.display());
        let problem =
            |instead: &str| format!("has no effect with --input {}; it needs {instead}", kind.name());
        [
            ("--range-ratio", given(ratio, is_random), problem("random")),
            ("--prefix-len", given(prefix, is_random), problem("random")),
            ("--prompt", given(input.prompt.as_ref(), is_prompt), problem("prompt")),
            (
                "--dataset",
                given(dataset, !is_random && !is_prompt),
                problem("sharegpt, jsonl, mooncake or azure"),
            ),
        ]
    }

    fn check_trace(&self) -> Result<(), Error> {
        let has_times =
            matches!(self.input_kind(), InputKind::Mooncake | InputKind::Azure | InputKind::Jsonl);
        if self.load.kind() == ArrivalKind::Trace && !has_times {
            let problem =
                format!("--input {} has no times; use mooncake, azure or jsonl", self.input_kind().name());
            return Err(Error::flag("--arrival", "trace", problem));
        }
        Ok(())
    }

    /// The kind of input that the flags amount to.
    pub fn input_kind(&self) -> InputKind {
        let by_prompt = if self.input.prompt.is_some() { InputKind::Prompt } else { InputKind::Random };
        self.input.input.unwrap_or(by_prompt)
    }

    /// The workload to prepare for one repeat.
    pub fn workload(&self, repeat: usize) -> Result<WorkloadConfig, Error> {
        let input = &self.input;
        Ok(WorkloadConfig {
            source: self.source()?,
            num_sessions: self.load.num_prepared(),
            input_len: input.input_len,
            output_len: input.output_len,
            range_ratio: input.range_ratio,
            prefix_len: input.prefix_len,
            num_prefixes: input.num_prefixes,
            turns: input.turns,
            adapters: self.adapters(),
            seed: self.load.seed.wrapping_add(repeat as u64),
        })
    }

    fn adapters(&self) -> Adapters {
        let target = &self.target;
        Adapters { names: target.adapters.clone(), spread: target.adapter_spread.unwrap_or_default() }
    }

    fn source(&self) -> Result<Source, Error> {
        let kind = self.input_kind();
        let file = || {
            let file = self.input.dataset.clone();
            file.ok_or_else(|| Error::flag("--input", kind.name(), "needs --dataset, the file to read"))
        };
        Ok(match kind {
            InputKind::Random => Source::Random,
            InputKind::Prompt => Source::Prompt(self.prompt_text()?),
            InputKind::Sharegpt => Source::ShareGpt(file()?),
            InputKind::Jsonl => Source::Jsonl(file()?),
            InputKind::Mooncake => Source::Mooncake(file()?),
            InputKind::Azure => Source::Azure(file()?),
        })
    }

    fn prompt_text(&self) -> Result<String, Error> {
        self.input
            .prompt
            .clone()
            .ok_or_else(|| Error::flag("--input", "prompt", "needs --prompt, the text to send"))
    }

    /// The sampling parameters of every request.
    pub fn sampling(&self, model: &str) -> Result<Sampling, Error> {
        let args = &self.sampling;
        let extra = args.extra_body.as_deref().map(parse_object).transpose()?.unwrap_or_default();
        Ok(Sampling {
            model: model.to_owned(),
            ignore_eos: args.ignore_eos,
            temperature: args.temperature,
            top_p: args.top_p,
            top_k: args.top_k,
            seed: args.sampling_seed,
            extra,
        })
    }
}

fn parse_object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::flag("--extra-body", text, format!("not a JSON object: {error}")))
}

/// A flag, its value if it was given in vain, and what to do instead.
type Unused = (&'static str, Option<String>, String);

/// The value of a flag that was given although it is not used.
fn given(value: Option<impl ToString>, is_used: bool) -> Option<String> {
    value.filter(|_| !is_used).map(|value| value.to_string())
}
