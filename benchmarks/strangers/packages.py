"""Models and trainers of published packages, tiny, with random weights and noise.

Each function takes a device and returns what it computed, by name. Only the calls are
ours; all of the code that they reach is the package's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS = 3
_WORDS = 97
_SMALL = {"vocab_size": _WORDS, "hidden_size": 32, "num_hidden_layers": 2}
_GPT2 = {
    "vocab_size": _WORDS, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "attn_pdrop": 0.0,  # fused attention draws its own random numbers on the device
}  # fmt: skip
_STEADY = {"attention_probs_dropout_prob": 0.0}
_HEADS = {"num_attention_heads": 4, "intermediate_size": 64}


# ------------------------------------------------------------------- transformers


def gpt2(device: str) -> Any:
    """Train GPT-2 with AdamW and clipped gradients, then let it write."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**_GPT2)
    model = GPT2LMHeadModel(config).to(device)
    return _trained(model, device) | _written(model, device)


def gpt2_sampling(device: str) -> Any:
    """Let GPT-2 write with sampling, and with beams."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**_GPT2)
    model = GPT2LMHeadModel(config).to(device).eval()
    words = _sentences(device)[:, :6]
    ways = {"beams": {"num_beams": 3}, "sampled": {"do_sample": True, "top_k": 9}}
    return {
        name: model.generate(words, max_new_tokens=8, pad_token_id=0, **way)
        for name, way in ways.items()
    }


def bert(device: str) -> Any:
    """Train BERT to fill gaps, with a padding mask."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig(**_SMALL, **_HEADS, **_STEADY)).to(device)
    mask = torch.ones(4, 16, dtype=torch.long, device=device)
    mask[1, 9:] = 0
    return _trained(model, device, attention_mask=mask)


def t5(device: str) -> Any:
    """Train T5, and let it translate."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=_WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0, dropout_rate=0.0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).to(device)
    return _trained(model, device) | _written(model, device)


def mixtral(device: str) -> Any:
    """Train Mixtral, whose tokens go to two of four experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        **_SMALL, **_HEADS, num_key_value_heads=2, num_local_experts=4,
        max_position_embeddings=64,
    )  # fmt: skip
    model = MixtralForCausalLM(config).to(device)
    return _trained(model, device) | _written(model, device)


def llama_bfloat16(device: str) -> Any:
    """Let Llama write in bfloat16, with its cache of keys and values."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **_SMALL, **_HEADS, num_key_value_heads=2, max_position_embeddings=64
    )
    model = LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    with torch.no_grad():
        logits = model(_sentences(device)).logits
    return {"logits": logits.float()} | _written(model, device)


def vit(device: str) -> Any:
    """Train a vision transformer."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, **_HEADS, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    model = ViTForImageClassification(config).to(device)
    return _classified(lambda x: model(x).logits, model, device, 5)


def whisper(device: str) -> Any:
    """Train Whisper, a convolution in front of a transformer."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=_WORDS, d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=20,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).to(device)
    sound = torch.randn(2, 16, 40).to(device)
    labels = _sentences(device)[:2, :8]
    return _optimised(model, lambda: model(input_features=sound, labels=labels).loss)


def trainer(device: str) -> Any:
    """Train GPT-2 with transformers' own Trainer."""
    return _trainer(device, gpus=1)


def trainer_on_all(device: str) -> Any:
    """Likewise, on all GPUs that there are, which it puts into DataParallel."""
    return _trainer(device, gpus=None)


def _trainer(device: str, gpus: int | None) -> Any:
    from tempfile import TemporaryDirectory

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(**_GPT2))
    data = [{"input_ids": row, "labels": row} for row in _sentences("cpu").repeat(4, 1)]
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=4, max_steps=4,
            logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
            use_cpu=device == "cpu", dataloader_num_workers=0,
        )  # fmt: skip
        if gpus is not None and arguments.n_gpu > gpus:
            arguments._n_gpu = gpus  # noqa: SLF001 -- it takes all that it sees
        run = Trainer(model=model, args=arguments, train_dataset=data)
        found = run.train()
    return {"model": model.to("cpu"), "loss": found.training_loss}


def pipeline(device: str) -> Any:
    """Classify with transformers' pipeline."""
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**_SMALL, **_HEADS, num_labels=3))
    model = model.to(device).eval()
    with torch.inference_mode():
        logits = model(_sentences(device)).logits
    return {"probabilities": functional.softmax(logits, dim=-1)}


# ----------------------------------------------------------- timm and torchvision


def _of_timm(name: str, size: int = 64, **options: Any) -> Callable[[str], Any]:
    def train(device: str) -> Any:
        import timm

        model = timm.create_model(name, num_classes=5, **options).to(device)
        return _classified(model, model, device, 5, size)

    train.__doc__ = f"Train {name} of timm."
    return train


timm_resnet18 = _of_timm("resnet18")
timm_vit = _of_timm("vit_tiny_patch16_224", img_size=64, depth=2)
timm_convnext = _of_timm("convnext_atto")
timm_efficientnet = _of_timm("efficientnet_lite0")
timm_mobilenet = _of_timm("mobilenetv3_small_050")
timm_swin = _of_timm(
    "swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1), num_heads=(2, 4),
    embed_dim=16, size=56,
)  # fmt: skip


def _of_torchvision(name: str, size: int = 64, **options: Any) -> Callable[[str], Any]:
    def train(device: str) -> Any:
        from torchvision import models

        model = getattr(models, name)(num_classes=5, **options).to(device)
        return _classified(model, model, device, 5, size)

    train.__doc__ = f"Train {name} of torchvision."
    return train


vision_resnet18 = _of_torchvision("resnet18")
vision_mobilenet = _of_torchvision("mobilenet_v3_small")
vision_shufflenet = _of_torchvision("shufflenet_v2_x0_5")
vision_densenet = _of_torchvision("densenet121", 32)


def vision_transformer(device: str) -> Any:
    """Train torchvision's vision transformer, small."""
    from torchvision.models import VisionTransformer

    model = VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=5).to(device)
    return _classified(model, model, device, 5, 32)


def vision_detection(device: str) -> Any:
    """Train a detector and let it detect."""
    from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=4, min_size=64, max_size=64
    ).to(device)
    images = [each.to(device) for each in torch.rand(2, 3, 64, 64)]
    boxes = torch.tensor([[4.0, 4, 30, 40], [10, 12, 50, 60]]).to(device)
    targets = [{"boxes": boxes, "labels": torch.tensor([1, 2]).to(device)}] * 2
    found = _optimised(
        model, lambda: sum(model(images, targets).values()), lr=1e-3, steps=2
    )
    with torch.no_grad():
        seen = model.eval()(images)
    return found | {"boxes": seen[0]["boxes"].sum()}


def vision_segmentation(device: str) -> Any:
    """Train a network that labels each pixel."""
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    model = lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    ).to(device)
    x, y = (
        torch.randn(2, 3, 64, 64).to(device),
        torch.randint(5, (2, 64, 64)).to(device),
    )
    return _optimised(model, lambda: functional.cross_entropy(model(x)["out"], y))


# ---------------------------------------------------------------------- trainers


def lightning_fit(device: str) -> Any:
    """Fit a model with lightning's Trainer."""
    return _lightning(device, "32-true")


def lightning_mixed(device: str) -> Any:
    """Fit it in bfloat16, mixed."""
    return _lightning(device, "bf16-mixed")


def _lightning(device: str, precision: str) -> Any:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
            )

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    data = torch.utils.data.TensorDataset(torch.randn(32, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    model = Model()
    # Lightning knows its accelerators by name, and `sim` is none of them.
    where = {"cuda": "gpu"}.get(device, "cpu")
    fit = lightning.Trainer(
        accelerator=where, devices=1, max_epochs=2, logger=False, precision=precision,
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    fit.fit(model, loader)
    return {"model": model.cpu()}


def lightning_fabric(device: str) -> Any:
    """Train a loop of one's own with lightning's Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator={"cuda": "cuda"}.get(device, "cpu"), devices=1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = fabric.to_device(torch.randn(16, 8))
    for _ in range(_STEPS):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
    return {"loss": loss}


def accelerate_loop(device: str) -> Any:
    """Train a loop that Accelerate has prepared, with accumulated gradients."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=device == "cpu", gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (x,) in loader:
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return {"loss": loss, "device": float(accelerator.device.type == device)}


def einops_layers(device: str) -> Any:
    """Train layers that are written with einops."""
    from einops import rearrange, reduce
    from einops.layers.torch import EinMix, Rearrange

    model = torch.nn.Sequential(
        Rearrange("b (h p) (w q) -> b (h w) (p q)", p=4, q=4),
        EinMix("b n p -> b n d", weight_shape="p d", bias_shape="d", p=16, d=8),
    ).to(device)
    x = torch.randn(2, 16, 16).to(device)

    def loss() -> Any:
        tokens = rearrange(model(x), "b n d -> b d n")
        return reduce(tokens, "b d n -> b", "max").square().mean()

    return _optimised(model, loss)


# --------------------------------------------------------------- what they share


def _sentences(device: str) -> Any:
    return torch.randint(3, _WORDS, (4, 16)).to(device)


def _trained(model: Any, device: str, **more: Any) -> dict[str, Any]:
    words = _sentences(device)
    return _optimised(model, lambda: model(input_ids=words, labels=words, **more).loss)


def _written(model: Any, device: str) -> dict[str, Any]:
    start = _sentences(device)[:2, :5]
    words = model.eval().generate(
        start, max_new_tokens=6, do_sample=False, pad_token_id=0
    )
    return {"words": words}


def _classified(
    call: Any, model: Any, device: str, classes: int, size: int = 32, batch: int = 4
) -> dict[str, Any]:
    x = torch.randn(batch, 3, size, size).to(device)
    y = torch.randint(classes, (batch,)).to(device)
    return _optimised(model, lambda: functional.cross_entropy(call(x), y), lr=1e-3)


def _optimised(
    model: Any, loss_of: Callable[[], Any], lr: float = 1e-3, steps: int = _STEPS
) -> dict[str, Any]:
    """A few steps as most training loops take them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"model": model, "loss": loss.detach()}
