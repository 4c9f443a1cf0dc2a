import pytest

from cloudspot.model import Resources
from cloudspot.plugin.machinetypes import MIN_CPUS, MIN_MEMORY_BYTES, MachineType, fitting_types

GIB = 2**30
SMALL = MachineType(name="small", cpus=2, memory_bytes=8 * GIB)
BIG = MachineType(name="big", cpus=8, memory_bytes=32 * GIB)
GPU = MachineType(name="gpu", cpus=4, memory_bytes=16 * GIB, accelerator="RTX PRO 4500", accelerator_count=1)
GPUS = MachineType(
    name="gpus", cpus=8, memory_bytes=32 * GIB, accelerator="RTX PRO 4500", accelerator_count=4
)
TINY = MachineType(name="tiny", cpus=MIN_CPUS - 1, memory_bytes=MIN_MEMORY_BYTES)
TYPES = (GPUS, BIG, TINY, GPU, SMALL)


@pytest.mark.parametrize(
    ("resources", "names"),
    [
        (Resources(), ["small", "big"]),
        (Resources(cpus=3), ["big"]),
        (Resources(cpus=1), ["tiny", "small", "big"]),
        (Resources(memory_bytes=8 * GIB + 1), ["big"]),
        (Resources(accelerator="rtx-pro-4500"), ["gpu", "gpus"]),
        (Resources(accelerator="rtx pro 4500", accelerator_count=2), ["gpus"]),
        (Resources(accelerator_count=1), ["gpu", "gpus"]),
        (Resources(accelerator="A10"), []),
        (Resources(accelerator_count=8), []),
    ],
)
def test_the_types_that_fit_come_smallest_first(resources, names):
    assert [one.name for one in fitting_types(TYPES, resources)] == names


def test_a_type_without_an_accelerator_is_called_nothing():
    assert not SMALL.is_called("A10")
    assert not SMALL.fits(Resources(accelerator="A10"))
