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

/// The format that weights get while they are read, or that those of the model have. Shards compare names of the second
/// kind with what the folder declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Quantize {
    /// As the folder has them; manifests may set the flag to nothing
    #[value(name = "", hide = true)]
    AsStored,
    /// Floats of 8 bits, a scale for every row; or a model that is stored so
    Fp8,
    /// Integers of 8 bits, a scale for every row
    Int8,
    /// The same, under TGI's name
    Eetq,
    /// Integers of 4 bits in groups of 128
    Int4,
    /// As int8; or a model that bitsandbytes quantized
    Bitsandbytes,
    /// 4 bits of the table nf4 in blocks of 64; or a model that is stored so
    BitsandbytesNf4,
    /// 4 bits of the table fp4 in blocks of 64; or a model that is stored so
    BitsandbytesFp4,
    /// A model of AWQ
    Awq,
    /// A model of compressed-tensors
    CompressedTensors,
    /// Refused, with what to use instead
    Exl2,
    /// A model of GPTQ
    Gptq,
    /// A model of GPTQ or AWQ
    Marlin,
    /// A model of fbgemm_fp8
    #[value(name = "fbgemm_fp8")]
    FbgemmFp8,
    /// A model of ModelOpt
    Modelopt,
    /// A model whose experts are MXFP4
    Mxfp4,
}

/// What adds up what several GPUs computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AllReduce {
    /// Penstock's kernels where NVLink ties the GPUs and rows are few, else NCCL
    Auto,
    /// NCCL alone
    Nccl,
}

/// What computes attention.
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
    /// Prompts by FlashAttention 3 (the wheel fa3-fwd, which must be installed); all else by Penstock's kernels
    Fa3,
    /// Prompts by cuDNN, as PyTorch has it; all else by Penstock's kernels
    Cudnn,
}

/// What quantized weights are multiplied by on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CpuActivations {
    /// `int16` for a model in bfloat16 on a processor where that is faster, else `float`
    Auto,
    /// The numbers that come in, as they are
    Float,
    /// Integers of 16 bits in blocks of 32, each with a scale
    Int16,
    /// Integers of 8 bits in such blocks
    Int8,
}

/// What quantized weights of 8 bits are multiplied by on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuActivations {
    /// The numbers that come in, as they are
    Float,
    /// What the weights are, floats or integers of 8 bits, in blocks of up to 128 with a scale each
    #[value(name = "8bit")]
    EightBits,
}

/// What serves gRPC on the socket of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Endpoint {
    /// The extension module in Rust where it is installed, else grpcio
    Auto,
    /// The extension module in Rust
    Tonic,
    /// Threads of Python, which take several times the processor time
    Grpcio,
}

/// What a replica is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// It computes prompts and generates
    Both,
    /// It computes prompts, and others generate
    Prefill,
    /// It generates, and computes prompts where nobody else does
    Decode,
}

/// Where the weights come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadFormat {
    /// The model's folder
    Safetensors,
    /// Nowhere: they are noise
    Dummy,
}

/// Which code of the model computes.
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
