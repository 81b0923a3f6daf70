"""Every adapter against the library that it is for, where that is installed."""

from __future__ import annotations

import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import actstore
from actstore.errors import InvalidInputError

ROWS = [40, 3, 3, 0]


@pytest.fixture
def split(tmp_path: Path, random: np.random.Generator) -> actstore.Split:
    values = random.random((60, 8), dtype=np.float32).astype(np.float16)
    labels = random.integers(0, 3, 60)
    labels[3] = -1
    area = random.random(60)
    area[0] = np.nan
    columns = {
        "area": area,
        "source": np.array(["web", "", "print"] * 20, object),
        "good": np.arange(60) % 2 == 0,
        "taken": np.datetime64("2020-01-01", "us") + np.arange(60) * np.timedelta64(1, "D"),
    }
    ids = [f"c{label}/{row}.jpg" for row, label in enumerate(labels)]
    arrays = {"train": (values, labels, ids, columns), "plain": (values, None)}
    return actstore.from_arrays(tmp_path / "x.zarr", arrays, classes=["ant", "bee", "cat"])["train"]


@pytest.fixture
def plain(split: actstore.Split) -> actstore.Split:
    """The same values without labels, ids or columns."""
    return actstore.open(split.store_path)["plain"]


def test_an_arrow_table_says_what_the_split_says(split: actstore.Split) -> None:
    table = split.to_arrow(features=True)
    assert table.column_names == ["id", "class", "label", "area", "source", "good", "taken", "activations"]
    assert table["id"].to_pylist() == list(split.ids)
    assert table["class"].to_pylist() == [None if label < 0 else split.classes[label] for label in split.labels]
    assert table["area"].null_count == 1
    assert table["source"].to_pylist()[:3] == ["web", None, "print"]
    assert table["good"].to_pylist()[:2] == [True, False]
    assert table["taken"][1].as_py() == datetime.datetime(2020, 1, 2)
    np.testing.assert_array_equal(np.stack(table["activations"].to_numpy()), split[:])


def test_stored_rows_and_ids_are_not_copied(split: actstore.Split) -> None:
    table = split.to_arrow(features=True)
    rows = table["activations"].chunk(0).flatten().buffers()[1]
    assert rows.address == split[:].__array_interface__["data"][0]
    assert table["id"].chunk(0).buffers()[2].address == split.ids.data.__array_interface__["data"][0]  # type: ignore[attr-defined]


def test_some_rows_in_another_type(split: actstore.Split, plain: actstore.Split) -> None:
    table = split.to_arrow(ROWS, features=True, dtype="f4")
    assert table["id"].to_pylist() == [split.ids[row] for row in ROWS]
    np.testing.assert_array_equal(np.stack(table["activations"].to_numpy()), split.take(ROWS, "f4"))
    assert plain.to_arrow([5, 1])["id"].to_pylist() == ["5", "1"]
    assert plain.to_arrow()["class"].null_count == 60
    assert split.to_arrow([], features=True).num_rows == 0


def test_pandas(split: actstore.Split) -> None:
    frame = split.to_pandas()
    assert frame.loc[frame["class"] == "bee", "label"].eq(1).all()
    assert frame["area"].isna().sum() == 1
    with_rows = split.to_pandas(ROWS, features=True)
    np.testing.assert_array_equal(np.stack(with_rows["activations"]), split.take(ROWS))
    assert split.to_pandas([], features=True).empty


def test_polars(split: actstore.Split) -> None:
    polars = pytest.importorskip("polars")
    frame = split.to_polars(features=True, dtype="f4")
    assert frame.filter(polars.col("class") == "bee").height == int((split.labels == 1).sum())
    np.testing.assert_array_equal(frame["activations"].to_numpy(), split.f4[:])


def test_duckdb_reads_the_table_by_its_name(split: actstore.Split) -> None:
    duckdb = pytest.importorskip("duckdb")
    held = split.to_arrow(features=True, dtype="f4")  # the query names this variable
    counted = duckdb.sql("select class, count(*) from held group by class order by class nulls last").fetchall()
    expected = [(name, int((split.labels == label).sum())) for label, name in enumerate(split.classes)]
    assert counted == [*expected, (None, 1)]
    assert held.num_rows == duckdb.sql("select count(activations[8]) from held").fetchall()[0][0]


def test_huggingface(split: actstore.Split, plain: actstore.Split) -> None:
    pytest.importorskip("datasets")
    labelled = split.to_huggingface(np.flatnonzero(split.labels >= 0))
    assert labelled.features["label"].names == list(split.classes)
    row = labelled.with_format("numpy")[2]
    assert row["id"] == split.ids[2]
    np.testing.assert_array_equal(row["activations"], split[2])
    assert split.to_huggingface(features=False)[3]["class"] is None
    assert plain.to_huggingface().num_rows == 60


@pytest.mark.numeric
def test_rsatoolbox(split: actstore.Split) -> None:
    pytest.importorskip("rsatoolbox")
    from rsatoolbox.rdm import calc_rdm
    from scipy.spatial.distance import pdist

    rows = np.flatnonzero(split.labels >= 0)[:20]
    data = split.to_rsatoolbox(rows)
    assert data.obs_descriptors["id"] == [split.ids[row] for row in rows]
    assert data.descriptors["content"] == split.content
    rdm = calc_rdm(data, method="correlation")
    np.testing.assert_allclose(rdm.dissimilarities[0], pdist(split.take(rows, "f8"), "correlation"), atol=1e-12)
    assert data.subset_obs("class", "bee").n_obs == int((split.labels[rows] == 1).sum())


@pytest.mark.numeric
def test_our_rsa_is_rsatoolboxs(split: actstore.Split, tmp_path: Path, random: np.random.Generator) -> None:
    rdm = pytest.importorskip("rsatoolbox").rdm
    ids, turned = list(split.ids), split.f4[:] @ random.standard_normal((8, 5), np.float32)
    other = actstore.from_arrays(tmp_path / "y.zarr", {"train": (turned, None, ids)})["train"]
    rdms = [rdm.calc_rdm(each.to_rsatoolbox(), method="correlation") for each in (split, other)]
    found = actstore.compare(split, other, measures=["rsa-spearman", "rsa-pearson"], resamples=0).matrix
    assert found("rsa-spearman")[0, 1] == pytest.approx(rdm.compare(*rdms, method="spearman").item(), abs=1e-6)
    assert found("rsa-pearson")[0, 1] == pytest.approx(rdm.compare(*rdms, method="corr").item(), abs=1e-6)


def test_an_assembly_has_brain_scores_dimensions(split: actstore.Split) -> None:
    assembly = split.to_assembly(ROWS)
    assert isinstance(assembly, xarray.DataArray)
    assert (assembly.dims, assembly.dtype) == (("presentation", "neuroid"), np.float32)
    assert assembly.stimulus_id.values.tolist() == [split.ids[row] for row in ROWS]
    assert {"object_name", "area", "source"} <= set(assembly.coords)
    assert {name for name in assembly.coords if assembly[name].dims == ("neuroid",)} == {
        "neuroid_id", "neuroid_num", "layer", "model",
    }  # fmt: skip
    np.testing.assert_array_equal(assembly.values, split.take(ROWS))
    stacked = assembly.set_index(presentation=["stimulus_id", "object_name"])  # as Brain-Score's assemblies do
    assert stacked.sizes["presentation"] == 4


@pytest.mark.filterwarnings("ignore:The 'mode.chained_assignment'")  # which anndata sets
def test_anndata(split: actstore.Split, tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    made = split.to_anndata()
    assert made.shape == (60, 8)
    assert made.obs_names.tolist() == list(split.ids)
    np.testing.assert_array_equal(made[split.ids[40]].X, split.take([40], "f4"))
    made.write_h5ad(tmp_path / "x.h5ad")
    again = anndata.read_h5ad(tmp_path / "x.h5ad")
    np.testing.assert_array_equal(again.X, split.f4[:])
    assert again.uns["actstore"]["content"] == split.content
    assert again.obs["source"].tolist()[:3] == ["web", "", "print"]
    assert again.obs["class"].isna().sum() == 1
    assert again.obs["taken"].iloc[1].startswith("2020-01-02")


def test_batches_for_saes_hold_every_row_once_a_pass(split: actstore.Split) -> None:
    batches = list(islice(split.to_sae(20, seed=1), 6))
    assert {(tuple(batch.shape), str(batch.dtype)) for batch in batches} == {((20, 8), "torch.float32")}
    for half in (batches[:3], batches[3:]):
        rows = np.concatenate([batch.numpy() for batch in half])
        np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(split.f4[:], axis=0))
    assert not np.array_equal(batches[0].numpy(), batches[3].numpy())
    np.testing.assert_array_equal(next(split.to_sae(20, seed=1)).numpy(), batches[0].numpy())
    for wrong in (0, 61):
        with pytest.raises(InvalidInputError, match=str(wrong)):
            split.to_sae(wrong)


def test_saelens_trains_on_the_batches(split: actstore.Split) -> None:
    library = pytest.importorskip("sae_lens")
    from sae_lens.config import LoggingConfig, SAETrainerConfig
    from sae_lens.training.sae_trainer import SAETrainer

    sae = library.StandardTrainingSAE(library.StandardTrainingSAEConfig(d_in=8, d_sae=16, device="cpu"))
    before = sae.W_enc.detach().clone()
    config = SAETrainerConfig(
        n_checkpoints=0, checkpoint_path=None, save_final_checkpoint=False, total_training_samples=60, device="cpu",
        autocast=False, lr=1e-2, lr_end=1e-2, lr_scheduler_name="constant", lr_warm_up_steps=0, lr_decay_steps=0,
        n_restart_cycles=1, adam_beta1=0.9, adam_beta2=0.999, train_batch_size_samples=20, dead_feature_window=100,
        feature_sampling_window=100, logger=LoggingConfig(log_to_wandb=False),
    )  # fmt: skip
    trained = SAETrainer(config, sae, split.to_sae(20)).fit()
    assert not np.array_equal(trained.W_enc.detach().numpy(), before.numpy())


def test_a_library_that_is_not_there_is_named(split: actstore.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidInputError, match="polars"):
        split.to_polars()


def test_rows_that_are_not_there_are_refused(split: actstore.Split) -> None:
    adapters: Any = [split.to_arrow, split.to_pandas, split.to_assembly]
    for adapter in adapters:
        with pytest.raises(InvalidInputError, match="60"):
            adapter([60])
