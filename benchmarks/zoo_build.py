"""Any Hugging Face architecture at `tiny` scale: its config shrunk by the names of its fields, its inputs made from the
signature of its forward.

There are hundreds of architectures and their configs share a vocabulary of names, so sizes are data here (`SIZES`), and
what an architecture needs beyond them is one entry of `EXTRA`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

HIDDEN, LAYERS, HEADS, FEED_FORWARD, VOCABULARY, BATCH, SEQUENCE, IMAGE, PATCH = 64, 2, 4, 128, 512, 2, 16, 32, 8

SIZES_BY_NAMES: dict[str, int] = {
    """hidden_size d_model n_embd dim embed_dim d_embed emb_dim embedding_size word_embed_proj_dim lru_width model_dim
    encoder_hidden_size decoder_hidden_size cross_attention_hidden_size d_embedding embedding_dim width
    encoder_hidden_dim rnn_hidden_size projection_size""": HIDDEN,
    """num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_encoder_layers depth num_blocks
    num_decoder_layers encoder_num_layers decoder_num_layers encoder_num_hidden_layers decoder_num_hidden_layers
    l_layers x_layers r_layers num_transformer_layers transformer_layers semantic_layers acoustic_layers
    num_global_layers""": LAYERS,
    """num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads attention_heads
    encoder_num_attention_heads decoder_num_attention_heads""": HEADS,
    """intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim n_inner d_inner dim_ff ffn_hidden_size hidden_dim
    ff_dim feed_forward_size encoder_intermediate_size decoder_intermediate_size mlp_hidden_size dim_feedforward
    feedforward_size intermediate_dim""": FEED_FORWARD,
    """vocab_size text_vocab_size decoder_vocab_size vocab_size_per_layer_input entity_vocab_size
    num_codebook_embeddings""": VOCABULARY,
    "head_dim d_kv attention_head_dim kv_channels d_head v_head_dim": HIDDEN // HEADS,
    "num_key_value_heads multi_query_group_num": HEADS // 2,
    "qk_rope_head_dim qk_nope_head_dim sliding_window attention_window local_attention": 8,
    "q_lora_rank kv_lora_rank moe_intermediate_size shared_expert_intermediate_size expert_hidden_dim": 32,
    "projection_dim bottleneck_size decoder_dim fusion_hidden_size image_size img_size input_size": IMAGE,
    "num_experts n_routed_experts num_local_experts moe_num_experts": 4,
    "num_experts_per_tok moe_k moe_topk n_group topk_group": 2,
    "patch_size chunk_size": PATCH,
    "first_k_dense_replace": 1,
    "state_size relative_attention_num_buckets num_queries": 16,
    """max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length seq_length max_source_positions
    max_target_positions""": 256,
}
SIZES = {name: size for names, size in SIZES_BY_NAMES.items() for name in names.split()}  # no larger than this


@dataclass(frozen=True)
class Extra:
    """What one architecture needs beyond `SIZES`: fields of its config, inputs, or names of inputs to leave out."""

    config: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


_MIXED = {"layer_types": ["linear_attention", "full_attention"]}
EXTRA: dict[str, Extra] = {
    **dict.fromkeys(
        ("T5ForConditionalGeneration", "LongT5ForConditionalGeneration", "SwitchTransformersForConditionalGeneration"),
        Extra({"decoder_start_token_id": 0}),
    ),
    **dict.fromkeys(("GPTJForCausalLM", "CodeGenForCausalLM"), Extra({"rotary_dim": 8})),
    "GPTNeoForCausalLM": Extra({"attention_types": [[["global", "local"], 1]]}),
    "Mamba2ForCausalLM": Extra({"num_heads": 8, "head_dim": 16, "n_groups": 2}),
    **dict.fromkeys(
        ("GraniteMoeHybridForCausalLM", "BambaForCausalLM"),
        Extra({"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 16}),
    ),
    "BambaForCausalLM": Extra({"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_head": 16}),
    "JambaForCausalLM": Extra({"attn_layer_offset": 1, "attn_layer_period": 2}),
    **dict.fromkeys(("KimiLinearForCausalLM", "BailingHybridForCausalLM", "Qwen4ExpForCausalLM"), Extra(_MIXED)),
    **dict.fromkeys(("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM"), Extra(_MIXED)),
    **dict.fromkeys(
        ("AutoformerModel", "InformerModel", "TimeSeriesTransformerModel"), Extra({"prediction_length": 8})
    ),
    "ReformerModelWithLMHead": Extra({"is_decoder": True}),
    "EsmForMaskedLM": Extra({"vocab_size": VOCABULARY, "pad_token_id": 1}),
    **dict.fromkeys(
        ("HunYuanDenseV1ForCausalLM", "MinistralForCausalLM", "HunYuanMoEV1ForCausalLM"), Extra({"head_dim": 16})
    ),
    "DeepseekV2ForCausalLM": Extra({"topk_method": "greedy", "num_experts_per_tok": 2, "num_key_value_heads": HEADS}),
    "Lfm2MoeForCausalLM": Extra({"layer_types": ["conv", "full_attention"]}),
    "CohereCompassForCausalLM": Extra({"layer_types": ["sliding_attention", "full_attention"]}),
    **dict.fromkeys(("Gemma3nForCausalLM", "Gemma4ForCausalLM"), Extra({"num_kv_shared_layers": 0})),
    "PatchTSTForPrediction": Extra({"context_length": 32, "prediction_length": 8}),
    "ASTForAudioClassification": Extra({}, {"input_values": lambda config: torch.randn(BATCH, 1024, 128)}),
    **dict.fromkeys(
        ("EncodecModel", "DacModel", "MimiModel"),
        Extra({}, {"input_values": lambda config: torch.randn(BATCH, 1, 2000)}),
    ),
}


_HEAD_SIZES = ("qk_rope_head_dim", "qk_nope_head_dim", "head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank")
#: Tried in turn until the model runs: sizes that replace those of `SIZES`; None keeps the config's own.
VARIANTS: tuple[dict[str, int | None], ...] = (
    {},
    dict.fromkeys(["num_hidden_layers", "n_layer", "num_layers", "n_layers"], 4),
    dict.fromkeys(["num_key_value_heads", "multi_query_group_num"], HEADS),
    dict.fromkeys(_HEAD_SIZES),
    {
        **dict.fromkeys(_HEAD_SIZES),
        "num_key_value_heads": HEADS,
    },
    dict.fromkeys(name for name in SIZES if "layers" not in name and "vocab" not in name and "experts" not in name),
)


def shrunk(config: Any, replaced: dict[str, int | None], given: dict[str, Any] | None = None) -> Any:
    """A config of the same class with small sizes, its sub-configs too."""
    fields: dict[str, Any] = {}
    sizes = {**SIZES, **replaced}
    for name, value in vars(config).items():
        size = sizes.get(name)
        if hasattr(value, "to_dict") and hasattr(type(value), "model_type"):
            fields[name] = shrunk(value, replaced).to_dict()
        elif type(value) is int:
            if size is not None and value > size:
                fields[name] = size
            elif name.endswith("_token_id") and value >= VOCABULARY:
                fields[name] = VOCABULARY - 1 - sum(map(ord, name)) % 100
        elif isinstance(value, float) and value and ("drop" in name or name.startswith("mask_")):
            fields[name] = 0.0
        elif name == "num_key_value_heads" and size is not None:
            fields[name] = size
        elif isinstance(value, dict) and "mrope_section" in value:
            half = int((sizes["head_dim"] or 128) * value.get("partial_rotary_factor", 1)) // 2
            fields[name] = {**value, "mrope_section": _parts(value["mrope_section"], half)}
    return type(config)(**{**fields, **(given or {})})


def _parts(parts: list[int], total: int) -> list[int]:
    """Whole numbers in about the proportions of `parts` that add up to `total`."""
    scaled = [part * total // sum(parts) for part in parts]
    return [*scaled[:-1], total - sum(scaled[:-1])]


def without_dropout(module: nn.Module) -> nn.Module:
    """Every probability of dropping something is 0; changes the module."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, float) and (name == "p" or "drop" in name):
                setattr(part, name, 0.0)
    return module


def _ids(config: Any) -> Tensor:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit = min(getattr(text, "vocab_size", None) or VOCABULARY, VOCABULARY) - 110
    return torch.randint(5, max(limit, 6), (BATCH, SEQUENCE))


def _image(config: Any) -> Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or IMAGE
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return torch.randn(BATCH, getattr(vision, "num_channels", 3) or 3, height, width)


def _audio(config: Any) -> Any:
    return next((getattr(config, n) for n in ("audio_config", "audio_encoder_config") if hasattr(config, n)), config)


def _first(config: Any, names: str, otherwise: int) -> int:
    """The first of a config's fields `names` that is a number."""
    found = (getattr(config, name, None) for name in names.split())
    return next((value for value in found if isinstance(value, int) and value), otherwise)


def _mel(config: Any) -> Tensor:
    audio = _audio(config)
    bins = _first(audio, "num_mel_bins input_feat_size feature_size feature_projection_input_dim", 80)
    return torch.randn(BATCH, bins, 2 * _first(audio, "max_source_positions", 16))


def _frames(config: Any) -> Tensor:
    """Spectra with time before frequency."""
    audio = getattr(config, "encoder_config", _audio(config))
    names = "num_mel_bins input_dim input_feat_size input_feat_per_channel feature_projection_input_dim feature_size"
    return torch.randn(BATCH, 64, _first(audio, names, 80))


def _video(config: Any) -> Tensor:
    vision = getattr(config, "vision_config", config)
    return torch.stack([_image(config) for _ in range(_first(vision, "num_frames", 4))], 1)


def _patches(config: Any) -> Tensor:
    """The patches of the images that `_GRID` says, in rows."""
    vision = getattr(config, "vision_config", config)
    side = _first(vision, "patch_size", PATCH)
    channels = _first(vision, "in_channels in_chans num_channels", 3)
    depth = _first(vision, "temporal_patch_size", 1)
    return torch.randn(int(_GRID.prod(1).sum()), channels * depth * side * side)


_GRID = torch.tensor([[1, 4, 4]] * BATCH)  # images of 4 by 4 patches


def _series(config: Any) -> Tensor:
    channels = _first(config, "num_input_channels input_size", 1)
    length = _first(config, "context_length", SEQUENCE)
    length += max(getattr(config, "lags_sequence", None) or [0])
    return torch.randn(BATCH, length, channels) if channels > 1 else torch.randn(BATCH, length)


def _observed(config: Any) -> Tensor:
    return torch.ones_like(_series(config))


def _time_features(config: Any) -> Tensor:
    return torch.randn(*_series(config).shape[:2], _first(config, "num_time_features", 1))


def _boxes(config: Any) -> Tensor:
    corner = torch.randint(0, 100, (BATCH, SEQUENCE, 2))
    return torch.cat([corner, corner + torch.randint(1, 100, (BATCH, SEQUENCE, 2))], -1)


def _embeddings(config: Any) -> Tensor:
    return torch.randn(BATCH, SEQUENCE, config.get_text_config().hidden_size)


def _waves(config: Any) -> Tensor:
    return torch.randn(BATCH, 2000)


MAKERS: dict[str, Any] = {  # inputs by their name in a forward's signature
    **dict.fromkeys(
        ["input_ids", "task_inputs", "qformer_input_ids", "decoder_input_ids", "text_input_ids", "text_encoder_ids"],
        _ids,
    ),
    **dict.fromkeys(["inputs_embeds", "hidden_states", "query_embeds", "encoder_hidden_states"], _embeddings),
    **dict.fromkeys(["pixel_values", "prompt_pixel_values"], _image),
    "pixel_values_videos": _video,
    "input_values": _waves,
    "input_features": _mel,
    "input_features_mask": lambda config: torch.ones(BATCH, 64, dtype=torch.long),
    "audio_mel": _frames,
    "audio_mel_mask": lambda config: torch.zeros(BATCH, 64, dtype=torch.bool),
    "past_values": _series,
    "past_observed_mask": _observed,
    "past_time_features": _time_features,
    "past_values_padding": lambda config: torch.zeros_like(_series(config)),
    "future_values": lambda config: torch.randn(BATCH, config.prediction_length),
    "future_time_features": lambda config: torch.randn(
        BATCH, config.prediction_length, _first(config, "num_time_features", 1)
    ),
    "freq": lambda config: torch.zeros(BATCH, 1, dtype=torch.long),
    "bbox": _boxes,
    "grid_thw": lambda config: _GRID.clone(),
    "image_grid_thw": lambda config: _GRID.clone(),
    "merge_sizes": lambda config: torch.full((BATCH,), 2),
    "spatial_shapes": lambda config: _GRID[:, 1:].clone(),
    "pixel_attention_mask": lambda config: torch.ones(BATCH, 16, dtype=torch.long),
    "visual_feats": lambda config: torch.randn(BATCH, 6, config.visual_feat_dim),
    "visual_pos": lambda config: torch.rand(BATCH, 6, config.visual_pos_dim),
    "states": lambda config: torch.randn(BATCH, 5, config.state_dim),
    "actions": lambda config: torch.randn(BATCH, 5, config.act_dim),
    "rewards": lambda config: torch.randn(BATCH, 5, 1),
    "returns_to_go": lambda config: torch.randn(BATCH, 5, 1),
    "timesteps": lambda config: torch.arange(5).expand(BATCH, 5),
}
#: Ways to choose and to make inputs, tried in turn: *wide* adds what the signature calls optional.
STYLES: tuple[dict[str, Any], ...] = (
    {},
    {"wide": True},
    {"input_features": _frames},
    {"input_features": _frames, "wide": True},
    {"input_values": _frames},
    {"input_values": lambda config: torch.randn(BATCH, 1, 2000)},
    {"input_values": lambda config: torch.randn(BATCH, 1, 2000), "wide": True},
    {"pixel_values": _video},
    {"pixel_values": _video, "wide": True},
)
_OPTIONAL = {
    *("input_ids", "decoder_input_ids", "qformer_input_ids", "bbox", "pixel_values", "visual_feats", "visual_pos"),
    *("input_features", "input_features_mask", "input_values", "future_values", "future_time_features"),
    *("states", "actions", "rewards", "returns_to_go", "timesteps", "query_embeds"),
}


def inputs_of(model: Any, config: Any, extra: Extra, style: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for one call, with labels where the model takes them and a loss can be made of them."""
    parameters = inspect.signature(model.forward).parameters
    names = list(parameters)
    wanted = {n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    wanted |= {model.main_input_name, "bbox"} | (_OPTIONAL if style.get("wide") else set())
    if "grid_thw" in names:
        style = {"pixel_values": _patches, "hidden_states": _patches, **style}
    makers = {**MAKERS, **style}
    made: dict[str, Any] = {name: makers[name](config) for name in names if name in MAKERS and name in wanted}
    main = model.main_input_name
    if main in MAKERS and "kwargs" in names and main not in made:
        made[main] = makers[main](config)
    if "input_ids" in made and "attention_mask" in names:
        made["attention_mask"] = torch.ones(BATCH, SEQUENCE, dtype=torch.long)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names and "labels" not in names:
        made["decoder_input_ids"] = _ids(config)
    if "labels" in names:
        labels = _labels(type(model).__name__, made.get("input_ids"), config)
        if labels is not None:
            made["labels"] = labels
        elif "decoder_input_ids" in names:
            made["decoder_input_ids"] = _ids(config)
    if type(model).__name__.endswith("ForQuestionAnswering") and "start_positions" in names:
        made["start_positions"] = made["end_positions"] = torch.tensor([1, 2])
    for name, value in extra.inputs.items():
        made[name] = value(config) if callable(value) else value
    for name in extra.without:
        made.pop(name, None)
    return made


def _labels(name: str, ids: Any, config: Any) -> Any:
    if name.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")):
        return ids
    if name.endswith(("SequenceClassification", "ImageClassification", "VideoClassification", "AudioClassification")):
        return torch.tensor([0, 1])
    if name.endswith("TokenClassification"):
        return None if ids is None else ids % 2
    return None


def class_names() -> list[str]:
    """One class of every architecture (model type) that transformers can build from a config, the most telling one."""
    from transformers.models.auto import modeling_auto as auto

    chosen: dict[str, str] = {}
    for kind in (
        "FOR_CAUSAL_LM",
        "FOR_SEQ_TO_SEQ_CAUSAL_LM",
        "FOR_MASKED_LM",
        "FOR_IMAGE_CLASSIFICATION",
        "FOR_SEMANTIC_SEGMENTATION",
        "FOR_AUDIO_CLASSIFICATION",
        "FOR_SEQUENCE_CLASSIFICATION",
        "",
    ):
        mapping = getattr(auto, f"MODEL_{kind}{'_' if kind else ''}MAPPING_NAMES")
        for model_type, name in mapping.items():
            chosen.setdefault(model_type, name if isinstance(name, str) else name[0])
    return list(dict.fromkeys(chosen.values()))


def build(name: str, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """The model class `name` at tiny scale with random weights and no dropout, and inputs on which it runs, drawn with
    `seed`. Raises what the first attempt raises when none runs."""
    failure: Exception | None = None
    for variant in VARIANTS:
        try:
            model = _model(name, variant)
        except Exception as error:
            failure = failure or error
            continue
        for style in STYLES:
            try:
                with torch.no_grad():
                    model.eval()(**_inputs(model, style, seed))
            except Exception as error:
                failure = failure or error
            else:
                model = _model(name, variant)
                return model, _inputs(model, style, seed)
    assert failure is not None
    raise failure


LARGEST = 80_000_000  # parameters: more are no tiny model


def _model(name: str, variant: dict[str, int | None]) -> Any:
    import transformers

    cls: Any = getattr(transformers, name)
    torch.manual_seed(0)
    config = shrunk(cls.config_class(), variant, EXTRA.get(name, Extra()).config)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    return without_dropout(cls(config))


def _inputs(model: Any, style: dict[str, Any], seed: int) -> dict[str, Any]:
    torch.manual_seed(seed + 1)
    return inputs_of(model, model.config, EXTRA.get(type(model).__name__, Extra()), style)
