"""Modules with a leading axis of models: layers, optimizers, and checks that modules can be stacked."""

from torchmcl_fleet.modules.stacked import StackedModules, build_modules

__all__ = ["StackedModules", "build_modules"]
