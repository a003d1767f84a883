"""A Ray cluster of three nodes on this machine, in a process of its own: tests/test_ray.py tells it what to kill.

The GPU of a worker is one that Ray counts and nothing uses. Prints the address of the cluster; then `kill` on standard
input kills a worker node, and the end of input ends all.
"""

import sys

from ray.cluster_utils import Cluster

QUICK = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 500}
SMALL = {"object_store_memory": 80 << 20}

if __name__ == "__main__":
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK, **SMALL}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    workers = [cluster.add_node(num_cpus=1, num_gpus=1, **SMALL) for _ in range(2)]
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(workers.pop(), allow_graceful=False)
            sys.stdout.write("killed\n")
            sys.stdout.flush()
    cluster.shutdown()
