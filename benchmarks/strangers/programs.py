"""The programs, one a line: who published them, where they lie, and what is changed.

None of them is in this repository. Those of a package are called by `packages.py`; the
others are read from a checkout. What is changed in them is how long they run and where
their data comes from, and nothing else; a change that no longer fits is an error.
"""

# ruff: noqa: E501
from __future__ import annotations

from typing import NamedTuple

Edit = tuple[str, str]  # a part of the program, and what stands there instead


class Program(NamedTuple):
    """One published program."""

    name: str
    origin: str  # a repository, or a package
    place: str  # a file of the repository, or a function of packages.py
    arguments: str = ""
    edits: tuple[Edit, ...] = ()
    within: float = 1e-3  # how far losses may be from those of the CPU, relatively
    names_no_device: bool = False  # torch.set_default_device says it in its place
    why_not_sim: str = ""  # why it cannot be asked to run on "sim"
    needs_a_gpu: bool = False  # it refuses to run on the CPU

    @property
    def from_package(self) -> bool:
        """Whether its code is installed, and not in a checkout."""
        return "/" not in self.origin


_EXAMPLES, _TUTORIALS = "pytorch/examples", "pytorch/tutorials"
_D2L, _MINGPT, _NANOGPT = "d2l-ai/d2l-en", "karpathy/minGPT", "karpathy/nanoGPT"
FOLDERS = {
    each: each.split("/")[1]
    for each in (_EXAMPLES, _TUTORIALS, _D2L, _MINGPT, _NANOGPT)
}

_IN_ORDER: Edit = ('"shuffle": True', '"shuffle": False')
_NO_WORKERS: Edit = ("'num_workers': 1, ", "")  # it draws its seed at another time
_NO_WORKERS_ALONE: Edit = ("'num_workers': 1,", "")
_IN_ORDER_2: Edit = ("'shuffle': True", "'shuffle': False")
_QUICK = (("range(2000)", "range(60)"), ("% 100 == 99", "% 20 == 19"))
_ONE_EPOCH: Edit = ("max_epochs=10", "max_epochs=1")
_HALF = 3e-2  # of losses that were computed in half precision
_ONLY_CUDA = "it calls functions that only torch.cuda has"
_KNOWS_CUDA = "a package, or a module beside it, asks for CUDA by name"

PROGRAMS = (
    # ------------------------------------------------ PyTorch's examples
    Program("MNIST", _EXAMPLES, "mnist/main.py", "--epochs 1", (_IN_ORDER_2,)),
    Program("MNIST, LSTM", _EXAMPLES, "mnist_rnn/main.py", "--epochs 1 --accel",
            (_NO_WORKERS,)),
    Program("MNIST, forward-forward", _EXAMPLES, "mnist_forward_forward/main.py",
            "--epochs 3 --train_size 64 --test_size 32", (_IN_ORDER,)),
    Program("VAE", _EXAMPLES, "vae/main.py", "--epochs 1 --batch-size 32",
            (("'results/", "'"), _NO_WORKERS)),
    Program("Siamese network", _EXAMPLES, "siamese_network/main.py",
            "--epochs 1 --batch-size 16", (_IN_ORDER_2, _NO_WORKERS_ALONE)),
    Program("DCGAN", _EXAMPLES, "dcgan/main.py",
            "--dataset mnist --dataroot . --workers 0 --batchSize 16 --ngf 8 --ndf 8"
            " --niter 1 --accel --manualSeed 1"),
    Program("ImageNet, resnet18", _EXAMPLES, "imagenet/main.py",
            "--dummy --epochs 1 -b 4 -j 0 --gpu 0",
            (("1281167, (3, 224, 224)", "12, (3, 64, 64)"),
             ("50000, (3, 224, 224)", "8, (3, 64, 64)"),
             ("shuffle=(train_sampler is None)", "shuffle=False")),
            needs_a_gpu=True),  # on each of two GPUs norms are of half a batch
    Program("Word language model, LSTM", _EXAMPLES, "word_language_model/main.py",
            "--accel --epochs 1 --dry-run --emsize 16 --nhid 16 --dropout 0 --data words"),
    Program("Word language model, transformer", _EXAMPLES,
            "word_language_model/main.py",
            "--accel --model Transformer --epochs 1 --dry-run --emsize 16 --nhid 16"
            " --data words", needs_a_gpu=True),  # its attention drops out on the device
    Program("Polynomial regression", _EXAMPLES, "regression/main.py", "",
            (("loss < 1e-3", "loss < 0.05 or batch_idx > 200"),), names_no_device=True),
    # ----------------------------------------------- PyTorch's tutorials
    Program("Quickstart", _TUTORIALS, "beginner_source/basics/quickstart_tutorial.py",
            "", (("epochs = 5", "epochs = 1"),)),
    Program("Autograd", _TUTORIALS, "beginner_source/basics/autogradqs_tutorial.py",
            names_no_device=True),
    Program("Tensors", _TUTORIALS, "beginner_source/basics/tensorqs_tutorial.py", "",
            (("tensor = torch.ones(4, 4)", 'tensor = torch.ones(4, 4, device="cpu")'),
             ("t = torch.ones(5)", 't = torch.ones(5, device="cpu")'))),
    Program("Build a model", _TUTORIALS, "beginner_source/basics/buildmodel_tutorial.py"),
    Program("Polynomial, tensors", _TUTORIALS,
            "beginner_source/examples_tensor/polynomial_tensor.py", "",
            (('device = torch.device("cpu")', 'device = torch.device("cuda:0")'), *_QUICK)),
    Program("Polynomial, autograd", _TUTORIALS,
            "beginner_source/examples_autograd/polynomial_autograd.py", "",
            _QUICK),
    Program("Polynomial, custom function", _TUTORIALS,
            "beginner_source/examples_autograd/polynomial_custom_function.py", "",
            (('device = torch.device("cpu")', 'device = torch.device("cuda:0")'), *_QUICK)),
    Program("Polynomial, nn", _TUTORIALS, "beginner_source/examples_nn/polynomial_nn.py",
            "", _QUICK, names_no_device=True),
    Program("Polynomial, optim", _TUTORIALS,
            "beginner_source/examples_nn/polynomial_optim.py", "", _QUICK,
            names_no_device=True),
    Program("Polynomial, dynamic net", _TUTORIALS,
            "beginner_source/examples_nn/dynamic_net.py", "",
            (("range(30000)", "range(60)"),), names_no_device=True),
    Program("Neural networks", _TUTORIALS,
            "beginner_source/blitz/neural_networks_tutorial.py", names_no_device=True),
    Program("Data parallelism", _TUTORIALS,
            "beginner_source/blitz/data_parallel_tutorial.py"),
    Program("Training with PyTorch", _TUTORIALS, "beginner_source/introyt/trainingyt.py",
            "", (("EPOCHS = 5", "EPOCHS = 1"), ("% 1000 == 999", "% 8 == 7"),
                 ("/ 1000", "/ 8"))),
    Program("Tensors, deeper", _TUTORIALS,
            "beginner_source/introyt/tensors_deeper_tutorial.py", "",
            (("torch.empty_like(", "torch.zeros_like("), ("torch.empty(", "torch.zeros(")),
            needs_a_gpu=True),
    Program("Models", _TUTORIALS, "beginner_source/introyt/modelsyt_tutorial.py",
            names_no_device=True),
    Program("Knowledge distillation", _TUTORIALS,
            "beginner_source/knowledge_distillation_tutorial.py", "",
            (("epochs=10", "epochs=1"), ("num_workers=2", "num_workers=0"),
             ("batch_size=128", "batch_size=32"))),
    Program("Sequence models, LSTM", _TUTORIALS,
            "beginner_source/nlp/sequence_models_tutorial.py", "",
            (("range(300)", "range(4)"),), names_no_device=True),
    Program("Word embeddings", _TUTORIALS,
            "beginner_source/nlp/word_embeddings_tutorial.py", "",
            (("range(10)", "range(1)"),), names_no_device=True),
    Program("Saved tensors, hooks", _TUTORIALS,
            "intermediate_source/autograd_saved_tensors_hooks_tutorial.py", "",
            # A default device does not reach into hooks: torch has set it aside there.
            (("torch.randn(*x.size())", "torch.randn(*x.size(), device=x.device)"),),
            names_no_device=True),
    Program("Gradients per sample", _TUTORIALS, "intermediate_source/per_sample_grads.py",
            "", (("batch_size = 64", "batch_size = 4"), ("(10, (64,)", "(10, (4,)"),
                 ("timeit(100)", "timeit(1)"))),
    Program("Model ensembling", _TUTORIALS, "intermediate_source/ensembling.py", "",
            (("timeit(100)", "timeit(1)"),)),
    Program("Jacobians, Hessians", _TUTORIALS, "intermediate_source/jacobians_hessians.py",
            "", (("timeit(500)", "timeit(1)"), ("= 2048", "= 64"), ("= 512", "= 16")),
            names_no_device=True),
    Program("Neural tangent kernels", _TUTORIALS,
            "intermediate_source/neural_tangent_kernels.py", "",
            (("randn(20, 3", "randn(4, 3"), ("randn(5, 3", "randn(2, 3"))),
    Program("Forward-mode AD", _TUTORIALS, "intermediate_source/forward_ad_usage.py",
            names_no_device=True),
    Program("Convolution and norm, fused", _TUTORIALS,
            "intermediate_source/custom_function_conv_bn_tutorial.py", "", (_IN_ORDER_2,),
            needs_a_gpu=True),
    Program("Spatial transformer", _TUTORIALS,
            "intermediate_source/spatial_transformer_tutorial.py", "",
            (("range(1, 20 + 1)", "range(1, 2)"), ("num_workers=4", "num_workers=0"),
             ("from six.moves import urllib", "import urllib.request"))),
    Program("Pruning", _TUTORIALS, "intermediate_source/pruning_tutorial.py"),
    Program("Parametrizations", _TUTORIALS, "intermediate_source/parametrizations.py",
            names_no_device=True),
    Program("Mixed precision", _TUTORIALS, "recipes_source/recipes/amp_recipe.py", "",
            (("batch_size = 512", "batch_size = 16"), ("in_size = 4096", "in_size = 32"),
             ("out_size = 4096", "out_size = 32"), ("num_batches = 50", "num_batches = 3"),
             ), within=_HALF, needs_a_gpu=True,
            why_not_sim=_ONLY_CUDA),
    Program("The default device", _TUTORIALS,
            "recipes_source/recipes/changing_default_device.py", needs_a_gpu=True),
    Program("Pinned memory, non_blocking", _TUTORIALS,
            "intermediate_source/pinmem_nonblock.py", "",
            (("min_run_time=1.0, max_run_time=20.0", "min_run_time=0.01, max_run_time=0.1"),
             ("1024**2 * 5", "1024"), ("range(1000)", "range(10)"),
             ("randn(1_000_000", "randn(10_000"), ("(100, 999999)", "(2, 999999)")), needs_a_gpu=True,
            why_not_sim=_ONLY_CUDA),
    # ------------------------------------------------ Dive into Deep Learning
    Program("Use a GPU", _D2L, "chapter_builders-guide/use-gpu.md", needs_a_gpu=True),
    Program("Lazy initialization", _D2L, "chapter_builders-guide/lazy-init.md",
            names_no_device=True),
    Program("Parameters", _D2L, "chapter_builders-guide/parameters.md",
            names_no_device=True),
    Program("Custom layers", _D2L, "chapter_builders-guide/custom-layer.md",
            names_no_device=True),
    Program("Linear regression from scratch", _D2L,
            "chapter_linear-regression/linear-regression-scratch.md", "",
            (("max_epochs=3", "max_epochs=1, num_gpus=1"),),
            why_not_sim=_KNOWS_CUDA),
    Program("Multilayer perceptrons", _D2L,
            "chapter_multilayer-perceptrons/mlp-implementation.md", "",
            (("max_epochs=10", "max_epochs=1, num_gpus=1"),),
            why_not_sim=_KNOWS_CUDA),
    Program("LeNet", _D2L, "chapter_convolutional-neural-networks/lenet.md", "",
            (_ONE_EPOCH,),
            why_not_sim=_KNOWS_CUDA),
    Program("Batch normalization", _D2L, "chapter_convolutional-modern/batch-norm.md", "",
            (_ONE_EPOCH,),
            why_not_sim=_KNOWS_CUDA),
    Program("Residual networks", _D2L, "chapter_convolutional-modern/resnet.md", "",
            (_ONE_EPOCH, ("resize=(96, 96)", "resize=(32, 32)")),
            why_not_sim=_KNOWS_CUDA),
    Program("Recurrent networks", _D2L, "chapter_recurrent-neural-networks/rnn-scratch.md",
            "", (("max_epochs=100", "max_epochs=1"),),
            why_not_sim=_KNOWS_CUDA),
    Program("LSTM from scratch", _D2L, "chapter_recurrent-modern/lstm.md", "",
            (("max_epochs=50", "max_epochs=1"),),
            why_not_sim=_KNOWS_CUDA),
    Program("Multi-head attention", _D2L,
            "chapter_attention-mechanisms-and-transformers/multihead-attention.md",
            names_no_device=True),
    Program("Vision transformer", _D2L,
            "chapter_attention-mechanisms-and-transformers/vision-transformer.md", "",
            (_ONE_EPOCH, ("img_size, patch_size = 96, 16", "img_size, patch_size = 32, 8"),
             ("512, 2048, 8, 2", "32, 64, 4, 2")),
            why_not_sim=_KNOWS_CUDA),
    Program("Automatic parallelism", _D2L,
            "chapter_computational-performance/auto-parallelism.md", "",
            (("(4000, 4000)", "(64, 64)"), ("range(50)", "range(3)")), needs_a_gpu=True,
            why_not_sim=_KNOWS_CUDA),
    Program("Training on multiple GPUs", _D2L,
            "chapter_computational-performance/multiple-gpus.md", "",
            (("num_epochs = 10", "num_epochs = 1"), ("batch_size=256", "batch_size=32")),
            needs_a_gpu=True,
            why_not_sim=_KNOWS_CUDA),
    # --------------------------------------------------------- GPTs by hand
    Program("minGPT, adding numbers", _MINGPT, "projects/adder/adder.py",
            "--trainer.max_iters=3 --trainer.num_workers=0 --model.model_type=gpt-nano",
            (("3: 5}", "3: 1}"), ("max_batches=None", "max_batches=1"),
             ("{1: None, 2: None", "{1: 1, 2: 1")),
            why_not_sim=_KNOWS_CUDA),
    Program("nanoGPT, training", _NANOGPT, "train.py",
            "--device=cuda --compile=False --eval_iters=1 --eval_interval=2 --log_interval=1"
            " --block_size=16 --batch_size=4 --n_layer=2 --n_head=2 --n_embd=16"
            " --max_iters=3 --lr_decay_iters=3 --dropout=0.0 --dataset=noise"
            " --gradient_accumulation_steps=2 --dtype=float32", why_not_sim=_ONLY_CUDA),
    Program("nanoGPT, training in bfloat16", _NANOGPT, "train.py",
            "--device=cuda --compile=False --eval_iters=1 --eval_interval=2 --log_interval=1"
            " --block_size=16 --batch_size=4 --n_layer=2 --n_head=2 --n_embd=16"
            " --max_iters=3 --lr_decay_iters=3 --dropout=0.0 --dataset=noise"
            " --gradient_accumulation_steps=2 --dtype=bfloat16", within=_HALF,
            why_not_sim=_ONLY_CUDA),
    # ------------------------------------------------------------- packages
    Program("GPT-2, training and writing", "transformers", "gpt2"),
    Program("GPT-2, beams and sampling", "transformers", "gpt2_sampling"),
    Program("BERT", "transformers", "bert"),
    Program("T5", "transformers", "t5"),
    Program("Mixtral", "transformers", "mixtral"),
    Program("Llama in bfloat16", "transformers", "llama_bfloat16", within=_HALF),
    Program("ViT", "transformers", "vit"),
    Program("Whisper", "transformers", "whisper"),
    Program("Trainer", "transformers", "trainer", why_not_sim=_KNOWS_CUDA),
    Program("Trainer on two GPUs", "transformers", "trainer_on_all", needs_a_gpu=True,
            why_not_sim=_KNOWS_CUDA),
    Program("BERT, classifying", "transformers", "pipeline"),
    Program("resnet18", "timm", "timm_resnet18"),
    Program("ViT, tiny", "timm", "timm_vit"),
    Program("ConvNeXt", "timm", "timm_convnext"),
    Program("EfficientNet", "timm", "timm_efficientnet"),
    Program("MobileNet v3", "timm", "timm_mobilenet"),
    Program("Swin", "timm", "timm_swin"),
    Program("resnet18", "torchvision", "vision_resnet18"),
    Program("MobileNet v3", "torchvision", "vision_mobilenet"),
    Program("ShuffleNet v2", "torchvision", "vision_shufflenet"),
    Program("DenseNet", "torchvision", "vision_densenet"),
    Program("ViT", "torchvision", "vision_transformer"),
    Program("Faster R-CNN", "torchvision", "vision_detection"),
    Program("Segmentation", "torchvision", "vision_segmentation"),
    Program("Trainer", "lightning", "lightning_fit", why_not_sim=_KNOWS_CUDA),
    Program("Trainer in bfloat16", "lightning", "lightning_mixed", within=_HALF,
            why_not_sim=_KNOWS_CUDA),
    Program("Fabric", "lightning", "lightning_fabric", why_not_sim=_KNOWS_CUDA),
    Program("Prepared loop", "accelerate", "accelerate_loop", why_not_sim=_KNOWS_CUDA),
    Program("Layers", "einops", "einops_layers"),
)  # fmt: skip
