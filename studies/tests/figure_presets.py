"""The figures in seconds: small networks, few seeds, short trainings."""

from torchmcl.schedules import Cosine
from torchmcl_fleet import Adam
from torchmcl_studies.figures.settings import FigureSettings

WITHOUT_INPUT = FigureSettings(
    "small", 2, 80, 1500, 300, 300, (32, 32), Adam(), Cosine(0.006, 6e-5, 80), n_held_out=1500, n_records=20
)
WITH_INPUT = FigureSettings("small", 1, 110, 2000, 200, 1, (32, 32), Adam(), 0.008, n_held_out=1000, n_records=55)
