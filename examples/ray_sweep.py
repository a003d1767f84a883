"""A sweep on Ray: two methods, each with two learning rates, as jobs on a cluster; here one that this machine starts.

With the address of a cluster as an argument, or `auto`, the jobs run there.
"""

import sys
from pathlib import Path

from frcl.adapters.ray import on_ray
from frcl.experiment.results import Result
from frcl.experiment.sweep import carried_out, plan, read_plan, write_plan

if __name__ == "__main__":
    folder = Path("ray_sweep")
    short = [{"learner": {"steps": 60}, "network": {"widths": [32]}, "stream": {"tasks": 2}, "seeds": [0, 1]}]
    if not folder.exists():  # else it goes on with what is there
        write_plan(folder, plan("split-digits", ["frcl", "ewc"], lambda _: short, ["lr=[1e-3,1e-2]"]))
    address = sys.argv[1] if len(sys.argv) > 1 else "local"
    for job, result in carried_out(read_plan(folder), folder, on_ray(address)):
        if isinstance(result, Result):
            print(f"{job}: {100 * result.accuracy[:, -1].mean():.1f}% correct")
        else:
            print(f"{job} failed: {result}")
