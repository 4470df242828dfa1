"""Scheduling: from definitions to kernels and a plan. `schedule_program` runs the passes in order."""

from __future__ import annotations

from bolide.inductor.schedule.pipeline import Scheduled, schedule_program

__all__ = ["Scheduled", "schedule_program"]
