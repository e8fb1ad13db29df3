"""NVIDIA's management library by ctypes: a few readings that are taken without Paceline, to compare with its own.

Structures and numbers are nvml.h's, <https://docs.nvidia.com/deploy/nvml-api/>.
"""

import ctypes
import time

NOT_SUPPORTED = 3
ECC_CURRENT, LINK_COUNT, MARGIN = 1, 91, 193  # fields; the last is the first of four margins of driver 550 on
LINK_STATE = 273  # NVML_FI_DEV_NVLINK_GET_STATE of 580.82: to be looked up by what the driver answers
THROTTLE = {"throttle_thermal_sw_ns": 269, "throttle_thermal_hw_ns": 270, "throttle_brake_ns": 271}
MAX_LINKS = 18
NAMES = {0: "off", 1: "on", 2: "asleep"}


class Value(ctypes.Union):
    _fields_ = [("d", ctypes.c_double), ("i", ctypes.c_int), ("u", ctypes.c_uint), ("ul", ctypes.c_ulong), ("ull", ctypes.c_ulonglong)]


class Field(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", Value),
    ]


class Library:
    """An open library, and its first GPU."""

    def __init__(self, path=None):
        self.nvml = ctypes.CDLL(path or "libnvidia-ml.so.1")
        code = self.nvml.nvmlInit_v2()
        if code:
            raise OSError(code, "nvmlInit_v2")
        self.gpu = ctypes.c_void_p()
        if code := self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.gpu)):
            raise OSError(code, "nvmlDeviceGetHandleByIndex_v2")

    def text(self, function, *before):
        """What a function writes into a buffer."""
        buffer = ctypes.create_string_buffer(128)
        code = getattr(self.nvml, function)(*before, buffer, len(buffer))
        return None if code else buffer.value.decode(errors="replace")

    def driver(self):
        return self.text("nvmlSystemGetDriverVersion")

    def uuid(self):
        return self.text("nvmlDeviceGetUUID", self.gpu)

    def number(self, function, *before):
        """What a function writes as an unsigned number; its code as a text where it does not."""
        value = ctypes.c_uint()
        code = getattr(self.nvml, function)(self.gpu, *before, ctypes.byref(value))
        return "code %d" % code if code else value.value

    def reasons(self):
        value = ctypes.c_ulonglong()
        code = self.nvml.nvmlDeviceGetCurrentClocksEventReasons(self.gpu, ctypes.byref(value))
        return "code %d" % code if code else value.value

    def field(self, number, scope=0):
        """(type, value), or a code as a text. The value by its type, and where that is a double as a whole number too."""
        one = Field(id=number, scope=scope)
        code = self.nvml.nvmlDeviceGetFieldValues(self.gpu, 1, ctypes.byref(one)) or one.result
        if code:
            return "code %d" % code
        by_type = {0: one.value.d, 1: one.value.u, 2: one.value.ul, 3: one.value.ull, 4: one.value.ull, 5: one.value.i}
        return one.value_type, by_type.get(one.value_type), one.value.ull

    def links(self):
        """The state of each NVLink that has one: 0 off, 1 on (as nvidia-smi has it), by the function that all drivers have."""
        state, found = ctypes.c_uint(), []
        for link in range(MAX_LINKS):
            if self.nvml.nvmlDeviceGetNvLinkState(self.gpu, link, ctypes.byref(state)) == 0:
                found.append(state.value)
        return found

    def field_us(self, number, times=20):
        """What a read of one field takes."""
        began = time.monotonic()
        for _ in range(times):
            self.field(number)
        return (time.monotonic() - began) / times * 1e6
