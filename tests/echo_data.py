"""Kernel libraries that tell what they were called with, compiled by gcc."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gemmsmith.launcher.abi import abi_version
from gemmsmith.render import include_dirs

ABI_VERSION = abi_version()
ECHO = r"""
#include <inttypes.h>
#include <stdio.h>
#include "gemmsmith/abi.h"
#define I64 " %" PRId64
static char seen[1024];
static int32_t can_run(const gemmsmith_gemm *g) {
  snprintf(seen, sizeof seen,
    I64 I64 I64 I64 " %zu %zu %zu %zu %zu %zu %zu %zu %zu" I64 I64 I64 I64 I64 I64 I64 I64
    " %g %g %g %d %d %d %d %d %d",
    g->m, g->n, g->k, g->batch, (size_t)g->a, (size_t)g->b, (size_t)g->c, (size_t)g->bias,
    (size_t)g->d, (size_t)g->a_scale, (size_t)g->b_scale, (size_t)g->a_zero, (size_t)g->b_sum,
    g->lda, g->ldb, g->ldc, g->ldd, g->a_batch, g->b_batch, g->c_batch, g->d_batch,
    g->alpha, g->beta, g->out_scale, g->activation, g->raster, g->swizzle, g->splits, g->device,
    g->sm_count);
  return 7;
}
static int32_t workspace_bytes(const gemmsmith_gemm *g, uint64_t *bytes) {
  *bytes = 5000000000u + (uint64_t)g->m;
  return 0;
}
static int32_t launch(const gemmsmith_gemm *g, void *workspace, void *stream) {
  snprintf(seen, sizeof seen, "%zu %zu", (size_t)workspace, (size_t)stream);
  return -(int32_t)g->n;
}
static int32_t blocks_per_sm(int32_t *blocks) { *blocks = 3; return 0; }
static const char *explain(int32_t status) { return status ? seen : "fine"; }
static const gemmsmith_kernel table[] = {
  {"first", 128, 1024, 4, 0, can_run, workspace_bytes, launch, blocks_per_sm, explain},
  {"second", 256, 2048, 2, 1, can_run, workspace_bytes, launch, blocks_per_sm, explain},
};
int32_t gemmsmith_abi_version(void) { return VERSION; }
const gemmsmith_kernel *gemmsmith_kernels(int32_t *count) { *count = 2; return table; }
"""
"""A kernel library that tells what it was called with."""
ROW_ECHO = r"""
#include <inttypes.h>
#include <stdio.h>
#include "gemmsmith/abi.h"
static char seen[1024];
static int32_t launch(const gemmsmith_rows *r, void *stream) {
  snprintf(seen, sizeof seen,
    "%" PRId64 " %" PRId64 " %" PRId64 " %zu %zu %zu %zu %zu %zu"
    " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %g %d %d %zu",
    r->rows, r->columns, r->padded, (size_t)r->x, (size_t)r->residual, (size_t)r->weight,
    (size_t)r->sum, (size_t)r->out, (size_t)r->scale, r->x_stride, r->residual_stride,
    r->sum_stride, r->out_stride, r->eps, r->activation, r->interleaved, (size_t)stream);
  return 7;
}
static const char *explain(int32_t status) { return status ? seen : "fine"; }
static const gemmsmith_row_kernel table[] = {
  {"first", 1024, 0, 0, launch, explain}, {"second", 512, 64, 1, launch, explain},
};
int32_t gemmsmith_abi_version(void) { return VERSION; }
const gemmsmith_row_kernel *gemmsmith_row_kernels(int32_t *count) { *count = 2; return table; }
"""
"""The same of row kernels."""


ROPE_ECHO = r"""
#include <inttypes.h>
#include <stdio.h>
#include "gemmsmith/rope_abi.h"
static char seen[2048];
static int32_t launch(const gemmsmith_rope *r, void *stream) {
  const int64_t sizes[] = {r->batch, r->length, r->heads, r->kv_heads, r->head_dim, r->pairs};
  const void *const addresses[] = {r->q, r->k, r->v, r->k_cache, r->v_cache, r->positions, r->slots,
    r->frequencies, r->table};
  const int64_t strides[] = {r->q_batch, r->q_token, r->q_head, r->k_batch, r->k_token, r->k_head,
    r->v_batch, r->v_token, r->v_head, r->k_page, r->k_slot, r->k_cache_head, r->v_page, r->v_slot,
    r->v_cache_head, r->positions_batch, r->positions_token, r->slots_batch, r->slots_token,
    r->table_row, r->columns, r->pages, r->page_size};
  const int32_t flags[] = {r->interleaved, r->wide_positions, r->wide_slots, r->wide_frequencies};
  char *to = seen;
  for (int at = 0; at < 6; ++at) to += sprintf(to, "%" PRId64 " ", sizes[at]);
  for (int at = 0; at < 9; ++at) to += sprintf(to, "%zu ", (size_t)addresses[at]);
  for (int at = 0; at < 23; ++at) to += sprintf(to, "%" PRId64 " ", strides[at]);
  to += sprintf(to, "%g ", r->factor);
  for (int at = 0; at < 4; ++at) to += sprintf(to, "%d ", flags[at]);
  sprintf(to, "%zu", (size_t)stream);
  return 7;
}
static const char *explain(int32_t status) { return status ? seen : "fine"; }
static const gemmsmith_rope_kernel table[] = {
  {"first", 1024, 0, 0, launch, explain}, {"second", 512, 64, 1, launch, explain},
};
int32_t gemmsmith_abi_version(void) { return VERSION; }
const gemmsmith_rope_kernel *gemmsmith_rope_kernels(int32_t *count) { *count = 2; return table; }
"""
"""The same of rotary kernels."""


def echo_library(path: Path, *, version: int = ABI_VERSION, text: str = ECHO) -> Path:
    source = path.with_suffix(".c")
    source.write_text(text)
    includes = [f"-I{folder}" for folder in include_dirs()]
    command = ["gcc", "-shared", "-fPIC", f"-DVERSION={version}", *includes, str(source)]
    subprocess.run([*command, "-o", str(path)], check=True)
    return path
