"""The zoo: builders of real models from configs, with random weights and fixed seeds.

`build(name, scale)` gives a `Workload`: a module, the keyword inputs of an inference call, the inputs to add for a
training call (targets), and how to read the loss from the training call's result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import plain

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of transformer-like models; the others derive theirs from these."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int
    vocabulary: int
    batch: int
    sequence: int
    image: int
    patch: int


SMALL = Scale(256, 4, 4, 1024, 4096, 2, 128, 128, 16)
SCALES = {
    "tiny": Scale(64, 2, 4, 128, 512, 2, 16, 32, 8),
    "small": SMALL,
    "small12": replace(SMALL, layers=12),
    "base": Scale(768, 12, 12, 3072, 32000, 8, 512, 224, 16),
}


@dataclass(slots=True)
class Workload:
    """A model and what to call it with. Floating-point inputs and the module are float32; `cast` changes both."""

    name: str
    module: nn.Module
    inputs: Inputs
    targets: Inputs = field(default_factory=dict)
    loss: Callable[[Any], Tensor] = lambda result: result
    inference: bool = True

    def cast(self, dtype: torch.dtype) -> Workload:
        """The same workload with parameters, buffers and inputs of another type; changes the module in place."""
        self.module.to(dtype)
        self.inputs = {k: cast(v, dtype) for k, v in self.inputs.items()}
        self.targets = {k: cast(v, dtype) for k, v in self.targets.items()}
        return self

    def to(self, device: str) -> Workload:
        """The same workload on a device; changes the module in place."""
        self.module.to(device)
        self.inputs, self.targets = (
            {k: v.to(device) if isinstance(v, Tensor) else v for k, v in some.items()}
            for some in (self.inputs, self.targets)
        )
        return self


def cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


Builder = Callable[[Scale], Workload]
BUILDERS: dict[str, Builder] = {}


def workload(name: str) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        BUILDERS[name] = builder
        return builder

    return register


def build(name: str, scale: str, seed: int = 0) -> Workload:
    """The workload `name` (a key of BUILDERS) at `scale` (a key of SCALES), the same whenever the seed is the same."""
    torch.manual_seed(seed)
    return BUILDERS[name](SCALES[scale])


# ---- Hugging Face models from configs --------------------------------------------------------------------------------


DROPOUT_KNOBS = (
    *("dropout", "dropout_rate", "attention_dropout", "activation_dropout", "hidden_dropout", "layerdrop"),
    *("resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("feat_proj_dropout", "final_dropout", "classifier_dropout_prob"),
)


def tokens(s: Scale, length: int | None = None) -> Tensor:
    return torch.randint(0, s.vocabulary, (s.batch, length or s.sequence))


def hf(name: str, config: Any, head: str, inputs: Inputs, targets: Inputs) -> Workload:
    """A workload of a transformers class that computes its own loss; without dropout, so that results compare."""
    import transformers

    for knob in DROPOUT_KNOBS:
        if hasattr(config, knob):
            setattr(config, knob, 0.0)
    config.use_cache = False
    return Workload(name, getattr(transformers, head)(config), inputs, targets, lambda result: result.loss)


def causal(name: str, config: Any, head: str, s: Scale) -> Workload:
    ids = tokens(s)
    return hf(name, config, head, {"input_ids": ids}, {"labels": ids})


def common(s: Scale) -> dict[str, Any]:
    """The names most HF configs share."""
    return {
        "vocab_size": s.vocabulary,
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "intermediate_size": s.feed_forward,
    }


@workload("gpt2")
def gpt2(s: Scale) -> Workload:
    from transformers import GPT2Config

    config = GPT2Config(
        vocab_size=s.vocabulary,
        n_positions=max(s.sequence, 64),
        n_embd=s.hidden,
        n_layer=s.layers,
        n_head=s.heads,
        n_inner=s.feed_forward,
        bos_token_id=0,
        eos_token_id=0,
    )
    return causal("gpt2", config, "GPT2LMHeadModel", s)


@workload("llama")
def llama(s: Scale) -> Workload:
    from transformers import LlamaConfig

    return causal("llama", LlamaConfig(**common(s), num_key_value_heads=s.heads // 2), "LlamaForCausalLM", s)


@workload("gemma2")
def gemma2(s: Scale) -> Workload:
    from transformers import Gemma2Config

    config = Gemma2Config(
        **common(s),
        num_key_value_heads=s.heads // 2,
        head_dim=s.hidden // s.heads,
        sliding_window=max(s.sequence // 2, 4),
    )
    return causal("gemma2", config, "Gemma2ForCausalLM", s)


@workload("mixtral")
def mixtral(s: Scale) -> Workload:
    from transformers import MixtralConfig

    return causal(
        "mixtral",
        MixtralConfig(**common(s), num_key_value_heads=s.heads // 2, num_local_experts=4),
        "MixtralForCausalLM",
        s,
    )


@workload("mamba2")
def mamba2(s: Scale) -> Workload:
    from transformers import Mamba2Config

    config = Mamba2Config(
        vocab_size=s.vocabulary,
        hidden_size=s.hidden,
        num_hidden_layers=s.layers,
        num_heads=s.heads * 2,
        head_dim=s.hidden // s.heads,
        state_size=16,
        n_groups=1,
        chunk_size=max(s.sequence // 4, 4),
    )
    return causal("mamba2", config, "Mamba2ForCausalLM", s)


@workload("bert")
def bert(s: Scale) -> Workload:
    from transformers import BertConfig

    ids = tokens(s)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return hf(
        "bert",
        BertConfig(**common(s), max_position_embeddings=max(s.sequence, 64)),
        "BertForMaskedLM",
        inputs,
        {"labels": ids},
    )


@workload("deberta")
def deberta(s: Scale) -> Workload:
    from transformers import DebertaV2Config

    ids = tokens(s)
    config = DebertaV2Config(
        **common(s),
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=32,
        max_position_embeddings=max(s.sequence, 64),
    )
    return hf("deberta", config, "DebertaV2ForMaskedLM", {"input_ids": ids}, {"labels": ids})


@workload("t5")
def t5(s: Scale) -> Workload:
    from transformers import T5Config

    config = T5Config(
        vocab_size=s.vocabulary,
        d_model=s.hidden,
        d_kv=s.hidden // s.heads,
        d_ff=s.feed_forward,
        num_layers=s.layers,
        num_heads=s.heads,
        decoder_start_token_id=0,
    )
    ids, labels = tokens(s), tokens(s, s.sequence // 2)
    return hf(
        "t5", config, "T5ForConditionalGeneration", {"input_ids": ids, "decoder_input_ids": labels}, {"labels": labels}
    )


@workload("vit")
def vit(s: Scale) -> Workload:
    from transformers import ViTConfig

    config = ViTConfig(
        **{k: v for k, v in common(s).items() if k != "vocab_size"},
        image_size=s.image,
        patch_size=s.patch,
        num_labels=10,
    )
    pixels = torch.randn(s.batch, 3, s.image, s.image)
    return hf(
        "vit",
        config,
        "ViTForImageClassification",
        {"pixel_values": pixels},
        {"labels": torch.randint(0, 10, (s.batch,))},
    )


@workload("segformer")
def segformer(s: Scale) -> Workload:
    from transformers import SegformerConfig

    width = s.hidden // 8
    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[width, 2 * width, 4 * width, 8 * width],
        num_attention_heads=[1, 2, 4, 8],
        decoder_hidden_size=s.hidden,
        num_labels=10,
        drop_path_rate=0.0,
    )
    pixels = torch.randn(s.batch, 3, s.image, s.image)
    labels = torch.randint(0, 10, (s.batch, s.image, s.image))
    return hf("segformer", config, "SegformerForSemanticSegmentation", {"pixel_values": pixels}, {"labels": labels})


@workload("clip")
def clip(s: Scale) -> Workload:
    from transformers import CLIPConfig

    sizes = {k: v for k, v in common(s).items() if k != "vocab_size"}
    text = {
        **sizes,
        "vocab_size": s.vocabulary,
        "max_position_embeddings": max(s.sequence, 64),
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    vision = {**sizes, "image_size": s.image, "patch_size": s.patch}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=s.hidden)
    inputs = {"input_ids": tokens(s), "pixel_values": torch.randn(s.batch, 3, s.image, s.image)}
    return hf("clip", config, "CLIPModel", inputs, {"return_loss": True})


@workload("wav2vec2")
def wav2vec2(s: Scale) -> Workload:
    from transformers import Wav2Vec2Config

    config = Wav2Vec2Config(
        **{**common(s), "vocab_size": 32},
        conv_dim=(s.hidden // 2,) * 3,
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 8, 4),
        num_feat_extract_layers=3,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
        mask_time_prob=0.0,
    )
    audio = torch.randn(s.batch, 80 * s.sequence)
    labels = torch.randint(1, 32, (s.batch, max(s.sequence // 8, 2)))
    return hf("wav2vec2", config, "Wav2Vec2ForCTC", {"input_values": audio}, {"labels": labels})


@workload("patchtst")
def patchtst(s: Scale) -> Workload:
    from transformers import PatchTSTConfig

    config = PatchTSTConfig(
        num_input_channels=4,
        context_length=4 * s.sequence,
        prediction_length=s.sequence // 2,
        patch_length=8,
        patch_stride=8,
        d_model=s.hidden,
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        ffn_dim=s.feed_forward,
        loss="mse",
        head_dropout=0.0,
        ff_dropout=0.0,
        path_dropout=0.0,
    )
    past = torch.randn(s.batch, 4 * s.sequence, 4)
    return hf(
        "patchtst",
        config,
        "PatchTSTForPrediction",
        {"past_values": past},
        {"future_values": torch.randn(s.batch, s.sequence // 2, 4)},
    )


# ---- models of our own -----------------------------------------------------------------------------------------------


def images(s: Scale) -> tuple[Inputs, Inputs]:
    return {"x": torch.randn(s.batch, 3, s.image, s.image)}, {"targets": torch.randint(0, 100, (s.batch,))}


@workload("mlp")
def mlp(s: Scale) -> Workload:
    rows = s.batch * s.sequence
    return Workload(
        "mlp",
        plain.MLP(s.hidden, s.feed_forward, s.layers, 10),
        {"x": torch.randn(rows, s.hidden)},
        {"targets": torch.randint(0, 10, (rows,))},
    )


@workload("resnet18")
def resnet18(s: Scale) -> Workload:
    return Workload("resnet18", plain.ResNet(plain.BasicBlock, (2, 2, 2, 2), 100), *images(s))


@workload("resnet50")
def resnet50(s: Scale) -> Workload:
    return Workload("resnet50", plain.ResNet(plain.Bottleneck, (3, 4, 6, 3), 100), *images(s))


@workload("unet")
def unet(s: Scale) -> Workload:
    size = s.image // 4
    x = torch.randn(s.batch, 4, size, size)
    return Workload(
        "unet",
        plain.UNet(s.hidden // 4, s.heads),
        {"x": x, "time": torch.randint(0, 1000, (s.batch,))},
        {"noise": torch.randn_like(x)},
    )


@workload("lstm")
def lstm(s: Scale) -> Workload:
    return Workload(
        "lstm", plain.LSTMLanguageModel(s.vocabulary, s.hidden, 2), {"tokens": tokens(s)}, {"targets": tokens(s)}
    )


@workload("hand_lstm")
def hand_lstm(s: Scale) -> Workload:
    x = torch.randn(8 * s.batch, min(s.sequence, 32), s.hidden)
    return Workload(
        "hand_lstm", plain.HandLSTM(s.hidden, s.hidden), {"x": x}, {"targets": torch.randn(8 * s.batch, s.hidden)}
    )


@workload("stencil")
def stencil(s: Scale) -> Workload:
    size = 4 * s.image
    return Workload(
        "stencil", plain.Stencil(size, 8), {"u": torch.randn(size, size)}, {"targets": torch.randn(size, size)}
    )


@workload("equation_of_state")
def equation_of_state(s: Scale) -> Workload:
    points = s.image * s.image * 16
    inputs = {"s": 30.0 + 10.0 * torch.rand(points), "t": 30.0 * torch.rand(points), "p": 500.0 * torch.rand(points)}
    return Workload(
        "equation_of_state", plain.EquationOfState(), inputs, {"targets": 1000.0 + 50.0 * torch.rand(points)}
    )


@workload("sac")
def sac(s: Scale) -> Workload:
    rows, observation, action = s.batch * s.sequence, 17, 6
    return Workload(
        "sac",
        plain.SoftActorCritic(observation, action, s.hidden),
        {"observation": torch.randn(rows, observation), "noise": torch.randn(rows, action)},
        {
            "action": torch.rand(rows, action) * 2.0 - 1.0,
            "reward": torch.randn(rows, 1),
            "following": torch.randn(rows, observation),
            "following_noise": torch.randn(rows, action),
        },
    )


@workload("graph_network")
def graph_network(s: Scale) -> Workload:
    nodes = s.batch * s.sequence * 8
    return Workload(
        "graph_network",
        plain.GraphNetwork(s.hidden // 4, s.hidden // 2, 3, 10),
        {"x": torch.randn(nodes, s.hidden // 4), "edges": torch.randint(0, nodes, (2, 4 * nodes))},
        {"targets": torch.randint(0, 10, (nodes,))},
    )


@workload("maml")
def maml(s: Scale) -> Workload:
    x = torch.rand(4, s.sequence, 1) * 10.0 - 5.0
    support_x, query_x = x[:2].flatten(0, 1), x[2:].flatten(0, 1)
    inputs = {"support_x": support_x, "support_y": support_x.sin(), "query_x": query_x, "query_y": query_x.sin()}
    return Workload("maml", plain.MAML(s.hidden, 3), inputs, inference=False)


ISSUE_MODELS = ("mlp", "gpt2", "bert", "llama", "vit", "t5", "resnet18", "resnet50", "unet", "lstm")
"""The models of the first milestone; the default of `python -m benchmarks`."""
