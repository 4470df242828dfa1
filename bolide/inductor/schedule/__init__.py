"""Scheduling: from definitions to kernels and a plan. `schedule` runs the passes in order; every pass is one function
in one file."""

from __future__ import annotations

from bolide.inductor.schedule.pipeline import Schedule, schedule

__all__ = ["Schedule", "schedule"]
