"""How a checkpoint lies in the bucket, byte for byte: other programs and later versions read it."""

import json
import re

from support.records.uploads import upload_files, upload_session

from cloudspot.jobstore.checkpoints import manifests, parts
from cloudspot.jobstore.layout.records import File, SaveId

DATA = bytes(range(250)) * 10
_TAIL = '"sealed_at":"2026-11-20T06:30:00Z","writer":"W"}'


def stored(store, save):
    """The sizes of the objects of a save's parts and chunks, and its part's and its manifest's text."""
    prefix = f"jobs/x/checkpoints/{save.generation:06}-{save.step:012}-{save.round:06}/"
    sizes = {
        meta.key.removeprefix(prefix): meta.size
        for meta in store.list_objects(prefix)
        if "/parts/" not in meta.key
    }
    records = f"{prefix}parts/0000", f"jobs/x/manifests/{save.generation:06}-{save.step:012}"
    texts = [re.sub(r'"writer":"[^"]*"', '"writer":"W"', store.get(key).decode()) for key in records]
    return sizes, texts[0], re.sub(r'"at":"[^"]*"', '"at":"T"', texts[1])


def test_a_sessions_part_and_its_manifest_keep_their_bytes(store, checkpoints):
    save = SaveId(3, 40, 7)
    [seal] = checkpoints.seals(
        save, [DATA], relieved=[1], world_size=2, rank_states={"0": {}, "1": {}}, cuts=[1000]
    )
    upload_session(store, "x", seal, DATA, chunk_bytes=1200)
    manifests.write_manifest(store, "x", save)
    sizes, part, manifest = stored(store, save)
    assert sizes == {"chunks/0000/000000": 1000, "chunks/0000/000001": 1200, "chunks/0000/000002": 300}
    head = '"generation":3,"step":40,"round":7,'
    assert part == (
        "{" + head + '"rank":0,"num_parts":1,"relieved":[1],"kind":"session","size":2500,"chunks":['
        '{"size":1000,"xxh3_128":"dd6b888213680b18de6fd5031e51cb12"},'
        '{"size":1200,"xxh3_128":"0ac987365f6ae6a28082c70a3dc916cc"},'
        '{"size":300,"xxh3_128":"e82285c113e35ac2eec99f48b9af4dec"}],'
        f'"seal":{json.dumps(seal.decode())},"files":[],"directory":null,"evidence":null,"rescue":null,'
        + _TAIL
    )
    assert manifest == ('{"at":"T","writer":"W",' + head + f'"kind":"session","size":2500,"parts":[{part}]}}')


def test_a_directorys_part_and_its_manifest_keep_their_bytes(store, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MIN_FILE_BYTES", 2500)
    files = []
    for name, data in (("small", b"abc"), ("big", DATA), ("tiny", b"d")):
        (tmp_path / name).write_bytes(data)
        files.append(File(path=name, size=len(data), mode=0o600))
    save = SaveId(4, 41, 0)
    upload_files(store, "x", save, tmp_path, files, ".", evidence="proven", chunk_bytes=2000)
    manifests.write_manifest(store, "x", save)
    sizes, part, manifest = stored(store, save)
    assert list(sizes.values()) == [3, 2000, 500, 1]
    head = '"generation":4,"step":41,"round":0,'
    assert part == (
        "{" + head + '"rank":0,"num_parts":1,"relieved":[],"kind":"directory","size":2504,"chunks":['
        '{"size":3,"xxh3_128":"06b05ab6733a618578af5f94892f3950"},'
        '{"size":2000,"xxh3_128":"6b5aef81ed3d4a61382a9e91b861420b"},'
        '{"size":500,"xxh3_128":"51d7714e0ba8ef85acbd870344d9fe73"},'
        '{"size":1,"xxh3_128":"56a841f9102d5ff745f80274c9c7a7ca"}],"seal":null,"files":['
        '{"path":"small","size":3,"mode":384},{"path":"big","size":2500,"mode":384},'
        '{"path":"tiny","size":1,"mode":384}],"directory":".","evidence":"proven","rescue":null,' + _TAIL
    )
    assert manifest == (
        '{"at":"T","writer":"W",' + head + f'"kind":"directory","size":2504,"parts":[{part}]}}'
    )
