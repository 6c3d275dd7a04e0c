"""Compute on two workers, each in its own job, as a user of dask-jobqueue would."""

from dask_jobqueue import SLURMCluster
from distributed import Client

if __name__ == "__main__":
    with (
        SLURMCluster(cores=1, memory="300MB", walltime="00:20:00", death_timeout=600) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=600)
        print(sum(client.gather(client.map(lambda number: number**2, range(10)))))
