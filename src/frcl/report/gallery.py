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
    """The figures in the order of the report, the sheets of inducing images, and what is left out, with the reason."""

    drawings: list[Drawing]
    sheets: list[Contact]
    left_out: list[str]


def draw(run: Run) -> Gallery:
    """Every figure that the run allows; call it inside `style()`."""
    result, sheets = run.result, contact_sheets(run)
    drawings, left_out = [matrix_figure(result), curves_figure(result)], []
    if len(result.tasks) > 1:
        drawings.append(forgetting_figure(result))
    else:
        left_out.append("Forgetting by task: there is one task only.")
    if result.calibration is not None and result.calibration.filled.any():
        drawings.append(calibration_figure(result.calibration))
    else:
        left_out.append("Calibration: the run recorded no class probabilities.")
    if sheets:
        pass  # last among the files, in a section of its own in the page
    elif run.points:
        left_out.append("Inducing images: the inputs kept are not images.")
    else:
        left_out.append("Inducing images: the run kept no inducing points.")
    if result.boundaries is not None:
        drawings.append(boundary_figure(result.boundaries))
    else:
        left_out.append("Task switches: the learner was told where tasks begin.")
    if result.steps is not None:
        drawings.append(terms_figure(result, result.steps))
    else:
        left_out.append("Training terms: the run has no step log.")
    if time_parts(result):
        drawings.append(time_figure(result))
    drawings += [points_figure(sheets)] if sheets else []
    recorded = {"Time": time_parts(result), "Options": result.config, "Environment": result.environment,
                "Command": result.command}  # fmt: skip
    left_out += [f"{name}: the run recorded none." for name, value in recorded.items() if not value]
    return Gallery(drawings, sheets, left_out)
