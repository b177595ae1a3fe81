from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FetchBlocksRequest(_message.Message):
    __slots__ = ("address", "secret", "source_epoch", "epoch", "source_blocks", "blocks", "timeout_ms")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    address: str
    secret: bytes
    source_epoch: int
    epoch: int
    source_blocks: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    timeout_ms: int
    def __init__(self, address: _Optional[str] = ..., secret: _Optional[bytes] = ..., source_epoch: _Optional[int] = ..., epoch: _Optional[int] = ..., source_blocks: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class FetchBlocksResponse(_message.Message):
    __slots__ = ("num_bytes",)
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_bytes: int
    def __init__(self, num_bytes: _Optional[int] = ...) -> None: ...

class BlockSource(_message.Message):
    __slots__ = ("address", "secret")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    address: str
    secret: bytes
    def __init__(self, address: _Optional[str] = ..., secret: _Optional[bytes] = ...) -> None: ...

class ReceiveWeightsRequest(_message.Message):
    __slots__ = ("join", "tensors", "leave", "forget")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    join: JoinTrainer
    tensors: AnnouncedTensors
    leave: LeaveTrainer
    forget: str
    def __init__(self, join: _Optional[_Union[JoinTrainer, _Mapping]] = ..., tensors: _Optional[_Union[AnnouncedTensors, _Mapping]] = ..., leave: _Optional[_Union[LeaveTrainer, _Mapping]] = ..., forget: _Optional[str] = ...) -> None: ...

class JoinTrainer(_message.Message):
    __slots__ = ("host", "port", "group", "rank", "world_size", "timeout_s")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    group: str
    rank: int
    world_size: int
    timeout_s: int
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ..., group: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., timeout_s: _Optional[int] = ...) -> None: ...

class AnnouncedTensors(_message.Message):
    __slots__ = ("path", "tensors")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    path: str
    tensors: _containers.RepeatedCompositeFieldContainer[AnnouncedTensor]
    def __init__(self, path: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[AnnouncedTensor, _Mapping]]] = ...) -> None: ...

class AnnouncedTensor(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaveTrainer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReceiveWeightsResponse(_message.Message):
    __slots__ = ("is_busy", "num_missing", "missing")
    IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSING_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    is_busy: bool
    num_missing: int
    missing: str
    def __init__(self, is_busy: bool = ..., num_missing: _Optional[int] = ..., missing: _Optional[str] = ...) -> None: ...

class CheckWeightsRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class CheckWeightsResponse(_message.Message):
    __slots__ = ("weights_version",)
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    weights_version: str
    def __init__(self, weights_version: _Optional[str] = ...) -> None: ...

class ReplaceWeightsRequest(_message.Message):
    __slots__ = ("path", "weights_version", "label")
    PATH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    path: str
    weights_version: str
    label: str
    def __init__(self, path: _Optional[str] = ..., weights_version: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class ReplaceWeightsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("level",)
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    level: int
    def __init__(self, level: _Optional[int] = ...) -> None: ...

class SleepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeUpRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeUpResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("path", "expected_id", "name")
    PATH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    path: str
    expected_id: str
    name: str
    def __init__(self, path: _Optional[str] = ..., expected_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter_id", "max_rank", "num_bytes", "invocation_tokens", "vocab_size")
    ADAPTER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVOCATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    adapter_id: str
    max_rank: int
    num_bytes: int
    invocation_tokens: _containers.RepeatedScalarFieldContainer[int]
    vocab_size: int
    def __init__(self, adapter_id: _Optional[str] = ..., max_rank: _Optional[int] = ..., num_bytes: _Optional[int] = ..., invocation_tokens: _Optional[_Iterable[int]] = ..., vocab_size: _Optional[int] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("adapter_id",)
    ADAPTER_ID_FIELD_NUMBER: _ClassVar[int]
    adapter_id: str
    def __init__(self, adapter_id: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("version", "instance_id", "model_type", "dtype", "device", "rank", "world_size", "block_size", "num_blocks", "num_slots", "vocab_size", "eos_token_ids", "max_sequence_len", "max_step_tokens", "max_top_logprobs", "abilities", "last_epoch", "attention_window", "generation_defaults", "kv_cache_dtype", "attention_backend", "max_adapters", "quantization", "num_snapshots", "weights_version", "tokenizer_version", "sleep_level", "expert_parallel", "weights_label", "num_stages", "role", "block_source", "awake_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_TYPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ABILITIES_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_WINDOW_FIELD_NUMBER: _ClassVar[int]
    GENERATION_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    MAX_ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    NUM_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_VERSION_FIELD_NUMBER: _ClassVar[int]
    SLEEP_LEVEL_FIELD_NUMBER: _ClassVar[int]
    EXPERT_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_LABEL_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    AWAKE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: str
    instance_id: str
    model_type: str
    dtype: str
    device: str
    rank: int
    world_size: int
    block_size: int
    num_blocks: int
    num_slots: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_sequence_len: int
    max_step_tokens: int
    max_top_logprobs: int
    abilities: _containers.RepeatedScalarFieldContainer[str]
    last_epoch: int
    attention_window: int
    generation_defaults: GenerationDefaults
    kv_cache_dtype: str
    attention_backend: str
    max_adapters: int
    quantization: Quantization
    num_snapshots: int
    weights_version: str
    tokenizer_version: str
    sleep_level: int
    expert_parallel: bool
    weights_label: str
    num_stages: int
    role: str
    block_source: BlockSource
    awake_bytes: AwakeBytes
    def __init__(self, version: _Optional[str] = ..., instance_id: _Optional[str] = ..., model_type: _Optional[str] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_slots: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., max_sequence_len: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., max_top_logprobs: _Optional[int] = ..., abilities: _Optional[_Iterable[str]] = ..., last_epoch: _Optional[int] = ..., attention_window: _Optional[int] = ..., generation_defaults: _Optional[_Union[GenerationDefaults, _Mapping]] = ..., kv_cache_dtype: _Optional[str] = ..., attention_backend: _Optional[str] = ..., max_adapters: _Optional[int] = ..., quantization: _Optional[_Union[Quantization, _Mapping]] = ..., num_snapshots: _Optional[int] = ..., weights_version: _Optional[str] = ..., tokenizer_version: _Optional[str] = ..., sleep_level: _Optional[int] = ..., expert_parallel: bool = ..., weights_label: _Optional[str] = ..., num_stages: _Optional[int] = ..., role: _Optional[str] = ..., block_source: _Optional[_Union[BlockSource, _Mapping]] = ..., awake_bytes: _Optional[_Union[AwakeBytes, _Mapping]] = ...) -> None: ...

class AwakeBytes(_message.Message):
    __slots__ = ("level_1", "level_2")
    LEVEL_1_FIELD_NUMBER: _ClassVar[int]
    LEVEL_2_FIELD_NUMBER: _ClassVar[int]
    level_1: int
    level_2: int
    def __init__(self, level_1: _Optional[int] = ..., level_2: _Optional[int] = ...) -> None: ...

class Quantization(_message.Message):
    __slots__ = ("format", "num_matrices", "num_bytes", "num_bytes_in_16_bits", "plain", "from_cache")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NUM_MATRICES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_IN_16_BITS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FIELD_NUMBER: _ClassVar[int]
    FROM_CACHE_FIELD_NUMBER: _ClassVar[int]
    format: str
    num_matrices: int
    num_bytes: int
    num_bytes_in_16_bits: int
    plain: _containers.RepeatedScalarFieldContainer[str]
    from_cache: bool
    def __init__(self, format: _Optional[str] = ..., num_matrices: _Optional[int] = ..., num_bytes: _Optional[int] = ..., num_bytes_in_16_bits: _Optional[int] = ..., plain: _Optional[_Iterable[str]] = ..., from_cache: bool = ...) -> None: ...

class GenerationDefaults(_message.Message):
    __slots__ = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
    DO_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    def __init__(self, do_sample: bool = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed", "logit_bias_ids", "logit_bias_values", "num_top_logprobs", "prompt_logprobs", "min_new_tokens", "suppressed_ids", "watermark_delta", "watermark_gamma", "banned_ids", "banned_lens", "allowed_mask", "logprob_ids")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_IDS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_DELTA_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_GAMMA_FIELD_NUMBER: _ClassVar[int]
    BANNED_IDS_FIELD_NUMBER: _ClassVar[int]
    BANNED_LENS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_MASK_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_IDS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
    logit_bias_ids: _containers.RepeatedScalarFieldContainer[int]
    logit_bias_values: _containers.RepeatedScalarFieldContainer[float]
    num_top_logprobs: int
    prompt_logprobs: bool
    min_new_tokens: int
    suppressed_ids: _containers.RepeatedScalarFieldContainer[int]
    watermark_delta: float
    watermark_gamma: float
    banned_ids: _containers.RepeatedScalarFieldContainer[int]
    banned_lens: _containers.RepeatedScalarFieldContainer[int]
    allowed_mask: bytes
    logprob_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., logit_bias_ids: _Optional[_Iterable[int]] = ..., logit_bias_values: _Optional[_Iterable[float]] = ..., num_top_logprobs: _Optional[int] = ..., prompt_logprobs: bool = ..., min_new_tokens: _Optional[int] = ..., suppressed_ids: _Optional[_Iterable[int]] = ..., watermark_delta: _Optional[float] = ..., watermark_gamma: _Optional[float] = ..., banned_ids: _Optional[_Iterable[int]] = ..., banned_lens: _Optional[_Iterable[int]] = ..., allowed_mask: _Optional[bytes] = ..., logprob_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Grammar.Kind]
        KIND_JSON_SCHEMA: _ClassVar[Grammar.Kind]
        KIND_REGEX: _ClassVar[Grammar.Kind]
        KIND_LARK: _ClassVar[Grammar.Kind]
    KIND_UNSPECIFIED: Grammar.Kind
    KIND_JSON_SCHEMA: Grammar.Kind
    KIND_REGEX: Grammar.Kind
    KIND_LARK: Grammar.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: Grammar.Kind
    text: str
    def __init__(self, kind: _Optional[_Union[Grammar.Kind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Admit(_message.Message):
    __slots__ = ("slot", "token_ids", "prompt_len", "block_ids", "sampling", "grammar", "adapter_id", "snapshot", "predicted_ids")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_IDS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_len: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParams
    grammar: Grammar
    adapter_id: str
    snapshot: int
    predicted_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slot: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prompt_len: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., adapter_id: _Optional[str] = ..., snapshot: _Optional[int] = ..., predicted_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("epoch", "step", "retired_slots", "admitted", "appended_slots", "appended_counts", "appended_blocks", "copied_from", "copied_to", "span_slots", "span_starts", "span_lens", "open_spans", "open_drafts", "snapshot_spans", "snapshots")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RETIRED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    APPENDED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    APPENDED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    APPENDED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPIED_FROM_FIELD_NUMBER: _ClassVar[int]
    COPIED_TO_FIELD_NUMBER: _ClassVar[int]
    SPAN_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SPAN_STARTS_FIELD_NUMBER: _ClassVar[int]
    SPAN_LENS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SPANS_FIELD_NUMBER: _ClassVar[int]
    OPEN_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SPANS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    retired_slots: _containers.RepeatedScalarFieldContainer[int]
    admitted: _containers.RepeatedCompositeFieldContainer[Admit]
    appended_slots: _containers.RepeatedScalarFieldContainer[int]
    appended_counts: _containers.RepeatedScalarFieldContainer[int]
    appended_blocks: _containers.RepeatedScalarFieldContainer[int]
    copied_from: _containers.RepeatedScalarFieldContainer[int]
    copied_to: _containers.RepeatedScalarFieldContainer[int]
    span_slots: _containers.RepeatedScalarFieldContainer[int]
    span_starts: _containers.RepeatedScalarFieldContainer[int]
    span_lens: _containers.RepeatedScalarFieldContainer[int]
    open_spans: _containers.RepeatedScalarFieldContainer[int]
    open_drafts: _containers.RepeatedScalarFieldContainer[int]
    snapshot_spans: _containers.RepeatedScalarFieldContainer[int]
    snapshots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., retired_slots: _Optional[_Iterable[int]] = ..., admitted: _Optional[_Iterable[_Union[Admit, _Mapping]]] = ..., appended_slots: _Optional[_Iterable[int]] = ..., appended_counts: _Optional[_Iterable[int]] = ..., appended_blocks: _Optional[_Iterable[int]] = ..., copied_from: _Optional[_Iterable[int]] = ..., copied_to: _Optional[_Iterable[int]] = ..., span_slots: _Optional[_Iterable[int]] = ..., span_starts: _Optional[_Iterable[int]] = ..., span_lens: _Optional[_Iterable[int]] = ..., open_spans: _Optional[_Iterable[int]] = ..., open_drafts: _Optional[_Iterable[int]] = ..., snapshot_spans: _Optional[_Iterable[int]] = ..., snapshots: _Optional[_Iterable[int]] = ...) -> None: ...

class SlotError(_message.Message):
    __slots__ = ("slot", "code", "message")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CODE_UNSPECIFIED: _ClassVar[SlotError.Code]
        CODE_INVALID: _ClassVar[SlotError.Code]
        CODE_NOT_FINITE: _ClassVar[SlotError.Code]
        CODE_GRAMMAR: _ClassVar[SlotError.Code]
        CODE_OUT_OF_MEMORY: _ClassVar[SlotError.Code]
        CODE_KERNEL: _ClassVar[SlotError.Code]
    CODE_UNSPECIFIED: SlotError.Code
    CODE_INVALID: SlotError.Code
    CODE_NOT_FINITE: SlotError.Code
    CODE_GRAMMAR: SlotError.Code
    CODE_OUT_OF_MEMORY: SlotError.Code
    CODE_KERNEL: SlotError.Code
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    code: SlotError.Code
    message: str
    def __init__(self, slot: _Optional[int] = ..., code: _Optional[_Union[SlotError.Code, str]] = ..., message: _Optional[str] = ...) -> None: ...

class TopTokens(_message.Message):
    __slots__ = ("slot", "token_ids", "logprobs")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, slot: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("slot", "start", "logprobs", "top_ids", "top_logprobs", "ranks")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    start: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slot: _Optional[int] = ..., start: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class StepTimings(_message.Message):
    __slots__ = ("upload_us", "forward_us", "sample_us", "download_us")
    UPLOAD_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_US_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_US_FIELD_NUMBER: _ClassVar[int]
    upload_us: int
    forward_us: int
    sample_us: int
    download_us: int
    def __init__(self, upload_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., sample_us: _Optional[int] = ..., download_us: _Optional[int] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("epoch", "step", "sampled_slots", "sampled_ids", "sampled_logprobs", "top_tokens", "prompt_logprobs", "slot_errors", "sampled_checksum", "timings", "late_slots", "drafted_slots", "drafted_counts")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SLOT_ERRORS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    LATE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_COUNTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    sampled_slots: _containers.RepeatedScalarFieldContainer[int]
    sampled_ids: _containers.RepeatedScalarFieldContainer[int]
    sampled_logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_tokens: _containers.RepeatedCompositeFieldContainer[TopTokens]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    slot_errors: _containers.RepeatedCompositeFieldContainer[SlotError]
    sampled_checksum: int
    timings: StepTimings
    late_slots: _containers.RepeatedScalarFieldContainer[int]
    drafted_slots: _containers.RepeatedScalarFieldContainer[int]
    drafted_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., sampled_slots: _Optional[_Iterable[int]] = ..., sampled_ids: _Optional[_Iterable[int]] = ..., sampled_logprobs: _Optional[_Iterable[float]] = ..., top_tokens: _Optional[_Iterable[_Union[TopTokens, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., slot_errors: _Optional[_Iterable[_Union[SlotError, _Mapping]]] = ..., sampled_checksum: _Optional[int] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., late_slots: _Optional[_Iterable[int]] = ..., drafted_slots: _Optional[_Iterable[int]] = ..., drafted_counts: _Optional[_Iterable[int]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("epoch", "finished_step", "running_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_STEP_FIELD_NUMBER: _ClassVar[int]
    RUNNING_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    finished_step: int
    running_ms: int
    def __init__(self, epoch: _Optional[int] = ..., finished_step: _Optional[int] = ..., running_ms: _Optional[int] = ...) -> None: ...
