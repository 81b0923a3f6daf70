"""How a backbone is trained: every setting in one place, and the presets in one table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from actstore.backbones.network import Transform
from actstore.errors import InvalidInputError
from predictor.training.trainee import cosine

SCHEDULES = ("constant", "step", "cosine")
PRECISIONS = ("float32", "bfloat16")
AUGMENTATIONS = ("crop", "shift", "none")


@dataclass(frozen=True)
class TrainingConfig:
    """What decides the weights a training ends with, beside the images and their split.

    batch_size: images of one step, over all processes. schedule: see `rate`. augment: `crop` is a random
    part of the image of at least min_scale of its area, `shift` moves it by up to `shift` pixels. jitter and
    lighting: strength of changes of colour. in_memory: decode every image once, if that takes at most 2 GB.
    start_size: side of the images in the first start_share of the epochs (0: image_size throughout), which then take
    less time. precision: of the convolutions on a CPU; on a GPU they are in float16 anyway. evaluations: about how
    often the held-out images are looked at (0: after every epoch). cosine: the classifier sees directions alone. mixup:
    blends of two images are shown, with shares from Beta(mixup, mixup); 0: none.
    """

    backbone: str
    image_size: int
    epochs: int
    batch_size: int
    learning_rate: float
    schedule: str
    warmup_epochs: float = 0.0
    decay_epochs: int = 30
    weight_decay: float = 1e-4
    momentum: float = 0.9
    label_smoothing: float = 0.0
    augment: str = "crop"
    min_scale: float = 0.08
    shift: int = 0
    flip: bool = True
    jitter: float = 0.0
    lighting: float = 0.0
    in_memory: bool = False
    seed: int = 0
    start_size: int = 0
    start_share: float = 0.5
    precision: str = "float32"
    evaluations: int = 0
    cosine: bool = False
    mixup: float = 0.0

    def __post_init__(self) -> None:
        for name, least in {"image_size": 8, "epochs": 1, "batch_size": 1, "decay_epochs": 1, "seed": 0,
                            "evaluations": 0}.items():  # fmt: skip
            self._require(getattr(self, name) >= least, name, f"{least} or more")
        for name in ("learning_rate", "warmup_epochs", "weight_decay", "jitter", "lighting", "shift", "mixup"):
            self._require(0 <= getattr(self, name) < float("inf"), name, "0 or more")
        for name in ("momentum", "label_smoothing"):
            self._require(0 <= getattr(self, name) < 1, name, "from 0 to below 1")
        for name, known in {"schedule": SCHEDULES, "augment": AUGMENTATIONS, "precision": PRECISIONS}.items():
            self._require(getattr(self, name) in known, name, f"one of {', '.join(known)}")
        self._require(self.shift < self.image_size, "shift", f"less than the image size {self.image_size}")
        self._require(0 < self.min_scale <= 1, "min_scale", "above 0 and at most 1")
        self._require(self.jitter < 1, "jitter", "below 1")
        self._require(0 < self.start_share < 1, "start_share", "above 0 and below 1")
        if self.start_size:
            span = f"0, or 8 to the image size {self.image_size}"
            self._require(8 <= self.start_size <= self.image_size, "start_size", span)
            self._require(self.augment == "crop", "augment", "crop where a start size is given")
        if self.in_memory and (self.jitter or self.lighting):
            raise InvalidInputError(
                "colours of images kept in memory cannot be changed, got jitter or lighting; "
                "use --jitter 0 --lighting 0, or --no-in-memory"
            )

    def _require(self, condition: bool, name: str, expected: str) -> None:
        if not condition:
            raise InvalidInputError(f"{name.replace('_', ' ')} must be {expected}, got {getattr(self, name)}")

    def transform(self, usual: Transform) -> Transform:
        """For evaluation and extraction: the network's usual one, scaled to the image size."""
        if usual.crop == self.image_size:
            return usual
        resize = round(self.image_size * usual.resize / usual.crop)
        return replace(usual, resize=resize, crop=self.image_size)

    def without_changes(self) -> TrainingConfig:
        """For held-out images: decoded once, and seen as they are."""
        return replace(self, augment="none", start_size=0, jitter=0.0, lighting=0.0, in_memory=True)

    def size_of(self, epoch: int) -> int:
        """Side of the images in an epoch, counted from 0."""
        return self.start_size if self.start_size and epoch < self.start_share * self.epochs else self.image_size

    @property
    def epochs_per_line(self) -> int:
        """Epochs between two looks at the held-out images, each of which is a line of the log."""
        return max(1, self.epochs // self.evaluations) if self.evaluations else 1

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of a step, counted from 0 over the whole training, after a linear warm-up.

        constant; step: a tenth after every `decay_epochs`; cosine: down to 0 at the end.
        """
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return self.learning_rate * (step + 1) / (warmup + 1)
        if self.schedule == "step":
            return float(self.learning_rate * 0.1 ** (step // (self.decay_epochs * steps_per_epoch)))
        if self.schedule == "cosine":
            return self.learning_rate * cosine(step - warmup, max(1, self.epochs * steps_per_epoch - warmup))
        return self.learning_rate

    def to_json(self) -> dict[str, Any]:
        """Settings that came later are left out where they are not used, so that trainings of before go on."""
        later = {
            name: getattr(TrainingConfig, name)
            for name in ("start_size", "start_share", "precision", "evaluations", "cosine", "mixup")
        }
        return {name: value for name, value in asdict(self).items() if later.get(name) != value}


# The authors' code trains both networks for mini-ImageNet alike: lr 0.1 that never decays.
_AUTHORS = TrainingConfig(
    backbone="simple", image_size=80, epochs=300, batch_size=64, learning_rate=0.1, schedule="constant",
    jitter=0.4, lighting=0.1,
)  # fmt: skip

PRESETS: dict[str, TrainingConfig] = {
    # 32x32 images on two CPU cores in minutes. No flip: mirrored characters are other characters.
    "quick": TrainingConfig(
        backbone="small", image_size=32, epochs=6, batch_size=128, learning_rate=0.2, schedule="cosine",
        warmup_epochs=1, weight_decay=5e-4, label_smoothing=0.1, augment="shift", shift=2, flip=False,
        in_memory=True,
    ),
    # Features for categories that it was never taught, where the time is enough for so many epochs; FEW_SHOT_SHORTER
    # where it is not.
    "few-shot": TrainingConfig(
        backbone="resnet8", image_size=64, epochs=40, batch_size=128, learning_rate=0.1, schedule="cosine",
        warmup_epochs=1, weight_decay=5e-4, augment="crop", min_scale=0.35, in_memory=True, evaluations=20,
        cosine=True, start_size=32, mixup=0.3,
    ),
    "paper-simple": _AUTHORS,
    "paper-wrn": replace(_AUTHORS, backbone="wrn28-10"),
    # Not stated in the paper: He et al.'s schedule, and the augmentation most published ResNets were trained with.
    "paper-resnet50": TrainingConfig(
        backbone="resnet50", image_size=224, epochs=90, batch_size=256, learning_rate=0.1, schedule="step",
        jitter=0.4, lighting=0.1,
    ),
}  # fmt: skip

# In shorter trainings a network of a third of the work sees more epochs, and blends cost more than they give.
_NARROW: dict[str, Any] = {"backbone": "resnet10-narrow", "epochs": 30, "mixup": 0.0}
FEW_SHOT_SHORTER = [
    _NARROW | {"image_size": 64},
    _NARROW | {"image_size": 48},
    _NARROW | {"image_size": 32, "start_size": 0},
]


def choose_preset(name: str, **changes: Any) -> TrainingConfig:
    """A preset with those of its values changed that are not None."""
    if name not in PRESETS:
        raise InvalidInputError(f"no preset {name!r}; known: {', '.join(PRESETS)}")
    return replace(PRESETS[name], **{key: value for key, value in changes.items() if value is not None})


def choose_candidates(name: str, **changes: Any) -> list[list[TrainingConfig]]:
    """What `plan_training` chooses between, the best for a long training first; of a list of equals the fastest.

    That is the preset alone, except of few-shot. What is given, not None, all of them have.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    if name != "few-shot":
        return [[choose_preset(name, **given)]]
    usual, start = choose_preset(name), given.get("start_size", 0)
    has_start = given.get("augment", "crop") == "crop" and given.get("image_size", usual.image_size) > usual.start_size
    planned = [shorter | ({} if has_start else {"start_size": 0}) | given for shorter in ({}, *FEW_SHOT_SHORTER)]
    fitting = [plan for plan in planned if plan.get("image_size", usual.image_size) >= start] or planned[:1]
    return [[choose_preset(name, **({"precision": one} | plan)) for one in PRECISIONS] for plan in fitting]
