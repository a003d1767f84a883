"""All figures of a run, drawn once for the page and for the files; and the reasons for those that are missing."""

from __future__ import annotations

from dataclasses import dataclass

from frcl.report.drawing import Drawing
from frcl.report.figures import curves_figure, forgetting_figure, matrix_figure, time_figure, time_parts
from frcl.report.pictures import Contact, contact_sheets, points_figure
from frcl.report.run import Run
from frcl.report.signals import boundary_figure, calibration_figure, terms_figure


@dataclass(frozen=True, eq=False)
class Gallery:
    """The figures in the order of the report, the sheets of inducing images, and the reason for each missing part."""

    drawings: list[Drawing]
    sheets: list[Contact]
    left_out: list[str]


def draw(run: Run) -> Gallery:
    """Every figure that the run allows; call it inside `style()`."""
    result, sheets = run.result, contact_sheets(run)
    curve, boundaries, steps = result.calibration, result.boundaries, result.steps
    known = curve is not None and curve.filled.any()
    no_images = "the inputs kept are not images" if run.points else "the run kept no inducing points"
    time = time_figure(result) if time_parts(result) else None
    entries = (
        (matrix_figure(result), ""),
        (curves_figure(result), ""),
        (forgetting_figure(result) if len(result.tasks) > 1 else None, "Forgetting by task: there is one task only."),
        (
            calibration_figure(curve) if curve and known else None,
            "Calibration: the run recorded no class probabilities.",
        ),
        (points_figure(sheets) if sheets else None, f"Inducing images: {no_images}."),
        (boundary_figure(boundaries) if boundaries else None, "Task switches: the learner was told where tasks begin."),
        (terms_figure(result, steps) if steps else None, "Training terms: the run has no step log."),
        (time, "Time: the run recorded none."),
    )
    rest = {"Options": result.config, "Environment": result.environment, "Command": result.command}
    left_out = [reason for drawing, reason in entries if drawing is None]
    left_out += [f"{name}: the run recorded none." for name, value in rest.items() if not value]
    return Gallery([drawing for drawing, _ in entries if drawing is not None], sheets, left_out)
