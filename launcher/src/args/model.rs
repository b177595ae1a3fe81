//! The flags about what is served: the model, its tokenizer, and what replaces parts of its configuration.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::choices::{Dtype, GenerationConfig, KvCacheDtype, LoadFormat, ModelImpl, Quantize};
use super::rope::RopeArgs;
use super::tokenizer::TokenizerArgs;

/// What is served.
#[derive(Debug, Clone, ClapArgs)]
pub struct ModelArgs {
    /// Local folder or Hugging Face Hub id of the model [default: the small demo model that comes with Penstock]
    #[arg(long, env)]
    pub model_id: Option<String>,

    /// Where it comes from
    #[command(flatten)]
    pub hub: HubArgs,

    /// Type of weights and activations [default: the model's own]
    #[arg(long, env)]
    pub dtype: Option<Dtype>,

    /// Type of the KV cache; `auto` is that of the weights, the others are 8-bit floats: half the memory, less precision
    #[arg(long, env, default_value = "auto")]
    pub kv_cache_dtype: KvCacheDtype,

    /// Local folder or Hugging Face Hub id, with or without @REVISION, of the small model or the heads that draft
    /// tokens; needs --speculation draft, medusa or eagle
    #[arg(long, env)]
    pub draft_model: Option<String>,

    /// Guesses of MEDUSA's heads, EAGLE's or the layer of multi-token prediction for a token: with more than 1 what is
    /// drafted is a tree, where the model and the device can compute one [default: the tree of the heads' config.json,
    /// else 1, a chain]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..=8))]
    pub speculate_branches: Option<u32>,

    /// How weights of 16 bits are quantized while they are read, or the format that those of the model have [default: as
    /// they are]
    #[arg(long, env, default_value = "")]
    pub quantize: Quantize,

    /// Folder that keeps the weights that --quantize made, for later starts
    /// [default: penstock/quantized beside the hub's cache]
    #[arg(long, env)]
    pub quantize_cache: Option<PathBuf>,

    /// GB that are kept there at most, of the models that were started last; `0` keeps none
    #[arg(long, env, default_value_t = 200)]
    pub quantize_cache_gb: u32,

    /// Where the weights come from; `dummy` fills the model with noise and reads none, for measuring
    #[arg(long, env, default_value = "safetensors")]
    pub load_format: LoadFormat,

    /// Whose modelling code computes; `auto` takes Penstock's own where it knows the family, else that of transformers
    #[arg(long, env, default_value = "auto")]
    pub model_impl: ModelImpl,

    /// Which tokenizer is used
    #[command(flatten)]
    pub tokenizer: TokenizerArgs,

    /// How rotary positions are scaled
    #[command(flatten)]
    pub rope: RopeArgs,

    /// How requests sample that do not say how; `auto` as the model's generation_config.json has it, `none` as the API
    /// documents. What ends a sequence is read from there in any case
    #[arg(long, env, default_value = "auto")]
    pub generation_config: GenerationConfig,

    /// JSON object with values in the place of those of generation_config.json, as in {"temperature": 0.6}
    #[arg(long, env, value_name = "JSON", value_parser = json_object)]
    pub override_generation_config: Option<String>,
}

/// Where a model of the hub comes from and goes to.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct HubArgs {
    /// Branch, tag or commit of a model on the hub [default: main]
    #[arg(long, env, requires = "model_id")]
    pub revision: Option<String>,

    /// Folder that models of the hub are kept in [default: the hub client's own, ~/.cache/huggingface/hub]
    #[arg(long, env)]
    pub huggingface_hub_cache: Option<PathBuf>,
}

fn json_object(text: &str) -> Result<String, String> {
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("expected a JSON object: {error}")),
    }
}
