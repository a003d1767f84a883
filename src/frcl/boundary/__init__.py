"""Noticing by itself that the data changed (Section 3, Appendix E). Usable on any stream of scores."""

from frcl.boundary.detector import BoundaryDetector, Decision
from frcl.boundary.profile import Profile
from frcl.boundary.score import symmetrised_kl, welch
from frcl.boundary.sequential import Change
from frcl.boundary.settings import DetectorSettings

__all__ = ["BoundaryDetector", "Change", "Decision", "DetectorSettings", "Profile", "symmetrised_kl", "welch"]
