"""A hidden Chow-Liu tree on all of FashionMNIST: `python -m bench.train_fashion`.

Trains by mini-batch EM with a step size that falls linearly, and prints seconds, bits per dimension
and samples a second after each epoch; with `--peer pyjuice` PyJuice does the same afterwards, with
the same graph, parameters, batches and schedule. Writes fashion.json and fashion.png.

The data are Debian's package `dataset-fashion-mnist`: `apt-get download dataset-fashion-mnist` and
`dpkg -x` put them into a folder that `--data` takes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import jaxjuice as juice
from bench._machine import describe_machine, versions
from jaxjuice.data import load_dataset

PACKAGES = ("jaxjuice", "jax", "jaxlib", "numpy", "optax", "pyjuice", "torch", "triton")
RESULTS = Path(__file__).parent / "results"
# The published test bits per dimension of HCLTs.
PUBLISHED = 3.34
LAST_STEP_SIZE = 0.02
NATS = math.log(2) * 784


class Settings(argparse.Namespace):
    """What the command line says."""

    data: Path
    latents: int
    epochs: int
    batch: int
    first_step_size: float
    pseudocount: float
    seconds: float
    rows: int | None
    precision: str
    peer: str
    out: Path


def main() -> None:
    """Trains one library after the other."""
    settings = _parser().parse_args(namespace=Settings())
    begin = time.perf_counter()
    train, valid, test = _load(settings)
    root = juice.structures.HCLT(
        train, settings.latents, input_dist=juice.distributions.Categorical(num_cats=256)
    )
    pc = juice.compile(root, precision=settings.precision)
    params = jax.block_until_ready(pc.init(jax.random.key(0)))
    prepare_s = time.perf_counter() - begin
    print(f"{pc!r}, data, tree and program in {prepare_s:.1f} s", flush=True)
    curves = {"jaxjuice": list(_train(pc, params, settings, train, valid, test))}
    all_s = time.perf_counter() - begin
    print(f"{all_s:.1f} s in all, the evaluations after each epoch included")
    if settings.peer == "pyjuice":
        curves["pyjuice"] = list(_train_peer(pc, params, settings, train, valid, test))
    report = {
        "latents": settings.latents,
        "batch": settings.batch,
        "first_step_size": settings.first_step_size,
        "last_step_size": LAST_STEP_SIZE,
        "pseudocount": settings.pseudocount,
        "precision": settings.precision,
        "num_parameters": pc.num_parameters,
        "device": jax.devices()[0].device_kind,
        "machine": describe_machine(),
        "versions": versions(PACKAGES),
        "prepare_s": prepare_s,
        "all_s": all_s,
        "best": {library: _best(curve) for library, curve in curves.items()},
        "curves": curves,
    }
    for library, curve in curves.items():
        best = _best(curve)
        print(
            f"{library}: the validation rows choose epoch {best['epoch']}, with {best['test']:.4f} "
            "bits per dimension on the test rows"
        )
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "fashion.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report, settings.out / "fashion.png")
    print(f"written to {settings.out / 'fashion.json'} and fashion.png")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.train_fashion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    add("--latents", type=int, default=256)
    add("--epochs", type=int, default=20)
    add("--batch", type=int, default=500)
    add("--first-step-size", type=float, default=1.0)
    add("--pseudocount", type=float, default=0.01)
    add("--seconds", type=float, default=300.0, help="limit of each library's training")
    add("--rows", type=int, help="take only so many training rows")
    add("--precision", default="auto")
    add("--peer", choices=["pyjuice", "none"], default="none")
    add("--out", type=Path, default=RESULTS)
    return parser


def _load(settings: Settings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training, validation and test rows, uint8 `[rows, 784]`."""
    train, test = (
        load_dataset(settings.data / f"{name}-images-idx3-ubyte.gz").values
        for name in ("train", "t10k")
    )
    train = train[np.random.default_rng(0).permutation(len(train))][: settings.rows]
    held_out = len(train) // 12
    return train[held_out:], train[:held_out], test


def _schedule(settings: Settings, rows: int) -> optax.Schedule:
    steps = settings.epochs * math.ceil(rows / settings.batch)
    return optax.linear_schedule(settings.first_step_size, LAST_STEP_SIZE, steps)


def _train(
    pc: juice.Circuit, params: Any, settings: Settings, train, valid, test
) -> Iterator[dict[str, float]]:
    """The figures of every epoch; seconds are of training alone, compilation included."""
    tx = juice.optim.mini_batch_em(
        pc, step_size=_schedule(settings, len(train)), pseudocount=settings.pseudocount
    )
    found: list[dict[str, float]] = []

    def after_epoch(record: juice.training.EpochRecord, params: Any) -> bool:
        spent = record.seconds + (found[-1]["seconds"] if found else 0.0)
        evaluation = juice.evaluate(pc, params, test, batch_size=settings.batch)
        found.append(
            _figures(
                "jaxjuice",
                record.epoch,
                spent,
                record.samples_per_second,
                record.train_log_likelihood,
                record.valid_log_likelihood or math.nan,
                evaluation.log_likelihood,
            )
        )
        return spent > settings.seconds

    juice.fit(
        pc,
        params,
        train,
        tx,
        epochs=settings.epochs,
        batch_size=settings.batch,
        valid=valid,
        callbacks=[after_epoch],
        progress=False,
    )
    yield from found


def _train_peer(
    pc: juice.Circuit, params: Any, settings: Settings, train, valid, test
) -> Iterator[dict[str, float]]:
    import torch

    from bench.gpu._pyjuice import compile_on_gpu, translate

    device = torch.device("cuda:0")
    num_steps = settings.epochs * math.ceil(len(train) / settings.batch)
    step_sizes = np.asarray(_schedule(settings, len(train))(np.arange(num_steps)))
    peer = compile_on_gpu(translate(pc.root, pc.node_params(params)))
    tensors = [torch.from_numpy(x.astype(np.int64)).to(device) for x in (train, valid, test)]

    @torch.no_grad()
    def mean(x: Any) -> float:
        batches = (
            peer(x[i : i + settings.batch]).double() for i in range(0, len(x), settings.batch)
        )
        return float(sum(float(lls.sum()) for lls in batches)) / len(x)

    @torch.no_grad()
    def train_on(batch: Any, step: int) -> Any:
        lls = peer(batch)
        peer.backward(batch, flows_memory=0.0)
        peer.mini_batch_em(step_size=float(step_sizes[step]), pseudocount=settings.pseudocount)
        return lls.double().sum()

    spent, step = 0.0, 0
    for epoch in range(1, settings.epochs + 1):
        # The order of `juice.fit` with its default seed.
        order = np.random.default_rng([0, epoch - 1]).permutation(len(train))
        order = torch.from_numpy(order).to(device)
        torch.cuda.synchronize()
        begin, total = time.perf_counter(), 0.0
        for start in range(0, len(train), settings.batch):
            batch = tensors[0][order[start : start + settings.batch]]
            total = total + train_on(batch, step)
            step += 1
        torch.cuda.synchronize()
        taken = time.perf_counter() - begin
        spent += taken
        yield _figures(
            "pyjuice",
            epoch,
            spent,
            len(train) / taken,
            float(total) / len(train),
            mean(tensors[1]),
            mean(tensors[2]),
        )
        if spent > settings.seconds:
            return


def _best(curve: list[dict[str, float]]) -> dict[str, float]:
    """The epoch that validation would choose."""
    return min(curve, key=lambda point: point["valid"])


def _figures(
    library: str, epoch: int, seconds: float, speed: float, train: float, valid: float, test: float
) -> dict[str, float]:
    figures = {"epoch": epoch, "seconds": seconds, "samples_per_second": speed}
    figures |= {
        name: -nats / NATS for name, nats in (("train", train), ("valid", valid), ("test", test))
    }
    print(
        f"{library:9} epoch {epoch:3}  {seconds:7.1f} s  train {figures['train']:.4f}  valid "
        f"{figures['valid']:.4f}  test {figures['test']:.4f} bits per dimension  "
        f"{speed:,.0f} samples/s",
        flush=True,
    )
    return figures


def draw(report: dict[str, Any], path: Path) -> None:
    """Test bits per dimension against seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for library, curve in report["curves"].items():
        seconds = [point["seconds"] for point in curve]
        axes.plot(seconds, [point["test"] for point in curve], marker=".", label=library)
    axes.axhline(PUBLISHED, color="gray", linestyle="--", label=f"published: {PUBLISHED}")
    best = min(point["test"] for curve in report["curves"].values() for point in curve)
    first = min(curve[0]["test"] for curve in report["curves"].values())
    low, high = min(best, PUBLISHED), max(first, PUBLISHED)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.1 * (high - low))
    axes.set_xlabel("seconds of training, compilation included")
    axes.set_ylabel("test bits per dimension")
    axes.set_title(
        f"HCLT with {report['latents']} latents on FashionMNIST ({report['device']})", fontsize=10
    )
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
