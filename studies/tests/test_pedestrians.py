"""Recordings of pedestrians: the published numbers of windows, gaps, scenes, both ways to the files, bad files."""

import gzip
import hashlib

import numpy as np
import pytest
import torch

import oracles
import places
from grids import for_each
from torchmcl_studies.data import checksums, pedestrians
from torchmcl_studies.data.pedestrians import Recording, tracks

SHARED = places.SHARED / "pedestrians"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the recordings are not in ../shared/data/pedestrians")
# Windows of training, validation and test, and scenes of the test.
PUBLISHED = {
    "eth": (30307, 5422, 364, 253),
    "hotel": (29676, 5203, 1197, 445),
    "univ": (9874, 2800, 24334, 947),
    "zara1": (28577, 5184, 2356, 705),
    "zara2": (26076, 4262, 5910, 998),
}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """No test sees the user's cache or data folder, nor goes through a proxy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHMCL_DATA", raising=False)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    return tmp_path / "cache/torchmcl/pedestrians"


def crowd(n_persons=6, n_frames=40, step=10, seed=0):
    """Rows of people who come and go, each missed in a few frames, in no order."""
    random = np.random.default_rng(seed)
    rows = []
    for person in range(n_persons):
        begin, end = sorted(random.integers(0, n_frames, 2))
        for frame in range(begin, end + 1):
            if random.random() > 0.05:
                rows.append((frame * step + 780, person, *random.normal(0, 5, 2)))
    rows += [(780 + step * i, 99, i, 0.0) for i in range(n_frames)]  # the most frequent step is known
    return random.permutation(np.array(rows))


def text_of(rows):
    return "".join(f"{frame:.1f}\t{person:.1f}\t{x:.17g}\t{y:.17g}\n" for frame, person, x, y in rows)


def put(root, folders=("all", "train", "val"), packed=False):
    """Write a small recording under every published name."""
    for folder, ending in zip(folders, ("", "_train", "_val"), strict=True):
        (root / folder).mkdir(parents=True)
        for number, name in enumerate(pedestrians.RECORDINGS):
            text = text_of(crowd(seed=number))
            path = root / folder / f"{name}{ending}.txt"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(text.encode()))
            else:
                path.write_text(text)
    return root


# ---- the published recordings ----


@needs_shared
@for_each("scene", pedestrians.SCENES)
def test_the_splits_have_the_published_numbers_of_windows_and_scenes(scene):
    split = pedestrians.load(scene, SHARED)
    assert (*map(len, split), split.test.n_scenes) == PUBLISHED[scene]
    tested = set(pedestrians.SCENES[scene])
    assert set(split.test.recordings) == tested
    assert set(split.train.recordings) == set(split.validation.recordings) == set(pedestrians.RECORDINGS) - tested
    for part in split:
        assert part.observed.shape == (len(part), 8, 2)
        assert part.future.shape == (len(part), 12, 2)
        assert part.observed.dtype == part.future.dtype == torch.float32
        assert part.mask.all()
        assert part.observed.isfinite().all()


@needs_shared
def test_the_checksums_are_those_of_the_files():
    known = checksums("torchmcl_studies.data.pedestrians", "files.txt")
    assert len(known) == len(pedestrians.RECORDINGS) * len(tracks._PARTS)
    for part, (folder, ending) in tracks._PARTS.items():
        for name in pedestrians.RECORDINGS:
            content = gzip.decompress((SHARED / part / f"{name}{ending}.txt.gz").read_bytes())
            assert hashlib.sha256(content).hexdigest() == known[f"{folder}/{name}{ending}.txt"], (name, part)


@needs_shared
def test_partial_windows_of_a_recording_contain_the_complete_ones():
    (recording,) = pedestrians.read_recordings("crowds_zara01", root=SHARED)
    complete, every = pedestrians.windows(recording), pedestrians.windows(recording, partial=True)
    whole = every.mask.all(dim=-1)
    assert len(every) > len(complete) == int(whole.sum())
    assert torch.equal(every.future[whole], complete.future)
    assert every.mask[:, 0].all()
    lengths = every.mask.sum(dim=-1, keepdim=True)
    last = every.future.gather(1, (lengths - 1).unsqueeze(-1).expand(-1, -1, 2))
    assert torch.equal(torch.where(every.mask.unsqueeze(-1), last, every.future), last.expand_as(every.future))


@needs_shared
def test_a_data_folder_is_found_by_its_variable(monkeypatch):
    monkeypatch.setenv("TORCHMCL_DATA", str(SHARED.parent))
    (recording,) = pedestrians.read_recordings(["biwi_eth"])
    assert (recording.name, recording.step, len(recording.frames)) == ("biwi_eth", 10, 5492)


# ---- windows ----


@for_each("partial", [False, True])
@for_each("stride", [1, 3])
@for_each("observed, future", [(8, 12), (2, 3), (1, 1)])
def test_windows_agree_with_the_oracle_and_cross_no_gap(observed, future, stride, partial):
    rows = crowd(n_persons=12)
    samples = pedestrians.windows(
        Recording.from_rows(rows), observed=observed, future=future, stride=stride, partial=partial
    )
    expected = oracles.track_windows(rows.tolist(), observed, future, 10, stride, partial)
    keys = list(zip(samples.frame.tolist(), samples.person.tolist(), strict=True))
    assert keys == sorted(expected)
    tracks = torch.cat([samples.observed, samples.future], dim=1)
    for key, track, mask in zip(keys, tracks, samples.mask, strict=True):
        n = observed + int(mask.sum())
        assert n == len(expected[key])
        assert mask[: n - observed].all()
        torch.testing.assert_close(track[:n], torch.tensor(expected[key], dtype=torch.float32))


def test_windows_of_one_recording_and_first_frame_are_a_scene():
    recordings = [Recording.from_rows(crowd(seed=seed), f"r{seed}") for seed in range(3)]
    samples = pedestrians.windows(recordings, observed=2, future=2)
    keys = list(zip(samples.recording.tolist(), samples.frame.tolist(), strict=True))
    numbers = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    assert samples.scene.tolist() == [numbers[key] for key in keys]
    assert samples.n_scenes == len(numbers)
    assert samples.recordings == ("r0", "r1", "r2")


def test_neighbours_are_the_other_windows_of_the_scene():
    samples = pedestrians.windows(Recording.from_rows(crowd(n_persons=9)), observed=2, future=2)
    near = samples.neighbors()
    for row, scene in enumerate(samples.scene.tolist()):
        expected = [other for other, s in enumerate(samples.scene.tolist()) if s == scene and other != row]
        assert near.rows[row][near.mask[row]].tolist() == expected
        assert (near.rows[row][~near.mask[row]] == row).all()
    assert near.mask.any()


def test_a_recording_too_short_for_a_window_gives_none():
    samples = pedestrians.windows(Recording.from_rows(crowd()[:1]))
    assert (len(samples), samples.n_scenes) == (0, 0)
    assert samples.observed.shape == (0, 8, 2)
    assert samples.neighbors().rows.shape == (0, 0)


def test_recordings_left_out_and_the_others_are_all_windows_with_scenes_of_their_own():
    recordings = [Recording.from_rows(crowd(seed=seed), f"r{seed}") for seed in range(4)]
    samples = pedestrians.windows(recordings, observed=2, future=2)
    rest, held_out = pedestrians.leave_out(samples, "r2", "r0")
    for part, chosen in ((rest, (1, 3)), (held_out, (0, 2))):
        alone = pedestrians.windows([recordings[i] for i in chosen], observed=2, future=2)
        assert part.recordings == alone.recordings
        for name in ("observed", "future", "mask", "scene", "recording", "person", "frame"):
            assert torch.equal(getattr(part, name), getattr(alone, name)), name


# ---- files ----


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folders", [("all", "train", "val"), ("all_data", "train", "val")])
def test_a_folder_is_read_packed_or_not_under_both_names(tmp_path, packed, folders):
    split = pedestrians.load("univ", put(tmp_path / "data", folders, packed), observed=3, future=2, partial=True)
    expected = pedestrians.windows(
        [Recording.from_rows(crowd(seed=number), pedestrians.RECORDINGS[number]) for number in (2, 3)],
        observed=3,
        future=2,
        partial=True,
    )
    assert split.test.recordings == ("students001", "students003")
    assert torch.equal(split.test.future, expected.future)


# ---- bad recordings ----

LINE = [(10 * i, 1, i, 0) for i in range(12)]
BAD_ROWS = {
    "three columns": ([row[:3] for row in LINE], "must have the columns frame, person, x, y, got 3 columns"),
    "five columns": ([(*row, 0) for row in LINE], "got 5 columns"),
    "nan": ([*LINE, (500, 2, np.nan, 0)], "must hold finite numbers, got nan as x in row 12. Remove"),
    "infinite": ([*LINE, (500, 2, 0, np.inf)], "got inf as y in row 12"),
    "half a frame": ([*LINE, (500.5, 2, 0, 0)], "must number frames and persons by integers, got 500.5 as frame"),
    "half a person": ([*LINE, (500, 2.5, 0, 0)], "got 2.5 as person in row 12"),
    "twice": ([*LINE, (20, 1, 9, 9)], "must hold each person once per frame, got person 1 twice in frame 20"),
    "two rates": (
        [*LINE, *((6 * i, 2, i, 0) for i in range(9))],
        r"must have one frame rate, got frame steps 10 and 6 \(person 2 before frame 6\). Split the file",
    ),
    "twice the rate": ([*LINE, *((5 * i, 2, i, 0) for i in range(9))], "got frame steps 10 and 5"),
    "half the rate": ([*LINE, *((20 * i, 2, i, 0) for i in range(6))], "got frame steps 10 and 20"),
    "a rate that changes": ([*LINE, *((110 + 20 * i, 1, i, 0) for i in range(1, 6))], "got frame steps 10 and 20"),
    "between the frames": (
        [*LINE, *((10 * i + 5, 2, i, 0) for i in range(6))],
        "must have frames that are multiples of 10 apart, got frames 0 and 5",
    ),
}


@pytest.mark.parametrize(("rows", "words"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_are_not_a_recording_are_refused_by_name(rows, words, tmp_path):
    with pytest.raises(ValueError, match=f"pedestrians: `street` .*{words}"):
        Recording.from_rows(np.array(rows, dtype=float), "street")
    path = tmp_path / "street.txt"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    with pytest.raises(ValueError, match=f"`street` .*{words}"):
        pedestrians.read(path)


def test_a_person_missed_now_and_then_is_a_gap_and_not_another_rate():
    rows = [row for row in LINE if row[0] not in (30, 50)]
    recording = Recording.from_rows(np.array(rows, dtype=float))
    assert recording.step == 10
    assert pedestrians.windows(recording, observed=2, future=1).frame.tolist() == [0, 60, 70, 80, 90]


def test_two_frame_rates_in_a_folder_are_refused_with_both(tmp_path):
    root = put(tmp_path / "data")
    (root / "train/crowds_zara02_train.txt").write_text(text_of(crowd(step=6)))
    words = "`recordings` must have the same frame step, got 10 in biwi_hotel and 6 in crowds_zara02"
    with pytest.raises(ValueError, match=words):
        pedestrians.load("eth", root)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must hold rows, got an empty file"),
        (b"  \n\n", "must hold rows, got an empty file"),
        (b"0 1 2 3\n0 1 2\n", "must hold lines of four numbers: frame, person, x, y, got"),
        (b"frame person x y\n0 1 2 3\n", "must hold lines of four numbers"),
        (b"__import__('os').abort() 1 2 3\n", "must hold lines of four numbers"),
        (b"\xff\xfe\x00", "must be text in UTF-8"),
    ],
)
def test_files_that_are_not_tables_are_refused_by_name(tmp_path, content, words):
    path = tmp_path / "street.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"pedestrians.read: `street.txt` {words}"):
        pedestrians.read(path)


@pytest.mark.parametrize(
    "content",
    [
        # Named, because the bytes hold the time of packing and processes must agree on the names of tests.
        pytest.param(b"0 1 2 3\n", id="not packed"),
        pytest.param(gzip.compress(b"0 1 2 3\n" * 99)[:-9], id="cut short"),
        pytest.param(gzip.compress(b"\xff\xfe"), id="not text"),
    ],
)
def test_a_broken_gzip_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "street.txt.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"`street\.txt\.gz`"):
        pedestrians.read(path)


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHMCL_LIMIT_TABLE_BYTES", "10K")
    path = tmp_path / "street.txt.gz"
    path.write_bytes(gzip.compress(b"0 1 2 3\n" * 10_000))
    with pytest.raises(ValueError, match=r"`street\.txt\.gz`"):
        pedestrians.read(path)
