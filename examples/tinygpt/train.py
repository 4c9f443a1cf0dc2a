"""Train a small GPT on text that every machine has: the source of the Python standard library.

Each byte is a token. ``--size`` selects a model; ``--state-mib`` selects one by the size of its checkpoint.
The calls of ``spot.`` and ``run.`` are cloudspot's; the rest is an ordinary DistributedDataParallel script,
which also runs without a job: ``python train.py``, or with torchrun.
"""

import argparse
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import cloudspot.train as spot

VOCABULARY = 256
TEXT_BYTES = 3 * 2**20  # equal for every version of Python, so that all nodes have the same steps
STATE_BYTES = 12  # per parameter: the weight and Adam's two moments, 4 bytes each
PROMPT = b"def "


@dataclass(frozen=True)
class Size:
    """A model by the size of its checkpoint, and the length of its training."""

    state_mib: float
    context: int  # the number of bytes that the model sees
    batch_size: int  # windows per step and process
    windows: int  # windows per epoch, spread evenly over the text
    epochs: int


SIZES = {
    "tiny": Size(state_mib=1, context=64, batch_size=8, windows=320, epochs=3),
    "small": Size(state_mib=6, context=64, batch_size=16, windows=3200, epochs=2),
    "medium": Size(state_mib=100, context=128, batch_size=4, windows=80, epochs=2),
    "large": Size(state_mib=1000, context=64, batch_size=2, windows=32, epochs=1),
}


# --- the model --------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, dim))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A model like GPT-2: the number of heads equals that of layers and divides the width."""

    def __init__(self, context: int, layers: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.context = context
        self.bytes, self.places = nn.Embedding(VOCABULARY, dim), nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, layers, hidden) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCABULARY, bias=False)
        for weight in (self.bytes.weight, self.places.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def count_parameters(context: int, layers: int, dim: int, hidden: int) -> int:
    block = 4 * dim * (dim + 1) + 2 * dim * hidden + hidden + dim + 4 * dim
    return layers * block + (2 * VOCABULARY + context + 2) * dim


def shape_for(state_mib: float, context: int) -> tuple[int, int, int]:
    """Return the layers, width and MLP width of a GPT whose weights and moments have this size."""
    parameters = int(state_mib * 2**20 / STATE_BYTES)
    layers = max(1, round((parameters / 12 / 64**2) ** (1 / 3)))  # in GPT-2, the width is 64 per layer
    dim = layers * 8
    while count_parameters(context, layers, dim + layers * 8, 4 * (dim + layers * 8)) <= parameters:
        dim += layers * 8
    missing = parameters - count_parameters(context, layers, dim, 4 * dim)
    return layers, dim, 4 * dim + missing // (layers * (2 * dim + 1))


# --- the data ---------------------------------------------------------------------------------------


class Windows(Dataset):
    """Pieces of the text for the model, each with the target: the same piece one byte later."""

    def __init__(self, text: torch.Tensor, context: int, count: int) -> None:
        self.text, self.context, self.count = text, context, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        start = index * (len(self.text) - self.context - 1) // self.count
        window = self.text[start : start + self.context + 1].long()
        return window[:-1], window[1:]


def read_library() -> torch.Tensor:
    """Return the first bytes of the standard library's own modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if len(text) < TEXT_BYTES:
        raise SystemExit(f"{folder} holds {len(text)} bytes of *.py files: {TEXT_BYTES} are needed")
    return torch.frombuffer(bytearray(text[:TEXT_BYTES]), dtype=torch.uint8)


# --- training ---------------------------------------------------------------------------------------


@torch.no_grad()
def generate(model: GPT, device: torch.device, length: int) -> str:
    """Return the model's continuation of the prompt."""
    chance = torch.Generator().manual_seed(0)
    tokens = list(PROMPT)
    for _ in range(length):
        seen = torch.tensor([tokens[-model.context :]], device=device)
        likely, which = model(seen)[0, -1].float().cpu().topk(20)
        tokens.append(int(which[torch.multinomial((likely / 0.7).softmax(0), 1, generator=chance)]))
    written = bytes(tokens).decode("ascii", errors="replace")
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in written)


def parse_arguments(words: list[str] | None = None) -> Size:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--state-mib", type=float, help="weights and moments, 1 to 1024")
    for name in ("context", "batch-size", "windows", "epochs"):
        parser.add_argument(f"--{name}", type=int, help="default: the size's")
    given = {name: value for name, value in vars(parser.parse_args(words)).items() if value is not None}
    size = Size(**{**vars(SIZES[given.pop("size")]), **given})
    if not 1 <= size.state_mib <= 1024:
        parser.error(f"--state-mib must be from 1 to 1024: got {size.state_mib:g}")
    return size


def main() -> None:
    size = parse_arguments()
    device = spot.init_process_group()
    torch.set_num_threads(1)  # nodes on one computer would otherwise compete for cores
    torch.manual_seed(0)
    layers, dim, hidden = shape_for(size.state_mib, size.context)
    model = GPT(size.context, layers, dim, hidden).to(device)
    trained = DistributedDataParallel(model) if torch.distributed.is_initialized() else model
    windows = Windows(read_library(), size.context, size.windows)
    sampler = DistributedSampler(windows) if torch.distributed.is_initialized() else None
    loader = DataLoader(windows, batch_size=size.batch_size, sampler=sampler, shuffle=sampler is None)
    total = size.epochs * len(loader)
    optimizer = torch.optim.AdamW(model.parameters(), lr=min(3e-3, 0.4 / dim))
    scheduler = torch.optim.lr_scheduler.LambdaLR(  # rise for some steps, then fall to a tenth
        optimizer, lambda step: min((step + 1) / 10, max(0.1, 1 - step / total))
    )

    run = spot.session(model=trained, optimizer=optimizer, scheduler=scheduler)
    if run.rank == 0:
        parameters = sum(each.numel() for each in model.parameters())
        weight = parameters * STATE_BYTES / 2**20
        print(f"{parameters:,} parameters, a checkpoint of {weight:.1f} MiB", flush=True)
        print(f"step {run.step} of {total}" + (", back again" if run.resumed else ""), flush=True)

    for seen, following in run.batches(loader, epochs=size.epochs):
        answers = trained(seen.to(device)).flatten(0, 1)
        loss = F.cross_entropy(answers, following.to(device).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if run.rank == 0 and (run.step % 20 == 0 or run.step == total - 1):
            run.log(loss=loss.item())
            print(f"step {run.step:4d}  loss {loss.item():.3f}", flush=True)

    if run.rank == 0:
        sample = generate(model, device, length=200)
        (run.artifacts / "sample.txt").write_text(sample)
        print(f"done after {run.step} steps; what it writes:\n\n{sample}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
