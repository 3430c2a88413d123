"""Voices for tests: real ones where the shared speech is at hand, synthetic ones elsewhere."""

import numpy as np

import places

SHARED = places.SHARED / "speech"


def voice(seed, n_samples=16000, sample_rate=8000):
    """Return a voice-like sound: syllables of harmonics with formants, a pitch and a tempo per seed."""
    random = np.random.default_rng(seed)
    time = np.arange(n_samples) / sample_rate
    pitch = random.uniform(90, 240) * (1 + 0.1 * np.sin(2 * np.pi * random.uniform(0.3, 1) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / sample_rate
    n_syllables = int(np.ceil(time[-1] * 4)) + 1
    syllable = np.minimum((time * 4).astype(int), n_syllables - 1)
    formants = random.uniform([300, 900, 2000], [900, 2000, 3400], (n_syllables, 3))[syllable]
    loudness = random.choice([0.0, 0.6, 1.0], n_syllables)[syllable] * np.abs(np.sin(2 * np.pi * 2 * time))
    sound = np.zeros(n_samples)
    for harmonic in range(1, 30):
        frequency = harmonic * pitch
        gain = np.exp(-(((frequency[:, None] - formants) / 250) ** 2)).sum(-1)
        sound += np.where(frequency < sample_rate / 2, gain, 0) * np.sin(harmonic * phase)
    sound = sound * loudness + 0.003 * random.standard_normal(n_samples)
    return (0.1 * sound / np.abs(sound).max()).astype(np.float32)


def recordings(folder, n_speakers=4, n_utterances=3, sample_rate=8000, n_samples=16000):
    """Write `<folder>/<speaker>/<speaker>-<i>.wav`."""
    import soundfile

    for speaker in range(n_speakers):
        place = folder / f"speaker{speaker}"
        place.mkdir(parents=True, exist_ok=True)
        for index in range(n_utterances):
            sound = voice(100 * speaker + index, n_samples + 500 * index, sample_rate)
            soundfile.write(place / f"{index:02d}.wav", sound, sample_rate, subtype="PCM_16")
    return folder


def tables(folder):
    """Write nine voices and `metadata/mix_<n>_spk_<part>.csv` of their mixtures."""
    import soundfile

    (folder / "metadata").mkdir(parents=True)
    for place, part in enumerate(("tr", "cv", "tt")):
        for speaker in range(3):
            sound = voice(10 * place + speaker, 10000)
            (folder / part / str(speaker)).mkdir(parents=True)
            soundfile.write(folder / part / str(speaker) / "0.wav", sound, 8000, subtype="PCM_16")
        for n in (2, 3):
            tracks = ",".join(f"s{i}_path,s{i}_gain_db" for i in range(1, n + 1))
            row = ",".join(f"{part}/{speaker}/0.wav,{0.5 * speaker}" for speaker in range(n))
            lines = [f"mixture_ID,length,{tracks}", *(f"mix{i},10000,{row}" for i in range(8))]
            (folder / "metadata" / f"mix_{n}_spk_{part}.csv").write_text("\n".join(lines) + "\n")
    return folder
