"""What devices there are beside the CPU."""

import ctypes
import dataclasses

from weft._c import DeviceInfo, lib


@dataclasses.dataclass(frozen=True)
class Device:
    """A device, or why there is none of its kind: then `missing` says so and the rest is empty."""

    id: str  # "cuda:0", "hip:0", "sim:gfx942"
    name: str
    target: str  # what its kernels are compiled for: "sm_90a", "gfx942"
    missing: str
    units: int  # multiprocessors or compute units
    memory: int  # bytes
    simulated: bool


def devices():
    """All devices that this build knows of, those that are missing here among them."""
    count = ctypes.c_size_t()
    infos = (DeviceInfo * 64)()
    lib.weft_devices(infos, len(infos), ctypes.byref(count))
    return [
        Device(
            info.id.decode(),
            info.name.decode(),
            info.target.decode(),
            info.missing.decode(),
            info.units,
            info.memory,
            not info.keeps_time,
        )
        for info in infos[: min(count.value, len(infos))]
    ]
