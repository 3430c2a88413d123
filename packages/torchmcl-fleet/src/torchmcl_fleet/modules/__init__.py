"""Modules with a leading axis of models: their layers, their optimizers, and checks that they can be stacked."""

from torchmcl_fleet.modules.stacked import StackedModules, build_modules

__all__ = ["StackedModules", "build_modules"]
