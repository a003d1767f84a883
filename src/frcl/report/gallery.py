"""Which figures a run has, and which it cannot have and why."""

from __future__ import annotations

from pathlib import Path

from frcl.report.drawing import Drawing, save, style
from frcl.report.figures import curves_figure, forgetting_figure, matrix_figure, time_figure, time_parts
from frcl.report.pictures import contact_sheets, points_figure
from frcl.report.run import Run
from frcl.report.signals import boundary_figure, calibration_figure, terms_figure


def write_figures(run: Run, folder: Path) -> list[Path]:
    """The figures of the run's report as PNG and SVG files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with style():
        drawings = [*draw(run), *(points_figure(sheets) for sheets in [contact_sheets(run)] if sheets)]
        return [path for drawing in drawings for path in save(drawing, folder)]


def draw(run: Run) -> list[Drawing]:
    """Every figure but the images, in the order of the report; call it inside `style()`."""
    drawings = [matrix_figure(run), curves_figure(run)]
    if len(run.tasks) > 1:
        drawings.append(forgetting_figure(run))
    if _has_calibration(run) and run.calibration is not None:
        drawings.append(calibration_figure(run.calibration))
    if run.boundaries is not None:
        drawings.append(boundary_figure(run.boundaries))
    if run.steps is not None:
        drawings.append(terms_figure(run, run.steps))
    if _has_time(run):
        drawings.append(time_figure(run))
    return drawings


def left_out(run: Run) -> list[str]:
    """What the report of this run does not show, with the reason."""
    sheets = bool(run.points) and bool(contact_sheets(run))
    checks = (
        (len(run.tasks) > 1, "Forgetting by task: there is one task only."),
        (_has_calibration(run), "Calibration: the run recorded no class probabilities."),
        (bool(run.points), "Inducing images: the run kept no inducing points."),
        (sheets or not run.points, "Inducing images: the inputs kept are not images."),
        (run.boundaries is not None, "Task switches: the learner was told where tasks begin."),
        (run.steps is not None, "Training terms: the run has no step log."),
        (_has_time(run), "Time: the run recorded none."),
        (bool(run.config), "Options: the run recorded none."),
        (bool(run.environment), "Environment: the run recorded none."),
        (bool(run.command), "Command: the run recorded none."),
    )
    return [reason for present, reason in checks if not present]


def _has_calibration(run: Run) -> bool:
    return run.calibration is not None and bool(run.calibration.count.sum() > 0)


def _has_time(run: Run) -> bool:
    return sum(value for _, value in time_parts(run)) > 0
