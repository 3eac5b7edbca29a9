"""Datasets of slots: files of MultiSlot text that train a program (`Executor.train_from_dataset`)."""

from jfluid.dataset.datasets import DatasetBase, DatasetFactory, InMemoryDataset, QueueDataset

__all__ = ["DatasetBase", "DatasetFactory", "InMemoryDataset", "QueueDataset"]
