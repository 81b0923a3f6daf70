"""The exact neighbour graph: against all products in float64, across stores, resumed, and read by other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import actstore
from actstore.analysis import neighbours
from actstore.errors import InvalidInputError
from actstore.search import compiled, self_join
from actstore.search.join_codes import Costs

pytestmark = pytest.mark.numeric


@pytest.fixture
def split(tmp_path: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> actstore.Split:
    """300 rows, two of zeros, searched in blocks of 64."""
    monkeypatch.setattr(neighbours, "BLOCK_ROWS", 64)
    values = random.standard_normal((300, 12)).astype("f4")
    values[[7, 70]] = 0
    ids = [f"{row}.jpg" for row in range(300)]
    return actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, None, ids)})["train"]


def nearest(queries: NDArray[Any], rows: NDArray[Any], k: int, own: bool) -> NDArray[np.int64]:
    """Plain: all cosines in float64."""
    with np.errstate(invalid="ignore"):
        units = [values / np.linalg.norm(values, axis=1, keepdims=True) for values in (queries, rows)]
    cosines = np.where(np.isnan(products := units[0] @ units[1].T), -9, products)
    if own:
        np.fill_diagonal(cosines, -9)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :k]


def test_every_row_has_its_nearest_others(split: actstore.Split) -> None:
    graph = actstore.knn(split, 5)
    rows = split.take(range(300), "f8")
    some = np.delete(np.arange(300), [7, 70])
    np.testing.assert_array_equal(graph.rows[some], nearest(rows, rows, 5, True)[some])
    assert (graph.rows[[7, 70]] == -1).all()
    assert not np.isin(graph.rows, [7, 70]).any()
    assert (np.diff(graph.scores[some], axis=1) <= 0).all()


def test_rows_of_zeros_do_not_take_the_place_of_far_rows(split: actstore.Split) -> None:
    graph = actstore.knn(split, 297)
    assert (np.delete(graph.rows, [7, 70], axis=0) >= 0).all()


def test_across_two_stores_and_for_vectors(split: actstore.Split, tmp_path: Path, random: np.random.Generator) -> None:
    values = random.standard_normal((100, 12)).astype("f4")
    other = actstore.from_arrays(tmp_path / "y.zarr", {"val": (values, None)})["val"]
    expected = nearest(values.astype("f8"), split.take(range(300), "f8"), 4, False)
    for queries in (other, str(other.path), values):
        graph = actstore.knn(split, 4, queries)
        np.testing.assert_array_equal(graph.rows, expected)
        assert graph.to_scipy().shape == (100, 300)
        with pytest.raises(InvalidInputError, match="one split"):
            graph.with_itself()
    narrow = actstore.from_arrays(tmp_path / "z.zarr", {"val": (values[:, :3], None)})["val"]
    with pytest.raises(InvalidInputError, match="12"):
        actstore.knn(split, 4, narrow)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_interrupted_it_goes_on_and_ends_with_the_same_file(split: actstore.Split, tmp_path: Path, ending: str) -> None:
    whole, resumed, keep = (
        tmp_path / f"whole.{ending}",
        tmp_path / f"resumed.{ending}",
        tmp_path / f"resumed.{ending}.parts",
    )
    actstore.knn(split, 5).save(whole)

    def stop_after(count: int) -> Any:
        seen: list[int] = []

        def progress(rows: int) -> None:
            seen.append(rows)
            if len(seen) == count:
                raise KeyboardInterrupt

        return progress

    with pytest.raises(KeyboardInterrupt):
        actstore.knn(split, 5, out=resumed, progress=stop_after(3))
    kept = {file: file.stat().st_mtime_ns for file in keep.iterdir()}
    assert len(kept) == 3
    with pytest.raises(KeyboardInterrupt):
        actstore.knn(split, 5, out=resumed, progress=stop_after(4))
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())
    (keep / "mine.txt").write_text("not a block")
    actstore.knn(split, 5, out=resumed)
    assert resumed.read_bytes() == whole.read_bytes()
    assert [file.name for file in keep.iterdir()] == ["mine.txt"]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are compared at once, however few they are, and what is known is kept after each block."""
    if compiled.kernels() is None:
        pytest.skip("no compiled loops here")
    monkeypatch.setattr(neighbours, "FEWEST_JOINED", 1)
    monkeypatch.setattr(self_join, "BLOCK_ROWS", 64)
    monkeypatch.setattr(self_join, "_BETWEEN_SAVES", (0.0, 0.0))
    monkeypatch.setattr(Costs, "most", lambda self, dim: np.inf)


@pytest.fixture
def wide(tmp_path: Path, random: np.random.Generator) -> actstore.Split:
    """300 rows of two classes, one of zeros; 40 of them in another split."""
    values = (random.standard_normal((340, 150)) + 2 * (np.arange(340) % 2)[:, None]).astype("f4")
    values[7] = 0
    parts = {"train": (values[:300], None), "val": (values[300:], None)}
    return actstore.from_arrays(tmp_path / "wide.zarr", parts)["train"]


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_all_rows_at_once_interrupted_end_with_the_same_file(
    wide: actstore.Split, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_after(count: int) -> Any:
        seen: list[int] = []

        def progress(rows: int) -> None:
            seen.append(rows)
            if len(seen) > count:
                raise KeyboardInterrupt

        return progress

    whole, resumed = tmp_path / f"whole.{ending}", tmp_path / f"resumed.{ending}"
    state = tmp_path / f"resumed.{ending}.parts" / "joined-0.safetensors"
    told: list[int] = []
    actstore.knn(wide, 5, out=whole, progress=told.append)
    assert sum(told) == 300
    for count in (2, 2):
        with pytest.raises(KeyboardInterrupt):
            actstore.knn(wide, 5, out=resumed, progress=stop_after(count))
        assert state.exists()
    actstore.knn(wide, 5, out=resumed)
    assert resumed.read_bytes() == whole.read_bytes()
    assert not state.parent.exists()
    monkeypatch.setattr(neighbours, "FEWEST_JOINED", 10_000)
    actstore.knn(wide, 5, out=whole)
    assert resumed.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("together")
def test_what_is_known_for_another_k_or_damaged_is_not_taken_up(wide: actstore.Split, tmp_path: Path) -> None:
    seen: list[int] = []

    def stop(rows: int) -> None:
        seen.append(rows)
        if len(seen) > 2:
            raise KeyboardInterrupt

    out = tmp_path / "g.npz"
    for damage in (False, True):
        seen.clear()
        with pytest.raises(KeyboardInterrupt):
            actstore.knn(wide, 5, out=out, progress=stop)
        state = tmp_path / "g.npz.parts" / "joined-0.safetensors"
        if damage:
            state.write_bytes(state.read_bytes()[:-1] + b"x")
        np.testing.assert_array_equal(actstore.knn(wide, 3, out=out).rows, actstore.knn(wide, 3).rows)


@pytest.mark.usefixtures("together")
def test_all_rows_of_several_splits_at_once(wide: actstore.Split, tmp_path: Path) -> None:
    splits = [wide, actstore.open(wide.store_path)["val"]]
    is_zero = np.arange(340) == 7
    found = neighbours.find_neighbours(splits, is_zero, 6, tmp_path, "key")
    rows = np.concatenate([split[:] for split in splits]).astype("f8")
    np.testing.assert_array_equal(found.places[~is_zero], nearest(rows, rows, 6, True)[~is_zero])
    assert (found.places[7] == -1).all()


def test_blocks_of_another_k_are_not_taken_up(split: actstore.Split, tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        actstore.knn(split, 5, out=tmp_path / "g.npz", progress=stop)
    np.testing.assert_array_equal(actstore.knn(split, 3, out=tmp_path / "g.npz").rows, actstore.knn(split, 3).rows)
    assert not (tmp_path / "g.npz.parts").exists()


def test_files_are_read_by_scipy_and_pandas(split: actstore.Split, tmp_path: Path) -> None:
    import pandas
    from scipy.sparse import load_npz

    graph = actstore.knn(split, 5)
    graph.save(tmp_path / "g.npz")
    graph.save(tmp_path / "g.parquet")
    sparse = load_npz(tmp_path / "g.npz")
    assert (sparse != graph.to_scipy()).nnz == 0
    assert sparse.shape == (300, 300)
    np.testing.assert_array_equal(sparse[3].indices, graph.rows[3])
    edges = pandas.read_parquet(tmp_path / "g.parquet")
    assert len(edges) == 298 * 5
    assert edges.loc[edges["row"] == 3, "neighbour_id"].tolist() == [f"{row}.jpg" for row in graph.rows[3]]
    with pytest.raises(InvalidInputError, match=r"g\.txt"):
        graph.save(tmp_path / "g.txt")


@pytest.mark.parametrize("k", [0, 300])
def test_more_neighbours_than_there_are_rows_are_refused(split: actstore.Split, k: int) -> None:
    with pytest.raises(InvalidInputError, match="299"):
        actstore.knn(split, k)


@pytest.fixture
def labelled(tmp_path: Path, random: np.random.Generator) -> actstore.Split:
    """200 rows around three centres; row 5 is far from all."""
    labels = random.integers(0, 3, 200)
    values = 3 * np.eye(3, 12)[labels] + 0.3 * random.standard_normal((200, 12))
    values[5] = -3
    return actstore.from_arrays(tmp_path / "l.zarr", {"train": (values.astype("f4"), labels)})["train"]


@pytest.mark.filterwarnings("ignore")  # what umap and numba say to themselves
def test_umap_takes_the_graph(labelled: actstore.Split) -> None:
    umap = pytest.importorskip("umap")
    near = (*actstore.knn(labelled, 10).with_itself(), None)
    layout = umap.UMAP(n_neighbors=11, precomputed_knn=near, n_epochs=20, random_state=0)
    assert layout.fit_transform(labelled.f4[:]).shape == (200, 2)


@pytest.mark.filterwarnings("ignore")
def test_cleanlab_takes_the_graph(labelled: actstore.Split) -> None:
    datalab = pytest.importorskip("cleanlab.datalab.datalab")
    lab = datalab.Datalab(data={"label": labelled.labels}, label_name="label", verbosity=0)
    lab.find_issues(knn_graph=actstore.knn(labelled, 10).to_scipy(), issue_types={"outlier": {}})
    assert lab.get_issues("outlier")["outlier_score"].idxmin() == 5


def test_scanpy_is_handed_the_graph(labelled: actstore.Split, split: actstore.Split) -> None:
    graph = actstore.knn(labelled, 10)
    handed = graph.to_scanpy()
    assert handed.get_params() == {"n_neighbors": 11}
    assert (handed.fit_transform(labelled.f4[:]) != graph.to_scipy()).nnz == 0
    with pytest.raises(InvalidInputError, match="200"):
        handed.fit_transform(labelled.f4[:9])
    with pytest.raises(InvalidInputError, match="zeros"):
        actstore.knn(split, 5).to_scanpy()


@pytest.mark.filterwarnings("ignore")
def test_scanpy_takes_the_graph(labelled: actstore.Split) -> None:
    scanpy = pytest.importorskip("scanpy")
    cells = labelled.to_anndata()
    graph = actstore.knn(labelled, 10)
    scanpy.pp.neighbors(cells, transformer=graph.to_scanpy())
    assert (cells.obsp["distances"] != graph.to_scipy()).nnz == 0
    assert cells.obsp["connectivities"].shape == (200, 200)


def test_a_graph_says_what_it_is_in_a_line(split: actstore.Split) -> None:
    assert repr(actstore.knn(split, 5)) == "<Graph: the 5 nearest of 300 rows for 300 queries>"
