"""Share of the GPUs' peak that a step makes use of: MFU, and HFU, which counts what is computed again."""

from convoy.model.counts import attention_flops_per_token, flops_per_token, forward_flops_per_token
from convoy.planner.step.work import Kernels, work
from convoy.planner.workload import Workload


def mfu(job: Workload, tokens_per_second: float, peak: float) -> float:
    """tokens_per_second: of one GPU. peak: operations/s. As cards have it: 6 N + 12 L d S operations a token (PaLM,
    Chowdhery et al. 2022, appendix B)."""
    return tokens_per_second * flops_per_token(job.model, job.sequence_length) / peak


def hfu(job: Workload, tokens_per_second: float, peak: float) -> float:
    """The same, with the share of the blocks' forward that backward computes again. The scores that fused attention
    makes again within its kernel are not in it."""
    model, again = job.model, work(job, Kernels()).again
    attention = attention_flops_per_token(model, job.sequence_length)
    head = 2.0 * model.vocab_size * model.d_model
    products = forward_flops_per_token(model, job.sequence_length) - attention - head
    repeated = again.matmul * products + again.attention * attention
    return tokens_per_second * (flops_per_token(model, job.sequence_length) + repeated) / peak
