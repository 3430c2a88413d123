"""From a configuration to data sets and loaders."""

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from torchmcl._checks import bad_value
from torchmcl.data.speech import (
    AudioFolder,
    AudioPack,
    DrawSampler,
    DynamicMixing,
    Mixture,
    SpeechMixtures,
    librimix_mixtures,
    table_mixtures,
    wsj0_mixtures,
)
from torchmcl.data.speech.stores import AudioStore
from torchmcl.experiments.separation.config import DataConfig, TrainingConfig
from torchmcl.lightning._backend import pl
from torchmcl.types import Batch

__all__ = ["SpeechData", "listed_mixtures", "store_of"]


def listed_mixtures(config: DataConfig, part: str) -> list[Mixture]:
    """Return the mixtures of a part, for every number of speakers."""
    root = _root(config)
    mixtures: list[Mixture] = []
    for n_speakers in config.n_speakers:
        if config.layout == "tables":
            mixtures += table_mixtures(root, part, n_speakers)
        elif config.layout == "wsj0":
            mixtures += wsj0_mixtures(root, part, n_speakers)
        else:
            if part not in config.tables:
                raise ValueError(bad_value("data", "tables", f"name the table of {part!r}", dict(config.tables)))
            mixtures += librimix_mixtures(root / config.tables[part], n_speakers)
    return mixtures


def store_of(config: DataConfig) -> AudioStore:
    """Return where the recordings are."""
    if config.pack is not None:
        return AudioPack.load(config.pack).checked_rate(config.sample_rate)
    return AudioFolder(_root(config), config.sample_rate)


class SpeechData(pl.LightningDataModule):  # type: ignore[name-defined]
    """Training and validation samples for Lightning."""

    def __init__(self, data: DataConfig, training: TrainingConfig) -> None:
        super().__init__()
        store = store_of(data)
        dynamic = DynamicMixing(tuple(data.n_speakers)) if data.dynamic else None
        self.batch_size, self.n_workers, self.seed = training.batch_size, data.n_workers, training.seed
        self.n_samples = data.samples_per_epoch
        self.train = SpeechMixtures(
            listed_mixtures(data, "tr"),
            store,
            crop=data.crop,
            dynamic=dynamic,
            n_samples=data.samples_per_epoch if dynamic else None,
            seed=training.seed,
            skip_bad=data.skip_bad,
        )
        self.validation = SpeechMixtures(
            listed_mixtures(data, "cv")[: data.validation_samples],
            store,
            crop=data.crop,
            random_crops=False,
            skip_bad=data.skip_bad,
        )
        if len(self.train) < self.batch_size:
            rule = f"be at most the {len(self.train)} training samples"
            raise ValueError(bad_value("training", "batch_size", rule, self.batch_size))

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return a loader that begins with the epoch at hand, which is not 0 when a training goes on.

        Lightning tells the sampler too, but only after the workers have begun with what they were told here.
        """
        trainer = self.trainer
        sampler = DrawSampler(
            len(self.train),
            n_samples=self.n_samples,
            seed=self.seed,
            n_replicas=trainer.world_size,
            rank=trainer.global_rank,
        )
        sampler.set_epoch(trainer.fit_loop.epoch_progress.current.processed)
        return self._loader(self.train, sampler=sampler, drop_last=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return a loader of the validation part."""
        trainer = self.trainer
        share = {"n_replicas": trainer.world_size, "rank": trainer.global_rank}
        return self._loader(self.validation, sampler=DrawSampler(len(self.validation), shuffle=False, **share))

    def _loader(self, dataset: SpeechMixtures, **options: Any) -> DataLoader[Batch]:
        kept = self.n_workers > 0
        workers: dict[str, Any] = {"num_workers": self.n_workers, "persistent_workers": kept}
        workers["pin_memory"] = self.trainer.strategy.root_device.type == "cuda"
        return DataLoader(dataset, batch_size=self.batch_size, **workers, **options)


def _root(config: DataConfig) -> Path:
    if config.root is None:
        advice = "Give it in the file or with --data."
        raise ValueError(bad_value("data", "root", "be the folder of the speech", None, advice))
    return Path(config.root)
