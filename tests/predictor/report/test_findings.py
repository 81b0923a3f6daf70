"""What a table says in words."""

from __future__ import annotations

from typing import Any

from predictor.report.findings import compare, describe_harmonic, describe_novel

KEYS = {"NN+Cosine": "nn", "Triplet": "triplet", "Nearest class mean": "class-mean", "Oracle linear": "oracle-linear"}


def row(method: str, few: float, width: float | None = 1.0, **more: Any) -> dict[str, Any]:
    name, _, variant = method.partition(", ")
    return {"method": method, "key": KEYS.get(name, name), "variant": variant,
            "shots": "1", "d_large": "100%", "top1_few": few, "top1_few_ci95": width,
            "harmonic_mean": few, "harmonic_mean_ci95": width, **more}  # fmt: skip


def test_level_within_the_noise_of_both() -> None:
    assert compare(row("a", 10, 3), row("b", 14.9, 4), "top1_few") == "level"  # 3 and 4 make 5
    assert compare(row("a", 10, 3), row("b", 15.1, 4), "top1_few") == "behind"
    assert compare(row("a", 10.1, None), row("b", 10, None), "top1_few") == "ahead"


def test_orders_that_differ_from_the_papers_are_told() -> None:
    records = [
        row("phi2", 20, paper_top1_few=21.58),
        row("NN+Cosine", 2, paper_top1_few=1.72),
        row("Triplet", 30, paper_top1_few=1.26),
        row("phi1", 19.5, paper_top1_few=19.88),
        row("Nearest class mean", 5),
        row("phi2, calibrated", 40),
        {**row("NN+Cosine", 50), "shots": "2"},
    ]
    found = {one.text.split(":")[0]: (one.standing, one.as_paper) for one in describe_novel(records)}
    assert found == {
        "ahead of NN+Cosine with 100% of D_large": ("ahead", True),
        "behind Triplet with 100% of D_large": ("behind", False),
        "level (within noise) with phi1": ("level", None),
        "ahead of Nearest class mean": ("ahead", None),
    }


def test_harmonic_mean_of_the_calibrated_phi2() -> None:
    records = [row("phi2, calibrated", 40), row("phi1, calibrated", 39.5), row("phi2", 20)]
    text = describe_harmonic(records)
    assert text is not None
    assert "within noise of the best other (phi1, calibrated: 39.50 ± 1.00)" in text
    assert describe_harmonic([row("phi2", 20)]) is None
    assert describe_novel([row("NN+Cosine", 20)]) == []


def test_a_method_that_learnt_nothing_does_not_count() -> None:
    records = [
        row("phi2", 20, paper_top1_few=21.58),
        row("Learning like a Child", 0, finetuned="Y", top5_few=0.0, paper_top1_few=2.9),
    ]
    (found,) = describe_novel(records)
    assert found.as_paper is None
    assert "not trained long enough" in found.text
