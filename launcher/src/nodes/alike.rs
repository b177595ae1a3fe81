//! Flags that have to be equal on all nodes: with other values the shards of a node would not be those of the others, and
//! the router would refuse them for good.

use std::collections::BTreeMap;

use crate::args::{Args, name_of};

/// Values by the name of the flag; none where it was not given.
pub type Alike = BTreeMap<String, String>;

/// The values of this launcher. Values that follow from the machine, such as folders and the device, are left out.
pub fn alike(args: &Args) -> Alike {
    let given = [of_model(args), of_shards(args), of_drafts(args)].concat();
    given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The first flag that differs, with the value of the node that joins and that of node 0.
pub fn difference(theirs: &Alike, ours: &Alike) -> Option<String> {
    let name = theirs.keys().chain(ours.keys()).filter(|name| theirs.get(*name) != ours.get(*name)).min()?;
    let shown = |all: &Alike| all.get(name).map_or_else(|| "not given".to_owned(), Clone::clone);
    Some(format!("its --{name} is {}, and that of node 0 is {}", shown(theirs), shown(ours)))
}

type Given = Vec<(&'static str, Option<String>)>;

fn of_model(args: &Args) -> Given {
    let model = &args.model;
    vec![
        ("dtype", model.dtype.as_ref().map(name_of)),
        ("kv-cache-dtype", Some(name_of(&model.kv_cache_dtype))),
        ("quantize", Some(name_of(&model.quantize)).filter(|name| !name.is_empty())),
        ("load-format", Some(name_of(&model.load_format))),
        ("model-impl", Some(name_of(&model.model_impl))),
        ("rope-scaling", model.rope.rope_scaling.as_ref().map(name_of)),
        ("rope-factor", model.rope.rope_factor.map(|factor| factor.to_string())),
        ("generation-config", Some(name_of(&model.generation_config))),
        ("override-generation-config", model.override_generation_config.clone()),
    ]
}

fn of_shards(args: &Args) -> Given {
    let (shards, limits) = (&args.shards, &args.router.limits);
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let roles = shards.role.iter().map(name_of).collect::<Vec<_>>().join(",");
    vec![
        ("pipeline-parallel-size", Some(shards.pipeline_parallel_size.to_string())),
        ("role", Some(roles).filter(|roles| !roles.is_empty())),
        ("max-batch-size", number(shards.max_batch_size)),
        ("max-loras", number(shards.max_loras)),
        ("max-snapshots", number(shards.max_snapshots)),
        ("attention-backend", Some(name_of(&shards.attention_backend))),
        ("cpu-activations", Some(name_of(&shards.cpu_activations))),
        ("gpu-activations", Some(name_of(&shards.gpu_activations))),
        ("batch-invariant", Some(shards.batch_invariant.to_string())),
        ("max-total-tokens", number(limits.max_total_tokens)),
        ("max-batch-prefill-tokens", number(limits.max_batch_prefill_tokens)),
        ("max-batch-total-tokens", number(limits.max_batch_total_tokens)),
    ]
}

fn of_drafts(args: &Args) -> Given {
    let speculation = &args.router.speculation;
    vec![
        ("speculation", speculation.speculation.as_ref().map(name_of)),
        ("speculate", Some(speculation.max_drafts().to_string())),
        ("speculate-branches", args.model.speculate_branches.map(|branches| branches.to_string())),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn of(line: &str) -> Alike {
        let words = std::iter::once("launcher").chain(line.split_whitespace());
        alike(&Args::try_parse_from(words).expect("flags"))
    }

    #[test]
    fn a_flag_that_differs_is_named_with_both_values() {
        let ours = of("--max-total-tokens 1024 --role prefill,decode");
        let told = |line: &str| difference(&of(line), &ours);
        assert_eq!(told("--max-total-tokens 1024 --role prefill,decode --port 80 --model-id m"), None);
        let length = told("--max-total-tokens 512 --role prefill,decode").expect("differs");
        assert_eq!(length, "its --max-total-tokens is 512, and that of node 0 is 1024");
        let role = told("--max-total-tokens 1024").expect("differs");
        assert_eq!(role, "its --role is not given, and that of node 0 is prefill,decode");
        let dtype = told("--max-total-tokens 1024 --role prefill,decode --dtype bfloat16").expect("differs");
        assert_eq!(dtype, "its --dtype is bfloat16, and that of node 0 is not given");
    }
}
