"""The driver contract: all that differs between a program here, a phone over adb and a board over ssh.

A driver is a module of this folder whose `DRIVER` is a subclass of the class below; the device file names it. It knows
how to run a shell script on the device with standard input, output and error passed through, and how to tell in a
sentence why that is not possible now. Everything else (pushing, running engines, facts, cooling) is made of scripts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import ClassVar


class DeviceError(Exception):
    """The device or its file is wrong; never the fault of an engine."""


class DeviceLost(DeviceError):
    """The connection broke off; worth another attempt when the device is back."""


class Driver(ABC):
    """A connection to one device."""

    exclusive: ClassVar[bool] = False
    """True when a measurement must have the machine that runs the workflow to itself."""

    shares_files: ClassVar[bool] = False
    """True when paths mean the same there as here, so that nothing is copied."""

    folder: ClassVar[str]
    """The folder on the device that holds all that is pushed."""

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def shell(self, script: str) -> list[str]:
        """Words of a command here that runs a script of POSIX sh on the device. Its exit status need not be passed."""

    @abstractmethod
    def trouble(self) -> str | None:
        """Why the device does not answer, as a sentence that says what to do; None when it does. Tries to connect."""

    def forward(self, port: int) -> AbstractContextManager[int]:
        """A port of this machine that leads to one of the device while it is entered, where a driver can do that."""
        raise DeviceError(f"{self.address or 'this machine'} is not reached by adb, which alone forwards port {port}")
