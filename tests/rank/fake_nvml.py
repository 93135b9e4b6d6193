"""A pynvml whose GPUs, links and refusals a test decides."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


def _refuse(*_):
    raise NVMLError("Not Supported")


class FakeNvml:
    """GPUs by UUID; `refuses` names functions that fail, `lacks` those that are not there, `fields` maps
    (field, scope) to (NVML return, type, value)."""

    NVML_SUCCESS = 0
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, links=(1, 1), fields=None, mig=0, refuses=(), lacks=()):
        self.links, self.mig, self.refuses, self.lacks = links, mig, set(refuses), set(lacks)
        self.handles = {"GPU-aaaa": "first", "GPU-bbbb": "second"}
        self.buses = {"00000000:3B:00.0": "first", "00000000:AF:00.0": "second"}
        self.fields = {(91, 0): (0, 1, len(links))} | (fields or {})
        self.asked = []

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in self.lacks:
            raise AttributeError(name)
        if name.startswith("nvml") and name in self.refuses:
            return _refuse
        return object.__getattribute__(self, name)

    def set_traffic(self, tx_kib, rx_kib, scope=0xFFFFFFFF):
        self.fields[138, scope], self.fields[139, scope] = (0, 3, tx_kib), (0, 3, rx_kib)

    def nvmlInit(self): ...

    def nvmlDeviceGetCount(self):
        return len(self.handles)

    def nvmlDeviceGetHandleByIndex(self, index):
        return list(self.handles.values())[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in self.handles:
            raise NVMLError("Not Found")
        return self.handles[uuid]

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        if bus not in self.buses:
            raise NVMLError("Not Found")
        return self.buses[bus]

    def nvmlDeviceGetMigMode(self, handle):
        return [self.mig, self.mig]

    def nvmlDeviceGetNvLinkState(self, handle, link):
        if self.links[link] is None:
            raise NVMLError("Not Supported")
        return self.links[link]

    def nvmlDeviceGetFieldValues(self, handle, fields):
        self.asked += fields
        return [self._field(*field) for field in fields]

    def _field(self, field, scope):
        returned, kind, value = self.fields.get((field, scope), (3, 3, 0))
        member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[kind]
        return SimpleNamespace(nvmlReturn=returned, valueType=kind, value=SimpleNamespace(**{member: value}))

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlSystemGetCudaDriverVersion(self):
        return 13000

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA Test"

    def nvmlDeviceGetUUID(self, handle):
        return {"first": "GPU-aaaa", "second": "GPU-bbbb"}[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=100 * 2**30, free=99 * 2**30)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 500_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle):
        return 700_000

    def nvmlDeviceGetPowerUsage(self, handle):
        return 123_456

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 41

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x4

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0x24
