-- Example of a job_submit plugin (JobSubmitPlugins=lua in slurm.conf, this file beside it): what a site wants of all jobs stands
-- here once, and not in users' scripts. It adds what nobody has said, changes nothing that somebody has, and lets every job pass,
-- also when something in here fails: a mistake in this file must not close the cluster.

-- Variables that batch jobs get in these partitions ("*": in all), unless the user has set them. What they mean:
-- docs/config.md; flags and variables of the user's are stronger than both this and /etc/paceline/config.toml.
local defaults = {
   ["*"] = { PACELINE_SLURM_COMMENT = "true" },
   -- gpu = { PACELINE_ON_FAULT = "checkpoint-and-stop", PACELINE_ACT = "true" },
   -- debug = { PACELINE_WATCH = "off" },
}

-- The environment can only be read and written of batch jobs; srun and salloc bring theirs along themselves.
local function add_variables(job)
   for _, partition in ipairs({ job.partition or "", "*" }) do
      for name, value in pairs(defaults[partition] or {}) do
         if job.environment[name] == nil then
            job.environment[name] = value
         end
      end
   end
end

-- Who asks paceline to requeue the job when a node is bad must not be told by Slurm afterwards that it may not be requeued.
-- 65534 (NO_VAL16): neither --requeue nor --no-requeue was given.
local function allow_requeue(job)
   local asked = job.environment["PACELINE_ON_FAULT"]
   if asked ~= nil and asked:find("requeue", 1, true) and job.requeue == 65534 then
      job.requeue = 1
   end
end

function slurm_job_submit(job, partitions, uid)
   if job.script ~= nil and job.script ~= "" then
      for _, rule in ipairs({ add_variables, allow_requeue }) do
         local ok, problem = pcall(rule, job)
         if not ok then
            slurm.log_error("paceline: job of uid %u: %s", uid, tostring(problem))
         end
      end
   end
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end

return slurm.SUCCESS
