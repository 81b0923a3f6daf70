"""How phi is trained: the paper's settings, and those of its authors' code where they differ."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from actstore.errors import InvalidInputError
from predictor.phi.network import LAYERS, PhiSpec
from predictor.protocol.results import PhiKind
from predictor.training.trainee import cosine


@dataclass(frozen=True)
class TrainConfig:
    """p_mean: how often a category's statistic is the mean of all its rows; else it is that of some random rows, at
    least and at most as many as `examples` says. decay: (epoch, factor) pairs; from that epoch on the learning rate is
    multiplied by the factor. cosine: it falls to 0 along a half cosine instead."""

    phi: PhiKind = "phi2"
    epochs: int = 300
    batches: int = 250
    learning_rate: float = 1e-3
    decay: tuple[tuple[int, float], ...] = ()
    weight_decay: float = 5e-4
    momentum: float = 0.9
    p_mean: float = 0.9
    input_norm: bool = True
    bias: bool = True
    query_norm: bool = False
    seed: int = 0
    examples: tuple[int, int] = (1, 1)
    cosine: bool = False

    def __post_init__(self) -> None:
        positive = {"epochs": self.epochs, "batches": self.batches, "learning_rate": self.learning_rate}
        for name, value in positive.items():
            if not value > 0:
                raise InvalidInputError(f"{name.replace('_', ' ')} must be positive, got {value}")
        if not 0 <= self.p_mean <= 1:
            raise InvalidInputError(f"p_mean must be a probability between 0 and 1, got {self.p_mean}")
        if not 1 <= self.examples[0] <= self.examples[1]:
            raise InvalidInputError(f"examples must be the least and the most, 1 or more, got {self.examples}")

    @property
    def steps(self) -> int:
        return self.epochs * self.batches

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if self.cosine:
            return self.learning_rate * cosine(step, self.steps)
        factors = [factor for epoch, factor in self.decay if step // self.batches >= epoch]
        return self.learning_rate * (factors[-1] if factors else 1.0)

    def spec(self, dim: int, signed: bool = False) -> PhiSpec:
        """signed: activations may be negative, which makes a difference to phi's ReLU."""
        return PhiSpec(self.phi, dim, self.input_norm, self.bias, self.query_norm, signed and LAYERS[self.phi] > 1)

    def to_json(self) -> dict[str, Any]:
        """What the paper has not only where it is in use: earlier trainings are still recognised as the same."""
        beyond = {"examples": (1, 1), "cosine": False}
        return {name: value for name, value in asdict(self).items() if name not in beyond or value != beyond[name]}


PRESETS = {
    # "Implementation Details"; the rate never falls. Where the paper is silent (input norm, biases, identity start)
    # both presets follow the authors' code.
    "paper": TrainConfig(),
    # the authors' MiniImageNet code: its shipped run ends at epoch 50, where its rate would first fall
    "code": TrainConfig(epochs=50, decay=((50, 0.5), (120, 0.1), (175, 0.01)), p_mean=0.3),
}


def choose_config(preset: str, phi: PhiKind, **changes: Any) -> TrainConfig:
    """A preset with what is given (not None) in its place. phi2star always trains on means: that is what it is."""
    if preset not in PRESETS:
        raise InvalidInputError(f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    known = {field.name for field in fields(TrainConfig)}
    settings = {name: value for name, value in changes.items() if value is not None}
    if unknown := sorted(set(settings) - known):
        raise InvalidInputError(f"a training has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}")
    if phi == "phi2star":
        if settings.get("p_mean", 1.0) != 1.0:
            raise InvalidInputError(f"phi2star is trained on means only, got p_mean {settings['p_mean']}; choose phi2")
        settings["p_mean"] = 1.0
    return replace(PRESETS[preset], phi=phi, **settings)
