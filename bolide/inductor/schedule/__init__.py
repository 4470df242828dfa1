"""Scheduling: from definitions to kernels and a plan. `schedule_program` runs the passes in order."""

from __future__ import annotations

from bolide.inductor.schedule.pipeline import Schedule, schedule_program

__all__ = ["Schedule", "schedule_program"]
