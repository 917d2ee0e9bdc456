"""The command line: what it prints and writes, and one clear line for each mistake."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxjuice.cli import app
from jaxjuice.cli._app import shorten_compilation
from jaxjuice.cli._sample import encode_samples
from jaxjuice.cli._train import choose_samples_path
from jaxjuice.data import load_dataset
from jaxjuice.io import load, model_info

TINY = ["--latents", "2", "--epochs", "2", "--batch-size", "32"]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fail(*arguments, status=2):
    """The one line that a failing command prints."""
    result = invoke(*arguments)
    assert result.exit_code == status, (result.output, result.stderr)
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("jaxjuice: error: "), line
    assert "Traceback" not in result.output
    return line


def binary_images(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, 2, (rows, 1, 1))
    return ((rng.random((rows, 2, 3)) < 0.2) ^ shared).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Images, and a model trained on them with samples as a picture."""
    folder = tmp_path_factory.mktemp("cli")
    np.save(folder / "images.npy", binary_images())
    result = invoke(
        *("train", folder / "images.npy", *TINY, "--test", "0.2", "--out", folder / "model.jjc"),
        *("--samples", folder / "samples.png", "--num-samples", "4"),
    )
    assert result.exit_code == 0, result.stderr
    (folder / "train.txt").write_text(result.stdout)
    return folder


def test_train_prints_and_writes(folder):
    text = (folder / "train.txt").read_text()
    assert "60 rows of 6 variables, whole numbers from 0 to 1" in text
    assert "42 train, 6 valid, 12 test" in text
    assert "hclt with 2 latents over Categorical(num_cats=2)" in text
    header, first, second = text.splitlines()[3:6]
    assert header.split() == (
        "epoch train LL train bpd valid LL valid bpd test LL test bpd samples/s".split()
    )
    assert first.split()[0] == "1" and second.split()[0] == "2"
    assert "test        log-likelihood" in text and "bits per dimension" in text
    about = model_info(folder / "model.jjc")
    assert about.metadata["image_shape"] == [2, 3]
    assert about.metadata["training"]["rows"] == {"train": 42, "valid": 6, "test": 12}
    png = (folder / "samples.png").read_bytes()
    assert png.startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_model(folder):
    result = invoke(
        *("train", folder / "images.npy", *TINY, "--test", "0.2", "--out", folder / "again.jjc")
    )
    assert result.exit_code == 0, result.stderr
    old, new = (load(folder / name)[1] for name in ("model.jjc", "again.jjc"))
    for name in old["sums"]:
        np.testing.assert_array_equal(old["sums"][name], new["sums"][name])


def test_images_are_sampled_beside_the_model(folder, tmp_path):
    arguments = ("train", folder / "images.npy", *TINY, "--epochs", "1", "--valid", "0")
    out = tmp_path / "a.b.jjc"
    result = invoke(*arguments, "--num-samples", "9", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert f"samples     {tmp_path / 'a.b.png'}: 9" in result.stdout
    assert (tmp_path / "a.b.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "a.b.png").unlink()
    result = invoke(*arguments, "--no-samples", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "samples  " not in result.stdout and list(tmp_path.iterdir()) == [out]


def test_where_samples_go():
    out, images = Path("here/model.jjc"), {"image_shape": [2, 3]}
    assert choose_samples_path(None, False, out, images) == Path("here/model.png")
    assert choose_samples_path(None, False, out, {}) is None
    for metadata in (images, {}):
        assert choose_samples_path("x.csv", False, out, metadata) == Path("x.csv")
        assert choose_samples_path("", False, out, metadata) is None
        assert choose_samples_path("x.csv", True, out, metadata) is None


def test_evaluate_agrees_with_the_library(folder):
    result = invoke("evaluate", folder / "model.jjc", folder / "images.npy", "--batch-size", "32")
    assert result.exit_code == 0, result.stderr
    pc, params = load(folder / "model.jjc")
    mean = float(pc.log_likelihood(params, binary_images().reshape(60, 6)).mean())
    printed = float(result.stdout.split("log-likelihood")[1].split()[0])
    assert printed == pytest.approx(mean, abs=2e-4)
    bits = float(result.stdout.split("bits per dimension")[0].split()[-1])
    assert bits == pytest.approx(-mean / np.log(2) / 6, abs=1e-4)


def test_sample_formats(folder):
    printed = invoke("sample", folder / "model.jjc", "-n", "5", "--seed", "3")
    assert printed.exit_code == 0, printed.stderr
    values = np.loadtxt(printed.stdout.splitlines(), delimiter=",", dtype=int)
    assert values.shape == (5, 6) and set(np.unique(values)) <= {0, 1}
    columns = {"columns": list("abcde") + ["f,g"]}
    (folder / "x.csv").write_bytes(encode_samples(folder / "x.csv", values, columns))
    data = load_dataset(folder / "x.csv")
    np.testing.assert_array_equal(data.values, values)
    assert data.columns == ("a", "b", "c", "d", "e", "f,g")
    halves = values / 3 + 1e6
    (folder / "y.csv").write_bytes(encode_samples(folder / "y.csv", halves, {}))
    np.testing.assert_allclose(load_dataset(folder / "y.csv").values, halves, rtol=1e-8)
    (folder / "x.npy").write_bytes(encode_samples(folder / "x.npy", values, {}))
    np.testing.assert_array_equal(np.load(folder / "x.npy"), values)


def test_info(folder):
    result = invoke("info", folder / "model.jjc", "--layers")
    assert result.exit_code == 0, result.stderr
    for text in ("6 variables", "Categorical(num_cats=2)", "float32", "structure", "Circuit("):
        assert text in result.stdout


def test_gaussian_leaves_start_at_the_data(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.normal(1e4, 50.0, (60, 2))
    values[rng.random(values.shape) < 0.1] = np.nan
    text = "height,width\n" + "\n".join(f"{a:.3f},{b:.3f}" for a, b in values)
    (tmp_path / "table.csv").write_text(text)
    arguments = (tmp_path / "table.csv", "--missing", "nan")
    out = tmp_path / "model.jjc"
    result = invoke("train", *arguments, *TINY, "--valid", "0", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "Gaussian(" in result.stdout and "% missing" in result.stdout
    assert "bpd" not in result.stdout
    # The entropy of two independent columns with this spread is about 2 * 5.3 nats.
    last = [line for line in result.stdout.splitlines() if line.strip().startswith("2 ")][0]
    assert -12 < float(last.split()[1]) < -8
    assert model_info(out).metadata["columns"] == ["height", "width"]

    (tmp_path / "turned.csv").write_text("width,other,height\n9990,1,10010\n")
    evaluated = invoke("evaluate", out, tmp_path / "turned.csv")
    assert evaluated.exit_code == 0, evaluated.stderr
    (tmp_path / "short.csv").write_text("width,other\n9990,1\n")
    message = fail("evaluate", out, tmp_path / "short.csv")
    assert "lacks the columns that are wanted: height" in message


@pytest.mark.parametrize("structure", ["hmm", "rat-spn", "pd"])
def test_other_structures(tmp_path, structure):
    np.save(tmp_path / "images.npy", binary_images(40))
    result = invoke(
        *("train", tmp_path / "images.npy", *TINY, "--structure", structure, "--epochs", "1"),
        *(
            "--valid",
            "0",
            "--out",
            tmp_path / "model.jjc",
            "--optimizer",
            "minibatch",
            "--input",
            "bernoulli",
        ),
    )
    assert result.exit_code == 0, result.stderr
    assert f"{structure} with 2 latents over Bernoulli()" in result.stdout


def test_files_that_are_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text)
        return name

    assert "no file 'nowhere.csv'" in fail("train", "nowhere.csv")
    write("names.csv", "a,label\n1,no\n2,yes\n")
    assert "text 'no' in line 2, column 'label'" in fail("train", "names.csv")
    assert "no column left" in fail("train", "names.csv", "--drop", "a", "--drop", "label")
    assert "3 columns in line 2, and 2" in fail("train", write("ragged.csv", "1,2\n3,4,5\n"))
    assert "has 1 column in line 2, and 2" in fail("train", write("ragged.csv", "1,2\n3\n"))
    assert "text 'x' in line 2, column 1" in fail("train", write("text.csv", "1,2\n3,x\n"))
    assert "NaN in line 1, column 1; say --missing nan" in fail(
        "train", write("n.csv", "1,nan\n2,3")
    )
    negative = fail("train", write("negative.csv", "1,2\n3,-4\n"))
    assert "-4 in row 1, column 1, and categorical leaves take whole numbers from 0 on" in negative
    assert "0.5 in row 0, column 0, and poisson" in fail(
        "train", write("half.csv", "0.5,2\n3,4\n"), "--input", "poisson"
    )
    assert "too few" in fail("train", write("one.csv", "1,2\n"))
    assert "is empty" in fail("train", write("empty.csv", ""))
    assert not (tmp_path / "model.jjc").exists()


def test_options_that_are_wrong(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = folder / "images.npy"
    assert "no folder" in fail("train", data, "--out", tmp_path / "nowhere" / "model.jjc")
    assert "it is a folder" in fail("train", data, "--out", tmp_path)
    assert "ends in .png, .npy, .csv" in fail("train", data, "--samples", "x.gif")
    assert "written like 28x28" in fail("train", data, "--image-shape", "28")
    assert "images of 3x3 have 9" in fail("train", data, "--image-shape", "3x3")
    assert "leave too few rows" in fail("train", data, "--valid", "0.5", "--test", "0.5")
    assert "not by 'x'" in fail("train", data, "--missing", "x")
    assert "no column 'a' to drop" in fail("train", data, "--drop", "a")
    np.save(tmp_path / "flat.npy", binary_images().reshape(60, 6))
    assert "say --image-shape" in fail("train", "flat.npy", "--structure", "pd")
    assert "were no images" in fail("train", "flat.npy", "--samples", "x.png")
    assert list(tmp_path.iterdir()) == [tmp_path / "flat.npy"]
    assert "cannot both go to model.png" in fail("train", data, "--out", "model.png")


def test_usage_errors(folder):
    data = folder / "images.npy"
    unknown = fail("train", data, "--structure", "forest")
    assert "'forest' is not one of" in unknown and "train --help` lists" in unknown
    assert "Invalid value for '--latents': " in fail("train", data, "--latents", "0")
    assert "o such option: --latent" in fail("train", data, "--latent", "3")
    assert "Missing argument 'DATA'" in fail("train")
    assert "No such command 'trian'" in fail("trian")
    assert "`jaxjuice --help` lists" in fail("trian")
    for arguments, status in (([], 2), (["--help"], 0), (["train", "-h"], 0)):
        shown = invoke(*arguments)
        assert shown.exit_code == status and "Usage: " in shown.output
        assert "error" not in shown.stderr


def test_models_that_are_wrong(folder, tmp_path):
    data = folder / "images.npy"
    for command in (("evaluate", "{}", data), ("sample", "{}"), ("info", "{}")):
        arguments = [str(data) if part == "{}" else part for part in command]
        assert "is not a jaxjuice model (it is a .npy array)" in fail(*arguments)
        arguments = ["nowhere.jjc" if part == "{}" else part for part in command]
        assert "nowhere.jjc cannot be read: No such file" in fail(*arguments)
    model = folder / "model.jjc"
    np.save(tmp_path / "wide.npy", np.zeros((3, 7), np.uint8))
    assert "has 7 columns, and the model" in fail("evaluate", model, tmp_path / "wide.npy")
    np.save(tmp_path / "high.npy", np.full((3, 6), 2))
    assert "holds 2" in fail("evaluate", model, tmp_path / "high.npy")
    (tmp_path / "cut.jjc").write_bytes(model.read_bytes()[:2000])
    assert "is truncated" in fail("info", tmp_path / "cut.jjc")


def test_unforeseen_errors_are_one_line_and_a_traceback_with_debug(folder, monkeypatch):
    def crash(path):
        raise ZeroDivisionError("no\nreason")

    monkeypatch.setattr("jaxjuice.cli._info.model_info", crash)
    result = invoke("info", folder / "model.jjc")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "jaxjuice: internal error: ZeroDivisionError: no reason (--debug"
    )
    result = invoke("info", folder / "model.jjc", "--debug")
    assert isinstance(result.exception, ZeroDivisionError)


def test_a_full_disk_leaves_no_model(folder, tmp_path, monkeypatch):
    def fail_to_sync(_):
        # As JAX does where its compiled programs do not fit on the disk either.
        warnings.simplefilter("default")
        warnings.warn(
            "Error writing persistent compilation cache entry for 'jit_f': OSError: [Errno 28]",
            stacklevel=1,
        )
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_to_sync)
    line = fail("train", folder / "images.npy", *TINY, "--out", tmp_path / "model.jjc")
    assert line.endswith("model.jjc cannot be written: the disk is full.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("epochs_before", [0, 1])
def test_ctrl_c_keeps_the_best_model_so_far(folder, tmp_path, monkeypatch, epochs_before):
    from jaxjuice.cli._progress import EpochTable

    add = EpochTable.add

    def interrupted(self, record, params):
        if record.epoch > epochs_before:
            raise KeyboardInterrupt
        add(self, record, params)

    monkeypatch.setattr(EpochTable, "add", interrupted)
    out = tmp_path / "model.jjc"
    result = invoke("train", folder / "images.npy", *TINY, "--epochs", "9", "--out", out)
    assert result.exit_code == 130
    if epochs_before:
        assert "holds the best parameters so far (epoch 1)" in result.stderr
        assert model_info(out).metadata["training"]["interrupted"] is True
        load(out)
    else:
        assert "no model was written" in result.stderr
        assert not out.exists()


def test_as_a_program(folder):
    """A real process: entry point, exit status, and a closed pipe."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "jaxjuice"]
    done = subprocess.run(
        [*command, "info", "nowhere.jjc"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2
    assert (
        done.stderr == "jaxjuice: error: nowhere.jjc cannot be read: No such file or directory.\n"
    )
    assert done.stdout == ""
    version = invoke("--version")
    assert version.exit_code == 0 and version.stdout.startswith("jaxjuice ")


def test_loops_are_not_unrolled_unless_the_user_says_so(monkeypatch):
    option = "--xla_backend_extra_options="
    for given, wanted in (
        ("", f"{option}xla_cpu_disable_loop_unrolling"),
        ("--a=1", f"--a=1 {option}xla_cpu_disable_loop_unrolling"),
        (f"{option}other", f"{option}other"),
        ("flags.txt", "flags.txt"),  # XLA reads the flags from this file
    ):
        monkeypatch.setenv("XLA_FLAGS", given)
        shorten_compilation()
        assert os.environ["XLA_FLAGS"] == wanted
