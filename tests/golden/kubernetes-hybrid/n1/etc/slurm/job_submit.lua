-- Makes every job ask each of its nodes for the CPUs and memory that it may take there, as k8scpu and k8smemory.
-- What Kubernetes holds of a node is cut from these, so that Slurm does not give it to a job, too.

-- MiB for each CPU of a job that does not say what memory it wants.
local MEMORY_PER_CPU = 250

local function number(value, default)
    if value == nil or value == 0 or value == slurm.NO_VAL16 or value == slurm.NO_VAL then
        return default
    end
    return value
end

local function refuse(message)
    slurm.log_user("%s", message)
    return slurm.ERROR
end

-- The most CPUs that a job may get on one node: tasks may be dealt out unevenly, but every node has one.
local function cpus_of_a_node(job)
    local others = number(job.min_nodes, 1) - 1
    local tasks = number(job.ntasks_per_node, number(job.num_tasks, others + 1) - others)
    local of_tasks = tasks * number(job.cpus_per_task, 1)
    return math.max(of_tasks, number(job.min_cpus, 1) - others, number(job.pn_min_cpus, 1))
end

-- What a job asks of each node, without what its user may have said of the ledger.
local function with_ledger(asked, cpus, memory)
    local kept = {}
    for one in string.gmatch(asked or "", "[^,]+") do
        if not string.find(one, "k8scpu", 1, true) and not string.find(one, "k8smemory", 1, true) then
            table.insert(kept, one)
        end
    end
    table.insert(kept, string.format("gres/k8scpu:%d", cpus))
    table.insert(kept, string.format("gres/k8smemory:%d", memory))
    return table.concat(kept, ",")
end

function slurm_job_submit(job, partitions, uid)
    if job.shared == 0 then
        return refuse("nodes are shared with Kubernetes: ask for CPUs and memory, not --exclusive")
    end
    if job.cpus_per_tres or job.mem_per_tres then
        return refuse("nodes are shared with Kubernetes: ask for CPUs and memory of each task, not of each GPU")
    end
    local cpus = cpus_of_a_node(job)
    local memory = job.min_mem_per_node
    if memory == nil then
        job.min_mem_per_cpu = job.min_mem_per_cpu or MEMORY_PER_CPU
        memory = job.min_mem_per_cpu * cpus
    end
    if memory == 0 then
        return refuse("nodes are shared with Kubernetes: ask for a size of memory, not for all")
    end
    job.tres_per_node = with_ledger(job.tres_per_node, cpus, memory)
    return slurm.SUCCESS
end

-- A job that has asked keeps to it: who wants another size submits again.
function slurm_job_modify(change, job, partitions, uid)
    local sizes = {"min_nodes", "num_tasks", "ntasks_per_node", "cpus_per_task", "min_cpus", "pn_min_cpus"}
    local resized = change.min_mem_per_node or change.min_mem_per_cpu or change.tres_per_node or change.shared == 0
    for _, size in ipairs(sizes) do
        resized = resized or number(change[size])
    end
    if uid ~= 0 and resized then
        return refuse("nodes are shared with Kubernetes: a job keeps its size; submit another one")
    end
    return slurm.SUCCESS
end

slurm.log_info("every job asks for k8scpu and k8smemory")
return slurm.SUCCESS
