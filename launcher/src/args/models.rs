//! The flags about several models in one server.

use std::str::FromStr;

use clap::{ArgAction, Args as ClapArgs};
use penstock_router::proxy::budget::BudgetOptions;

/// Several models in one server.
#[derive(Debug, Clone, ClapArgs)]
pub struct ModelsArgs {
    /// A model of several, as NAME=MODEL, a folder or an id; requests name it. Flags behind it count for it alone, as in
    /// chat=org/m,num_shard=2,quantize=int8; give it again for each model
    // No variable: MODEL is too common a name.
    #[arg(long, action = ArgAction::Append, value_name = "NAME=MODEL[,FLAG=VALUE…]", conflicts_with = "model_id")]
    pub model: Vec<ModelSpec>,

    /// Models that are loaded at once; on the CPU, its cores and memory are divided by as many
    /// [default: as many as --model names]
    #[arg(long, env, requires = "model", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub max_models: Option<u32>,

    /// Which of them are awake
    #[command(flatten)]
    pub budget: BudgetOptions,
}

impl ModelsArgs {
    /// Whether this is a server of several models.
    pub fn are_several(&self) -> bool {
        !self.model.is_empty()
    }

    /// Models that may be loaded at once.
    pub fn most(&self) -> u32 {
        self.max_models.unwrap_or(u32::try_from(self.model.len()).unwrap_or(u32::MAX))
    }

    /// Models that may compute at once, among which the machine is divided. How many of them have room in a budget of bytes
    /// is not asked: it depends on how large the caches are that they make of their parts of the machine.
    pub fn most_awake(&self) -> u32 {
        self.budget.max_awake_models.map_or(self.most(), |awake| awake.min(self.most()))
    }
}

/// One model of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    /// The name of the model in requests.
    pub name: String,
    /// A folder or an id on the hub.
    pub model: String,
    /// Its own flags, without the dashes, and their values.
    pub flags: Vec<(String, String)>,
}

impl FromStr for ModelSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or_else(|| {
            format!("`{text}` has no name: write NAME=MODEL, then flags as in ,num_shard=2")
        })?;
        let mut parts = rest.split(',');
        let model = parts.next().unwrap_or_default();
        let flags = parts.map(flag).collect::<Result<_, _>>()?;
        Self::new(name, model, flags)
    }
}

impl ModelSpec {
    /// A model; refused if its name or its place is none.
    pub fn new(name: &str, model: &str, flags: Vec<(String, String)>) -> Result<Self, String> {
        if name.trim().is_empty() || name.contains(|it: char| it.is_control() || ",=".contains(it)) {
            return Err(format!(
                "`{name}` is no name of a model: it has a character that can be seen, no comma, no `=` and no control characters"
            ));
        }
        if model.is_empty() {
            return Err(format!("the model `{name}` has no folder and no id behind `=`"));
        }
        Ok(Self { name: name.to_owned(), model: model.to_owned(), flags })
    }
}

fn flag(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        format!("`{text}` is no flag with a value, as in num_shard=2; a value cannot have a comma")
    })?;
    Ok((name.trim_start_matches('-').replace('_', "-"), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    #[test]
    fn a_model_has_a_name_a_place_and_flags_of_its_own() {
        let spec: ModelSpec =
            "org/chat=/models/m,num_shard=2,--quantize=int8,lora_adapters=s=/a".parse().expect("valid");
        let flags = [("num-shard", "2"), ("quantize", "int8"), ("lora-adapters", "s=/a")];
        assert_eq!((spec.name.as_str(), spec.model.as_str()), ("org/chat", "/models/m"));
        assert_eq!(spec.flags, flags.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_budget_has_one_limit_or_both_and_divides_the_machine_by_models_alone() {
        let parsed = |line: &str| {
            let words = ["launcher", "--model=a=/m", "--model=b=/m", "--model=c=/m"];
            let args = Args::try_parse_from(words.into_iter().chain(line.split_whitespace()));
            args.map(|args| args.models).map_err(|error| error.to_string())
        };
        for (line, most_awake, max_bytes) in [
            ("--max-awake-gb 7.5", 3, Some(7_500_000_000)),
            ("--max-awake-gb 0.001 --max-models 5 --min-awake-time 9", 5, Some(1_000_000)),
            ("--max-awake-gb 24 --max-awake-models 2 --sleep-level 2", 2, Some(24_000_000_000)),
            ("--max-awake-models 2", 2, None),
        ] {
            let models = parsed(line).expect(line);
            let rules = models.budget.rules().expect("a budget");
            assert_eq!((models.most_awake(), rules.max_bytes), (most_awake, max_bytes), "{line}");
        }
        assert_eq!(parsed("").expect("no budget").budget.rules(), None);
        for (line, reason) in [
            ("--sleep-level 2", "<--max-awake-models <MAX_AWAKE_MODELS>|--max-awake-gb <MAX_AWAKE_GB>>"),
            ("--max-awake-gb 5GB", "`5GB` is no number of GB"),
        ] {
            let error = parsed(line).expect_err(line);
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn what_is_no_model_is_refused_with_the_reason() {
        for (text, reason) in [
            ("/models/m", "has no name"),
            ("=m", "is no name of a model"),
            (" =m", "is no name of a model"),
            ("a,b=m", "is no name of a model"),
            ("a=", "no folder and no id"),
            ("a=m,b", "`b` is no flag with a value"),
            ("a=m,", "`` is no flag with a value"),
        ] {
            let error = text.parse::<ModelSpec>().expect_err("refused");
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
