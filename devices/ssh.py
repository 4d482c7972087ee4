"""The driver of boards and servers: the system's ssh, one connection shared by all commands.

The address is what ssh takes, [USER@]HOST or a name in ~/.ssh/config, where port, key and jump hosts belong. Nothing is
ever asked: authentication must work without a terminal.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

from devices.driver import Driver

CONNECT_S = 10


class Ssh(Driver):
    """A machine that ssh reaches."""

    folder = "/var/tmp/sod2"  # survives a reboot

    def shell(self, script: str) -> list[str]:
        # A shared connection is kept for a minute after its last command; keep-alives notice a dead one in 15 s.
        control = Path(tempfile.gettempdir()) / "sod2-ssh-%C"
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_S,
            "ControlMaster": "auto",
            "ControlPath": control,
            "ControlPersist": 60,
            "ServerAliveInterval": 5,
            "ServerAliveCountMax": 3,
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", *words, self.address, f"sh -c {shlex.quote(script)}"]

    def trouble(self) -> str | None:
        result = subprocess.run(
            self.shell("true"), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if result.returncode == 0:
            return None
        lines = result.stderr.strip().splitlines()
        return (
            f"ssh says of {self.address} '{lines[-1] if lines else result.returncode}': try `ssh {self.address} true`"
        )


DRIVER = Ssh
