"""What a table says in words."""

from __future__ import annotations

from typing import Any

from predictor.report.findings import compare, describe_ausuc, describe_harmonic, describe_order

KEYS = {"NN+Cosine": "nn", "Triplet": "triplet", "Nearest class mean": "class-mean", "Oracle linear": "oracle-linear"}


def row(method: str, few: float, width: float | None = 1.0, **more: Any) -> dict[str, Any]:
    name, _, variant = method.partition(", ")
    return {"method": method, "key": KEYS.get(name, name), "variant": variant,
            "shots": "1", "d_large": "100%", "top1_few": few, "top1_few_ci95": width,
            "harmonic_mean": few, "harmonic_mean_ci95": width, **more}  # fmt: skip


def test_level_within_the_noise_of_both() -> None:
    assert compare(row("a", 10, 3), row("b", 14.9, 4), "top1_few") == "level"  # 3 and 4 make 5
    assert compare(row("a", 10, 3), row("b", 15.1, 4), "top1_few") == "behind"
    assert compare(row("a", 30, None), row("b", 10, None), "top1_few") == "unknown"  # of a single draw


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
    found = {one.text.split(":")[0]: (one.standing, one.as_paper) for one in describe_order(records)}
    assert found == {
        "ahead of NN+Cosine with 100% of D_large": ("ahead", True),
        "behind Triplet with 100% of D_large": ("behind", False),
        "level (within noise) with phi1": ("level", None),
    }


def test_methods_are_compared_by_ausuc_each_once_and_on_the_same_draws() -> None:
    paired: dict[str, Any] = {"against": "phi2, calibrated", "ausuc_difference": 0.5, "ausuc_difference_ci95": 0.6}
    records = [
        row("phi2", 31.56, ausuc=34.7, ausuc_ci95=1.0),
        row("phi2, calibrated", 40, ausuc=34.7, ausuc_ci95=1.0),
        row("Nearest class mean", 6.56, ausuc=35.2, ausuc_ci95=0.1, **paired),
        row("Nearest class mean, calibrated", 41, ausuc=35.2, ausuc_ci95=0.1, **paired),
        row("NN+Cosine", 90, ausuc=20.0, ausuc_ci95=1.0),
        row("Oracle linear", 1, ausuc=60.0),
        row("Triplet", 99, ausuc=None),
    ]
    assert [(one.standing, one.text) for one in describe_ausuc(records)] == [
        ("level", "level (within noise) with Nearest class mean, calibrated: 34.70 ± 1.00 against 35.20 ± 0.10 "
         "(difference on the same draws: -0.50 ± 0.60)"),
        ("ahead", "ahead of NN+Cosine with 100% of D_large: 34.70 ± 1.00 against 20.00 ± 1.00"),
        ("unknown", "beside Oracle linear: 34.70 ± 1.00 against 60.00"),
    ]  # fmt: skip


def test_harmonic_mean_of_the_calibrated_phi2() -> None:
    records = [row("phi2, calibrated", 40), row("phi1, calibrated", 39.5), row("phi2", 20)]
    text = describe_harmonic(records)
    assert text is not None
    assert "within noise of the best other (phi1, calibrated: 39.50 ± 1.00)" in text
    assert describe_harmonic([row("phi2", 20)]) is None
    assert describe_order([row("NN+Cosine", 20)]) == []


def test_a_method_that_learnt_nothing_does_not_count() -> None:
    records = [
        row("phi2", 20, paper_top1_few=21.58),
        row("Learning like a Child", 0, finetuned="Y", top5_few=0.0, paper_top1_few=2.9),
    ]
    (found,) = describe_order(records)
    assert found.as_paper is None
    assert "not trained long enough" in found.text
