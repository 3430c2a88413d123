"""Separating speakers: networks, mixtures, trainings, and models that work on the first try."""
