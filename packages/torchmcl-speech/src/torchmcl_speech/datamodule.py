"""Lightning data module of a training configuration."""

from typing import Any

import torch
from torch.utils.data import DataLoader

from torchmcl import Batch, optional
from torchmcl.errors import bad_value
from torchmcl_speech.config import DataConfig, TrainingConfig
from torchmcl_speech.data import DeviceMixtures, DrawSampler, DynamicMixing, SpeechMixtures
from torchmcl_speech.data.augment import Augmentation
from torchmcl_speech.mixture_lists import audio_store, first_mixtures, listed_mixtures

__all__ = ["SpeechData", "pl"]

pl = optional.optional_import("lightning.pytorch", extra="lightning", needed_by="torchmcl_speech.datamodule")


class SpeechData(pl.LightningDataModule):  # type: ignore[name-defined]
    """Lightning data module of training and validation mixtures.

    Args:
        data: Location of the recordings, and construction of samples.
        training: Settings of the training run.
        augmentation: Augmentation of training samples on the device; none by default.
    """

    def __init__(self, data: DataConfig, training: TrainingConfig, augmentation: Augmentation | None = None) -> None:
        super().__init__()
        store = audio_store(data)
        dynamic = DynamicMixing(tuple(data.n_speakers), data.spread_db) if data.dynamic else None
        self.batch_size, self.n_workers, self.seed = training.batch_size, data.n_workers, training.seed
        self.n_samples = data.samples_per_epoch
        self.on_device, self.crop, self.augmentation = data.on_device, data.crop, augmentation
        self._mixed: DeviceMixtures | None = None
        # Recordings that are mixed on the device may be shorter than the crop, because they are padded with silence.
        self.train = SpeechMixtures(
            listed_mixtures(data, "tr"),
            store,
            crop=1 / store.sample_rate if data.on_device else data.crop,
            dynamic=dynamic,
            n_samples=data.samples_per_epoch if dynamic else None,
            seed=training.seed,
            skip_bad=data.skip_bad,
        )
        self.validation = SpeechMixtures(
            first_mixtures(data, "cv", data.validation_samples),
            store,
            crop=data.crop,
            random_crops=False,
            skip_bad=data.skip_bad,
        )
        if len(self.train) < self.batch_size:
            rule = f"be at most the {len(self.train)} training samples"
            advice = f"Use --set training.batch_size={len(self.train)}, or more mixtures."
            raise ValueError(bad_value("training", "batch_size", rule, self.batch_size, advice))

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return a loader that starts at the current epoch, which is not 0 in a resumed run.

        Lightning also sets the epoch of the sampler, but only after the workers have started with this epoch.
        """
        trainer = self.trainer
        part = {"seed": self.seed, "n_replicas": trainer.world_size, "rank": trainer.global_rank}
        if self.on_device:
            mixed = self._mixed_on(trainer.strategy.root_device)
            sampler = DrawSampler(len(mixed), shuffle=False, **part)
        else:
            sampler = DrawSampler(len(self.train), n_samples=self.n_samples, **part)
        sampler.set_epoch(trainer.fit_loop.epoch_progress.current.processed)
        if self.on_device:
            return DataLoader(mixed, batch_size=None, sampler=sampler)
        return self._loader(self.train, sampler=sampler, drop_last=True)

    def _mixed_on(self, device: torch.device) -> DeviceMixtures:
        if self._mixed is None:
            self._mixed = DeviceMixtures(
                self.train.mixtures,
                self.train.store,
                mixing=self.train.dynamic,
                crop=self.crop,
                batch_size=self.batch_size,
                n_batches=len(self.train) // self.batch_size,
                augmentation=self.augmentation,
                seed=self.seed,
                device=device,
            )
        return self._mixed

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return a loader of the validation part."""
        trainer = self.trainer
        part = {"n_replicas": trainer.world_size, "rank": trainer.global_rank}
        return self._loader(self.validation, sampler=DrawSampler(len(self.validation), shuffle=False, **part))

    def _loader(self, dataset: SpeechMixtures, **options: Any) -> DataLoader[Batch]:
        kept = self.n_workers > 0
        workers: dict[str, Any] = {"num_workers": self.n_workers, "persistent_workers": kept}
        workers["pin_memory"] = self.trainer.strategy.root_device.type == "cuda"
        return DataLoader(dataset, batch_size=self.batch_size, **workers, **options)
