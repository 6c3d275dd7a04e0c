"""Call a function in a separate job, and in each task of an array, as a user of submitit would."""

import submitit


def add(left, right):
    return left + right


executor = submitit.AutoExecutor(folder="logs/%j")
executor.update_parameters(timeout_min=10, cpus_per_task=1, mem_gb=0.2, slurm_array_parallelism=2)
print(executor.submit(add, 1, 2).result())
print([job.result() for job in executor.map_array(add, [1, 2, 3], [10, 20, 30])])
try:
    executor.submit(divmod, 1, 0).result()
except submitit.core.utils.FailedJobError as error:
    print("ZeroDivisionError" in str(error))
