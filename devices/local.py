"""The driver of the machine that runs the workflow: folders stay where they are, scripts are run by its shell."""

from __future__ import annotations

from devices.driver import Driver


class Local(Driver):
    """This machine."""

    exclusive = True
    shares_files = True

    def shell(self, script: str) -> list[str]:
        return ["sh", "-c", script]

    def trouble(self) -> str | None:
        return None


DRIVER = Local
