"""How a model is distributed over GPUs: each layout returns a function that trains one step and returns a loss on the
GPU."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 11  # eager steps before a capture with DDP in it (PyTorch, "CUDA semantics", "Usage with DistributedDataParallel")


class Block(nn.Module):
    """Two matrix products with an activation in between."""

    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, inputs):
        return inputs + self.down(torch.relu(self.up(inputs)))


def blocks(options, count=None):
    count = options.layers // 2 if count is None else count
    return nn.Sequential(*(Block(options.width) for _ in range(count)))


def network(options):
    """Blocks and a head: few real models have identical layers only."""
    return blocks(options).append(nn.Linear(options.width, options.width // 4))


def rows(options, device, share=1):
    return torch.randn(options.rows // share, options.width, device=device)


def trainer(model, optimizer, inputs, micro_batches=1):
    """Forward, backward, optimizer; gradients are reduced at the last micro-batch."""

    def step():
        for index in range(micro_batches):
            is_last = index == micro_batches - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = model(inputs).square().mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def ddp(options, device):
    model = DistributedDataParallel(network(options).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters())
    share = options.micro_batches
    return trainer(model, optimizer, rows(options, device, share), options.micro_batches)


def accumulate(options, device):
    """Sixteen micro-batches per step."""
    options.micro_batches = 16
    half_the_layers(options)
    return ddp(options, device)


def half_the_layers(options):
    """The same products in half as many kernels: otherwise a host with few CPUs is slower than its GPUs."""
    options.layers //= 2
    options.rows *= 2


def sharded(options, device, **how):
    model = network(options).to(device)
    for block in model[:-1]:
        fully_shard(block, **how)
    fully_shard(model, **how)
    return trainer(model, torch.optim.AdamW(model.parameters()), rows(options, device))


def fsdp(options, device):
    return sharded(options, device)


def fsdp_keep(options, device):
    """Parameters stay unsharded between forward and backward."""
    return sharded(options, device, reshard_after_forward=False)


def offload(options, device):
    """Parameters, gradients and optimizer are on the host. Narrow and long: the same products, fewer parameters."""
    narrower = 8
    options.width //= narrower
    options.rows *= narrower * narrower
    model = blocks(options)
    for block in model:
        fully_shard(block, offload_policy=CPUOffloadPolicy())
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    return trainer(model, torch.optim.AdamW(model.parameters()), rows(options, device))


def tensor(options, device):
    """Tensor parallel within pairs of ranks, sharded data parallel between them."""
    mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = blocks(options).to(device)
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return trainer(model, torch.optim.AdamW(model.parameters()), rows(options, device))


def pipeline(options, device):
    """Two stages, alternating forward and backward; DDP between the replicas of a stage."""
    half_the_layers(options)
    options.rows *= 2  # the schedule has host work at each micro-batch, too
    mesh = init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
    stage_index, micro_batches = mesh.get_local_rank("pp"), max(options.micro_batches, 8)
    part = blocks(options, options.layers // 4).to(device)
    part = DistributedDataParallel(part, device_ids=[device.index], process_group=mesh.get_group("dp"))
    # Shapes are given: otherwise stages exchange objects whose lengths a GPU has to compute.
    shape = rows(options, device, micro_batches)
    given, made = shape.clone().requires_grad_(stage_index > 0), shape.clone().requires_grad_()
    stage = PipelineStage(part, stage_index, 2, device, input_args=given, output_args=made, group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=lambda outputs, target: (outputs - target).square().mean())
    optimizer = torch.optim.AdamW(part.parameters())
    # An embedding before the first block would need this gradient; without it the first stage has a fifth less work.
    inputs, target = rows(options, device).requires_grad_(), rows(options, device)

    def step():
        losses = []
        if stage_index == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=target, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return losses[-1].detach() if losses else None

    return step


def graph(options, device):
    """Forward, backward and optimizer of DDP in one CUDA graph."""
    model_part = blocks(options).to(device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        model = DistributedDataParallel(model_part, device_ids=[device.index])
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
        step = trainer(model, optimizer, rows(options, device))
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured):
            loss = step()
        print("captured", flush=True)
    except RuntimeError as error:
        print("CAPTURE FAILED: %s" % str(error).splitlines()[0], flush=True)
        return step

    def replay():
        captured.replay()
        return loss

    return replay


def callables(options, device):
    """Each block as a pair of CUDA graphs, with make_graphed_callables; DDP around them."""
    model = blocks(options).to(device)
    sample = (rows(options, device).requires_grad_(),)
    try:
        torch.cuda.make_graphed_callables(tuple(model), (sample,) * len(model))
        print("captured", flush=True)
    except RuntimeError as error:
        print("CAPTURE FAILED: %s" % str(error).splitlines()[0], flush=True)
    model = DistributedDataParallel(model, device_ids=[device.index])
    return trainer(model, torch.optim.AdamW(model.parameters()), rows(options, device).requires_grad_())


LAYOUTS = {
    "ddp": ddp,
    "accumulate": accumulate,
    "fsdp": fsdp,
    "fsdp-keep": fsdp_keep,
    "offload": offload,
    "tensor": tensor,
    "pipeline": pipeline,
    "graph": graph,
    "callables": callables,
}
