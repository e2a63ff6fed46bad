"""What a launcher offers, whatever is behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol


class Call(NamedTuple):
    """One launch in the caller's frame; its fields are those of ``gemmsmith_gemm``, in order."""

    m: int
    n: int
    k: int
    batch: int
    a: int
    """Address of A; b, c, bias and d likewise, 0 for none."""
    b: int
    c: int
    bias: int
    d: int
    a_scale: int
    """Address of the scales of rows (f32); b_scale of columns, 0 for none."""
    b_scale: int
    a_zero: int
    """Address of the zero points of A's rows (int32); b_sum of B's negative column sums."""
    b_sum: int
    lda: int
    """Elements between neighbouring rows (row-major) or columns of A; ldb, ldc, ldd likewise."""
    ldb: int
    ldc: int
    ldd: int
    a_batch: int
    """Elements between neighbouring matrices of the batch; b_batch, c_batch, d_batch likewise."""
    b_batch: int
    c_batch: int
    d_batch: int
    alpha: float
    beta: float
    out_scale: float
    activation: int
    """0 none, 1 relu, 2 gelu, 3 gelu_tanh, 4 silu."""
    raster: int
    """0: the kernel's own choice, 1: tiles along m first, 2: along n first."""
    swizzle: int
    """Largest tile group of the raster, in tiles; 0: the kernel's own choice."""
    splits: int
    """Parts of k per tile; 0: the kernel's own choice."""
    device: int
    """CUDA ordinal."""
    sm_count: int
    """Multiprocessors of that device."""


class TableEntry(Protocol):
    """Facts of one kernel that were fixed when it was compiled."""

    @property
    def name(self) -> str:
        """KernelSpec.name."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block, in bytes."""

    @property
    def stages(self) -> int:
        """Buffers of the main loop; 0 for row kernels."""

    @property
    def dependent_launch(self) -> bool:
        """Whether it is launched so that it may start before the kernel ahead has ended."""


class Kernel(TableEntry, Protocol):
    """A loaded kernel. A status of 0 is success; :meth:`explain` words the others."""

    def can_run(self, call: Call) -> int:
        """Return the status that CUTLASS gives to sizes, strides and alignment of ``call``."""

    def workspace_bytes(self, call: Call) -> tuple[int, int]:
        """Return status and the bytes of device memory that ``call`` needs as workspace."""

    def launch(self, call: Call, workspace: int, stream: int) -> int:
        """Queue the kernel on ``stream`` (a cudaStream_t) and return the status."""

    def blocks_per_sm(self) -> tuple[int, int]:
        """Return status and how many blocks one multiprocessor of the current device holds."""

    def explain(self, status: int) -> str:
        """Return ``status`` in words."""


class RowCall(NamedTuple):
    """One launch of a row kernel; its fields are those of ``gemmsmith_rows``, in order."""

    rows: int
    columns: int
    """Columns of the result, before padding."""
    padded: int
    """Columns that are written; int8 results have zeros past ``columns``."""
    x: int
    """Address of the input; residual, weight, sum, out and scale likewise, 0 for none."""
    residual: int
    weight: int
    sum: int
    out: int
    scale: int
    x_stride: int
    """Elements between neighbouring rows of x; the other strides likewise."""
    residual_stride: int
    sum_stride: int
    out_stride: int
    eps: float
    activation: int
    """Index in :data:`gemmsmith.rowspec.GATE_KINDS`."""
    interleaved: int
    """0: all gates, then all factors; 1: 8 gates, 8 factors, 8 gates and so on."""


class RopeCall(NamedTuple):
    """One launch of a rotary kernel; its fields are those of ``gemmsmith_rope``, in order."""

    batch: int
    """Sequences; ``length`` the tokens of each."""
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    """Elements of a head."""
    pairs: int
    """Pairs of them that are turned."""
    q: int
    """Address of the queries; the other tensors likewise, 0 for none."""
    k: int
    v: int
    k_cache: int
    v_cache: int
    positions: int
    slots: int
    frequencies: int
    table: int
    q_batch: int
    """Elements between neighbouring sequences of q; the other strides likewise."""
    q_token: int
    q_head: int
    k_batch: int
    k_token: int
    k_head: int
    v_batch: int
    v_token: int
    v_head: int
    k_page: int
    k_slot: int
    k_cache_head: int
    v_page: int
    v_slot: int
    v_cache_head: int
    positions_batch: int
    positions_token: int
    slots_batch: int
    slots_token: int
    table_row: int
    columns: int
    """Pages of a sequence in the table."""
    pages: int
    """Of the cache: sequences, where there is no table; ``page_size`` their capacity then."""
    page_size: int
    factor: float
    """Of cosine and sine."""
    interleaved: int
    """0: the partner of i is i + pairs; 1: elements 2 i and 2 i + 1 are partners."""
    wide_positions: int
    """1: int64, 0: int32; slots likewise."""
    wide_slots: int
    wide_frequencies: int
    """1: f64, 0: f32."""


class RowKernel(TableEntry, Protocol):
    """A loaded row kernel. A status of 0 is success; :meth:`explain` words the others.

    It takes the call of its operation: ``rope`` another one than the rest.
    """

    def launch(self, call: RowCall | RopeCall, stream: int) -> int:
        """Queue the kernel on ``stream`` (a cudaStream_t) and return the status."""

    def explain(self, status: int) -> str:
        """Return ``status`` in words."""


class AttentionCall(NamedTuple):
    """One launch of an attention kernel; its fields are those of ``gemmsmith_attention``, in order.

    Addresses are 0 and sizes of what is not there too.
    """

    q: int
    k: int
    v: int
    out: int
    lengths: int
    cu_q: int
    cu_k: int
    block_table: int
    batch: int
    queries: int
    """Queries of the longest sequence; keys likewise."""
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    tokens_q: int
    """Rows of q in all where sequences are packed, else 0; tokens_k of k."""
    tokens_k: int
    q_batch: int
    """Elements between neighbouring sequences of q, q_row tokens, q_head heads; others likewise."""
    q_row: int
    q_head: int
    k_batch: int
    k_row: int
    k_head: int
    v_batch: int
    v_row: int
    v_head: int
    out_batch: int
    out_row: int
    out_head: int
    pages: int
    page_size: int
    table_stride: int
    scale: float
    softcap: float
    """0 for none."""
    causal: int
    window: int
    """0 for none."""
    splits: int
    """Blocks that share the keys of a head; 0: the kernel's own choice."""
    device: int
    sm_count: int
    counters: int
    """Address of zeros that are zeros again after the kernel."""
    new_k: int = 0
    """Address of the key that each sequence gets; new_v of its value. 0 for none."""
    new_v: int = 0
    frequencies: int = 0
    """Address of the inverse frequencies of RoPE, which q and the new key are turned by."""
    new_k_batch: int = 0
    new_k_head: int = 0
    new_v_batch: int = 0
    new_v_head: int = 0
    pairs: int = 0
    """Frequencies; 0: nothing is turned."""
    rope_factor: float = 1.0
    """Of cosine and sine."""
    interleaved: int = 0
    """1: pairs are neighbours; 0: halves."""
    wide_frequencies: int = 0
    """1: frequencies are f64; 0: f32."""


class AttentionKernel(TableEntry, Protocol):
    """A loaded attention kernel. A status of 0 is success; :meth:`explain` words the others."""

    def can_run(self, call: AttentionCall) -> int:
        """Return the status that the kernel gives to sizes, strides and alignment of ``call``."""

    def needs(self, call: AttentionCall) -> tuple[int, int, int]:
        """Return status, the bytes of workspace and how many counters (uint32) ``call`` needs."""

    def launch(self, call: AttentionCall, workspace: int, stream: int) -> int:
        """Queue the kernel on ``stream`` (a cudaStream_t) and return the status."""

    def explain(self, status: int) -> str:
        """Return ``status`` in words."""


class Host(NamedTuple):
    """What a table of settled calls asks of the tensor library, which a launcher does not know."""

    exchange: object
    """DLPack's C exchange interface to its tensors, a capsule; None where it has none."""
    tensor: type
    """Its tensors; ``parameter`` the other type whose memory alone says what it holds."""
    parameter: type
    watchers: tuple[Callable[[], object], ...]
    """Each is true where something else has to see every call: a tracer, a mode, a transform."""
    grad_enabled: Callable[[], bool]
    """Whether derivatives of what requires them would be recorded."""
    current_device: Callable[[], int]
    raw_stream: Callable[[int], int]
    """The current stream of a device."""
    allocate: Callable[..., Any]
    """Returns a tensor on the current device, of that shape, strides and type."""
    written: Callable[[tuple[Any]], object]
    """Is told of the tensor of a caller's that a kernel writes."""
    byte: object
    """The type of workspaces."""
    refuse: Callable[[Any, int], object]
    """Raises for a launch, ``ready``, that ended with a status other than 0."""
    in_torch: Callable[..., Any]
    """Computes a call that has no kernel; takes its ``output`` and its arguments."""
    last: list[Any]
    """Its one item becomes the record of what ran last."""


TRANSPOSED = 1
"""``flags`` of a call: b is given as (N, K), as layers hold their weights."""
CHECKED = 2
"""``flags`` of a call: it comes from below the dispatcher, which has seen to all but the kernel."""

Output = tuple[tuple[int, ...], tuple[int, ...], object]
"""Shape, strides and type of a result."""


class Settled(Protocol):
    """Calls that were checked and carried out before, by what their arguments are.

    A key holds all that the checks of a call look at: sizes, strides, types, alignment and devices
    of the tensors, the words, whether factors are whole or 0, and whether the output is an operand.
    So what is found needs no check, and what would be refused is never found.

    The arguments of a call are those of :class:`gemmsmith.arguments.Arguments`, then ``out`` and
    ``flags``, by position.
    """

    @property
    def launch(self) -> Callable[..., Any]:
        """Function that returns the result of a settled call, None where nothing was done.

        That is so too where a watcher is true or a derivative is wanted, unless CHECKED; and where
        the device is not the current one.

        Raises:
            LaunchError: where CUDA refuses.
        """

    def find(self, *arguments: Any) -> Any:
        """Return the record of what a call runs; None where it is not settled."""

    def settle(
        self,
        arguments: tuple[Any, ...],
        kernel: Kernel | None,
        call: Call | None,
        workspace: int,
        record: Any,
        ready: Any,
        output: Output,
    ) -> None:
        """Keep what calls like this one run: ``kernel``, or torch where that is None.

        ``output`` is what is allocated where no output is given.
        """

    def clear(self) -> None:
        """Forget all calls."""

    def __len__(self) -> int:
        """Return how many calls are settled."""


class Launcher(Protocol):
    """Loads kernel libraries."""

    def load(self, path: str) -> Sequence[Kernel]:
        """Return the kernels of the library at ``path``.

        Raises:
            OSError, RuntimeError: where it cannot be loaded or is none.
        """

    def load_rows(self, path: str) -> Sequence[RowKernel]:
        """Return the row kernels of the library at ``path``.

        Raises:
            OSError, RuntimeError: where it cannot be loaded or has none.
        """

    def load_attention(self, path: str) -> Sequence[AttentionKernel]:
        """Return the attention kernels of the library at ``path``.

        Raises:
            OSError, RuntimeError: where it cannot be loaded or has none.
        """

    def settled(self, host: Host) -> Settled | None:
        """Return an empty table of settled calls; None where one in Python is as good.

        ``host.exchange`` must be given.
        """
