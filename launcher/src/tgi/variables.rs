//! Environment variables that TGI, its images and its clouds read beside those of its flags, and what they become here.
//! `check-tgi-args` explains them; the launcher itself reads none of them but those called kept.

use super::flags::Fate;

/// One variable, or all that begin alike.
#[derive(Debug)]
pub struct Variable {
    /// Its name; a `*` at the end stands for any rest.
    pub name: &'static str,
    pub fate: Fate,
}

macro_rules! variables {
    ($($fate:ident $name:literal $note:literal)*) => {
        &[$(Variable { name: $name, fate: Fate::$fate($note) }),*]
    };
}

const VARIABLES: &[Variable] = variables! {
    Kept "PREFIX_CACHING" "true or false, as --prefix-caching"
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
    NoEffect "COMPUTE_TYPE" "`x-compute-type` names the devices that are used"
    NoEffect "LOG_LEVEL" "the level of the logs is fixed"
    NoEffect "LOG_FORMAT" "see --json-output"
    NoEffect "LOG_COLORIZE" "logs have colours on a terminal only"
    NoEffect "HF_MODEL_TRUST_REMOTE_CODE" "code of a model folder is never run"
    Unknown "HF_API_TOKEN" "not read; set HF_TOKEN"
    Unknown "HF_MODEL_ID" "not read; set MODEL_ID"
    Unknown "HF_MODEL_REVISION" "not read; set REVISION"
    Unknown "HF_MODEL_QUANTIZE" "not read; weights are served as they are stored"
    Unknown "SM_NUM_GPUS" "not read; set NUM_SHARD"
    Unknown "AIP_HTTP_PORT" "not read; set PORT"
    Unknown "AIP_PREDICT_ROUTE" "not read; the route is /vertex"
    Unknown "AIP_HEALTH_ROUTE" "not read; the route is /health"
};

/// What becomes of a variable that is no flag's.
pub fn find(name: &str) -> Option<&'static Variable> {
    VARIABLES.iter().find(|variable| match variable.name.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => variable.name == name,
    })
}
