//! The flags' values that are chosen from a list.

use clap::ValueEnum;

/// Type of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
pub enum Dtype {
    /// 32 bits
    Float32,
    /// 16 bits, more precision, less range
    Float16,
    /// 16 bits, more range, less precision
    Bfloat16,
}

/// Type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvCacheDtype {
    /// That of the weights
    Auto,
    /// 8 bits, 4 of exponent and 3 of mantissa
    Fp8,
    /// The same
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
    /// The same, under TGI's name
    #[value(name = "fp8_e4m3fn")]
    Fp8E4m3fn,
}

/// Who computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AttentionBackend {
    /// Penstock's own for the device
    Auto,
    /// Penstock's kernels for a GPU
    Triton,
    /// Penstock's C for the CPU
    Native,
    /// Plain PyTorch, slow
    Reference,
    /// FlashInfer, which must be installed
    Flashinfer,
    /// Prompts by FlashAttention, as PyTorch has it; all else by Penstock's kernels
    Varlen,
}

/// Where the weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// The model's folder
    Safetensors,
    /// Nowhere: they are noise
    Dummy,
}

/// Whose modelling code computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModelImpl {
    /// Penstock's own where it knows the family, else that of transformers
    Auto,
    /// Penstock's own
    Native,
    /// That of the installed transformers
    Transformers,
}

/// How requests sample that do not say how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GenerationConfig {
    /// As the model's makers have it
    Auto,
    /// As the API documents
    None,
}

/// Where the shards compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// GPUs if there are any, else the CPU
    Auto,
    /// The CPU
    Cpu,
    /// NVIDIA GPUs
    Cuda,
}

/// A choice as it is written on a command line.
pub fn name_of(choice: &impl ValueEnum) -> String {
    let value = choice.to_possible_value().expect("no choice is hidden");
    value.get_name().to_owned()
}
