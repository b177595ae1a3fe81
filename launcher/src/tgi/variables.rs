//! Environment variables that TGI, its images and its clouds read beside those of its flags, and what they become here.
//! `check-tgi-args` explains them; the launcher itself reads those called kept or renamed.

use super::flags::Status;

/// One variable, or all that begin alike.
#[derive(Debug)]
pub struct Variable {
    /// Its name; a `*` at the end stands for any rest.
    pub name: &'static str,
    pub status: Status,
}

macro_rules! variables {
    ($($status:ident $name:literal $note:literal)*) => {
        &[$(Variable { name: $name, status: Status::$status($note) }),*]
    };
}

/// All variables of the table.
pub const VARIABLES: &[Variable] = variables! {
    Kept "PREFIX_CACHING" ""
    Kept "COMPUTE_TYPE" "the value of `x-compute-type`"
    Kept "LOG_LEVEL" ""
    Kept "RUST_LOG" "where LOG_LEVEL is not set"
    Kept "CUDA_VISIBLE_DEVICES" ""
    Kept "NVIDIA_VISIBLE_DEVICES" ""
    Kept "HF_TOKEN" "read by the client of the hub"
    Kept "HUGGING_FACE_HUB_TOKEN" "read by the client of the hub"
    Kept "HF_HOME" "read by the client of the hub"
    Kept "HF_ENDPOINT" "read by the client of the hub"
    Kept "HF_HUB_OFFLINE" "read by the client of the hub"
    Kept "HF_HUB_USER_AGENT_ORIGIN" "read by the client of the hub"
    NoEffect "HF_HUB_ENABLE_HF_TRANSFER" "the client of the hub does not use it any more"
    NoEffect "HF_KERNELS_CACHE" "no kernel is downloaded"
    NoEffect "ATTENTION" "see --attention-backend"
    NoEffect "USE_FLASH_ATTENTION" "see --attention-backend"
    NoEffect "PREFILL_CHUNKING" "long prompts are always computed in chunks"
    NoEffect "TGI_WIGGLE_ROOM" "see --cuda-memory-fraction"
    NoEffect "REQUEST_LOGPROBS" "each request says whether it wants log probabilities"
    NoEffect "DISABLE_EXLLAMA" "weights are served as they are stored"
    NoEffect "EXLLAMA_VERSION" "weights are served as they are stored"
    NoEffect "ZE_AFFINITY_MASK" "Intel GPUs are not used"
    NoEffect "XPU_MEMORY_FRACTION" "Intel GPUs are not used"
    NoEffect "ROCM_*" "AMD GPUs are not used"
    NoEffect "PYTORCH_TUNABLEOP_*" "AMD GPUs are not used"
    NoEffect "LOG_FORMAT" "see --json-output"
    NoEffect "LOG_COLORIZE" "logs have colours on a terminal only"
    Renamed "HF_MODEL_TRUST_REMOTE_CODE" "trust-remote-code"
    Unknown "HF_API_TOKEN" "not read; set HF_TOKEN"
    Renamed "HF_MODEL_ID" "model-id"
    Renamed "HF_MODEL_REVISION" "revision"
    Renamed "HF_MODEL_QUANTIZE" "quantize"
    Renamed "SM_NUM_GPUS" "num-shard"
    Renamed "AIP_HTTP_PORT" "port"
    Kept "AIP_PREDICT_ROUTE" "another path of /vertex"
    Kept "AIP_HEALTH_ROUTE" "another path of /health"
    Kept "AIP_STORAGE_URI" "where it is a folder and MODEL_ID is not set"
};

/// How a variable is treated that belongs to no flag.
pub fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| match variable.name.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => variable.name == name,
    })
}
