"""Which devices a fleet admits: one text file, one device id a line."""

import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ConfigError
from shoal.topics import check_device_id


@dataclass(frozen=True, slots=True)
class DeviceRegistry:
    """The device ids in a file, sorted; `#` begins a comment. A missing file admits nobody.

    Example:
        >>> registry = DeviceRegistry(Path("devices"))
        >>> registry.add("pi-1", "pi-2")
        >>> registry.device_ids()
        ('pi-1', 'pi-2')
    """

    path: Path

    def device_ids(self) -> tuple[str, ...]:
        """Reads the file.

        Raises:
            ConfigError: It can't be read, or a line is not a device id.
        """
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"can't read the device list {self.path}: {error}") from error
        return parse_registry(text, str(self.path))

    def add(self, *device_ids: str) -> None:
        """Admits devices; one that is admitted already stays so.

        Raises:
            ConfigError: A name is not a device id, or the file can't be read or written.
        """
        for device_id in device_ids:
            check_device_id(device_id)
        with self._locked():
            self._replace({*self.device_ids(), *device_ids})

    def remove(self, *device_ids: str) -> None:
        """No longer admits devices.

        Raises:
            ConfigError: The file can't be read or written.
        """
        with self._locked():
            self._replace({*self.device_ids()} - {*device_ids})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise ConfigError(f"can't write the device list {self.path}: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _replace(self, device_ids: Iterable[str]) -> None:
        try:
            descriptor, name = tempfile.mkstemp(prefix=".devices-", dir=self.path.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(f"{device_id}\n" for device_id in sorted(device_ids))
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except OSError as error:
            raise ConfigError(f"can't write the device list {self.path}: {error}") from error


def parse_registry(text: str, where: str) -> tuple[str, ...]:
    """The device ids in a registry's text, sorted, each once.

    Raises:
        ConfigError: A line is not a device id.
    """
    device_ids = set()
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        try:
            device_ids.add(check_device_id(entry))
        except ConfigError as error:
            raise ConfigError(f"{where}, line {number}: {error}") from error
    return tuple(sorted(device_ids))
