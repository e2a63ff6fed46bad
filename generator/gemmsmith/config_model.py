"""The shape of a configuration file, as pydantic models; the JSON schema is made from them."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError

from gemmsmith.arch import ARCHITECTURES, Architecture, Schedule, Store, parse_architecture
from gemmsmith.attn.spec import AttentionSchedule
from gemmsmith.dtypes import DTYPE_WORDS, DType, parse_dtype
from gemmsmith.errors import UnknownArchitectureError
from gemmsmith.spec import Activation, Gate, Layout, Scheduler

WORDS: dict[str, tuple[str, ...]] = {
    "dtype": DTYPE_WORDS,
    "layout": get_args(Layout),
    "schedule": get_args(Schedule),
    "store": get_args(Store),
    "scheduler": get_args(Scheduler),
    "activation": get_args(Activation),
    "gate": get_args(Gate),
}
"""The legal words of each key that takes one."""


def _architecture(value: object) -> Architecture:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("arch_type", "takes an architecture such as sm_90a")
    if str(value).strip().lower() == "auto":
        text = (
            "auto is not for a file: name every architecture that is wanted, and choose"
            " that of the GPU with --arch auto or load(..., arch='auto')"
        )
        raise PydanticCustomError("sentence", "{text}", {"text": text})
    try:
        return parse_architecture(str(value))
    except UnknownArchitectureError as error:
        raise PydanticCustomError("sentence", "{text}", {"text": str(error)}) from None


def _dtype(value: object) -> DType:
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "takes a word")
    try:
        return parse_dtype(value)
    except KeyError:
        raise PydanticCustomError("dtype", "is no element type") from None


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _spread(value: object) -> object:
    return {"a": value} if isinstance(value, str) else value


def _automatic(value: object) -> object:
    return None if value == "auto" else value


def _flat(cluster: tuple[int, ...]) -> tuple[int, ...]:
    if len(cluster) == 3 and cluster[2] != 1:
        text = f"has {cluster[2]} along its third axis; D has rows and columns only: write [m, n]"
        raise PydanticCustomError("sentence", "{text}", {"text": text})
    return cluster


def _two_numbers(value: object, example: str = "tile: [128, 128]") -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(number) is int for number in value)
    if not isinstance(value, list) or not whole or len(value) != 2:
        text = f"{value!r} is not [queries, keys]; write {example}"
        raise PydanticCustomError("sentence", "{text}", {"text": text})
    return tuple(value)


def _warps(value: object) -> tuple[int, ...]:
    return _two_numbers(value, "warps: [1, 4]")


def _one_block_each(value: object) -> object:
    """Refuse two spellings of one architecture, of which the last would win."""
    first: dict[str, str] = {}
    for word in value if isinstance(value, dict) else ():
        try:
            name = parse_architecture(word).name
        except UnknownArchitectureError:
            continue  # told of the key itself
        if name in first:
            text = f"{first[name]} and {word} are both {name}; make them one"
            raise PydanticCustomError("sentence", "{text}", {"text": text})
        first[name] = word
    return value


class _OneOrList:
    """In the JSON schema: a list of the items, or one item as it is."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        items = handler(core)["items"]
        return {"anyOf": [items, {"type": "array", "items": items, "minItems": 1}]}


class _OrWord:
    """In the JSON schema: the mapping, or one word in its place."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(DTYPE_WORDS)}, handler(core)]}


ArchWord = Annotated[
    Architecture,
    PlainValidator(_architecture),
    WithJsonSchema(
        {
            "type": ["string", "number"],
            "examples": [word for row in ARCHITECTURES for word in (row.name, *row.aliases)],
        }
    ),
]
DTypeWord = Annotated[DType, PlainValidator(_dtype), WithJsonSchema({"enum": list(DTYPE_WORDS)})]
Numbers3 = Annotated[tuple[int, ...], Field(min_length=3, max_length=3)]


class _Block(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class DTypes(_Block):
    """Element types of one kernel."""

    a: DTypeWord
    """Element type of A."""
    b: DTypeWord | None = None
    """Element type of B; that of A where not given."""
    acc: DTypeWord | None = None
    """Type that products are summed in; fp32 where not given, int32 for int8."""
    d: DTypeWord | None = None
    """Element type of D, residual and bias; that of A where not given, int32 for int8."""


class EpilogueKeys(_Block):
    """What the kernel can add to the product."""

    bias: bool = True
    """Whether a bias vector (N,) can be added."""
    residual: bool = False
    """Whether beta * C can be added."""
    activation: Activation = "none"
    """Function of product and bias; any: each call chooses."""
    gate: Gate = "none"
    """Function of the gate half: D is function(gate) * up, half as wide (sm_90a)."""
    scaled: bool = False
    """Whether the product can be scaled by row and by column."""
    zero_point: bool = False
    """Whether zero points of A's rows can be taken off (int8)."""


class AlignmentKeys(_Block):
    """Alignment in elements; 16 bytes where not given."""

    a: int | None = None
    """Alignment of A in elements."""
    b: int | None = None
    """Alignment of B in elements."""
    d: int | None = None
    """Alignment of D and of the residual in elements."""


class ArchKeys(_Block):
    """The keys that may differ from one architecture to the next."""

    tile: Annotated[Numbers3, Field(strict=False)] | None = None
    """Tile of one block: rows and columns of D, depth along K."""
    warp: Annotated[Numbers3, Field(strict=False)] | None = None
    """Tile of one warp (sm_70 to sm_89); where not given, the largest of 64x64, 64x32, 32x64 and
    32x32 that divides the tile among 4 or 8 warps, else among others."""
    stages: Annotated[
        int | None,
        BeforeValidator(_automatic),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 2}]}),
    ] = None
    """Buffers of the main loop in shared memory; auto, as where not given: as many as fit on
    sm_90a, as many as fit up to 4 on sm_80 to sm_89, 2 on sm_70 and sm_75."""
    schedule: Schedule | None = None
    """Main loop. Where not given: multistage on sm_70 to sm_89; on sm_90a cooperative where the
    tile's side of 64-row instructions (m, with swap n) is a multiple of 128, else pingpong."""
    store: Store | None = None
    """How the epilogue writes its tile; where not given smem on sm_70 to sm_89, tma on sm_90a."""
    scheduler: Scheduler = "static"
    """How tiles are dealt to blocks."""
    cluster: Annotated[
        tuple[int, ...],
        Field(min_length=2, max_length=3, strict=False),
        AfterValidator(_flat),
    ] = (1, 1)
    """Blocks of one cluster along the rows and columns of D (sm_90a)."""
    split_k: int = 1
    """Blocks of a cluster that share the K loop of a tile and sum it together (sm_90a, lean)."""
    swap: bool = False
    """Compute D^T = B^T A^T (sm_90a)."""
    dependent_launch: bool = False
    """Start before the kernel ahead in the stream has ended, and wait for it before touching
    memory: hides launch and start-up where kernels follow each other (sm_90a)."""
    constant_b: bool = False
    """Read B before the kernel ahead in the stream has ended: for weights that no queued work
    writes (sm_90a, lean with dependent_launch)."""
    epilogue: EpilogueKeys = EpilogueKeys()
    """Whether a bias and a residual can be added; a bias alone where not given."""
    alignment: AlignmentKeys = AlignmentKeys()
    """Alignment of A, B and D in elements; 16 bytes each where not given."""


class KernelKeys(ArchKeys):
    """One kernel: each key replaces the same key of its family as a whole, except per_arch."""

    arch: Annotated[
        tuple[ArchWord, ...],
        BeforeValidator(_listed),
        _OneOrList(),
        Field(min_length=1, strict=False),
    ] = ()
    """Architecture, or a list of them: sm_80, sm_90a, hopper, 9.0 ... With several, what one of
    them cannot have and another can is skipped there, with its reason."""
    dtype: Annotated[
        tuple[Annotated[DTypes, BeforeValidator(_spread), _OrWord()], ...],
        BeforeValidator(_listed),
        _OneOrList(),
        Field(min_length=1, strict=False),
    ] = ()
    """Element types: a word, a list of words (one kernel each), or a mapping a, b, acc, d."""
    layout: Annotated[
        tuple[Layout, ...],
        BeforeValidator(_listed),
        _OneOrList(),
        Field(min_length=1, strict=False),
    ] = ("rcr",)
    """Row-major (r) or column-major (c) for A, B and D, or a list of such words."""
    per_arch: Annotated[dict[ArchWord, ArchKeys], BeforeValidator(_one_block_each)] = {}
    """Keys that replace the others on one architecture: {sm_90a: {cluster: [2, 1]}}. A kernel's
    go before its family's, key by key."""


class FamilyKeys(KernelKeys):
    """Kernels that share most of their keys."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the family, once in a file."""
    kernels: Annotated[tuple[KernelKeys, ...], Field(min_length=1, strict=False)] | None = None
    """The kernels, each with the keys in which it differs; without them: one kernel."""


class AttentionArchKeys(_Block):
    """The keys of attention kernels that may differ from one architecture to the next."""

    tile: Annotated[tuple[int, ...], BeforeValidator(_two_numbers)] | None = None
    """Tile of one block: queries and keys, for example [128, 128]. Of split_kv, queries of all
    heads that share one of k count."""
    stages: Annotated[
        int | None,
        BeforeValidator(_automatic),
        WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}),
    ] = None
    """Buffers for tiles of keys, and as many for values; auto, as where not given: what the kernel
    has of multistage (4 on sm_80 to sm_89, 2 on sm_70 and sm_75), 2 of the others."""
    schedule: AttentionSchedule | None = None
    """pingpong: the warpgroups of a block multiply in turns, and one's softmax runs beside
    another's products; cooperative: each as it comes (both sm_90a); multistage: for many queries
    on Volta to Ada; split_kv: blocks share the keys of a head, for few queries (sm_80 and
    later). Where not given: split_kv with warps, else pingpong on sm_90a; on sm_70 to sm_89
    multistage for tiles of 32 queries and more, else split_kv."""
    warps: Annotated[tuple[int, ...], BeforeValidator(_warps)] | None = None
    """Warps of a split_kv block along queries and along keys, for example [1, 4]."""
    cluster: int = 1
    """Blocks of a split_kv kernel that put results together in shared memory: 1, 2, 4 or 8."""
    constant_cache: bool = False
    """Read keys and values but the newest before the kernel ahead in the stream has ended: for
    caches whose older places no queued work writes (sm_90a, split_kv)."""


class AttentionKeys(AttentionArchKeys):
    """One attention kernel: each key replaces the same key of its family, except per_arch."""

    arch: Annotated[
        tuple[ArchWord, ...],
        BeforeValidator(_listed),
        _OneOrList(),
        Field(min_length=1, strict=False),
    ] = ()
    """Architecture, or a list of them. What one of them cannot have and another can is skipped
    there, with its reason."""
    dtype: Annotated[
        tuple[DTypeWord, ...],
        BeforeValidator(_listed),
        _OneOrList(),
        Field(min_length=1, strict=False),
    ] = ()
    """Element type of q, k, v and the result, or a list of them: bf16, fp16."""
    head_dim: Annotated[
        tuple[int, ...],
        BeforeValidator(_listed),
        _OneOrList(),
        Field(min_length=1, strict=False),
    ] = ()
    """Size of a head, or a list of them: 64, 80, 96, 128, 256. Smaller heads run padded."""
    per_arch: Annotated[dict[ArchWord, AttentionArchKeys], BeforeValidator(_one_block_each)] = {}
    """Keys that replace the others on one architecture: {sm_80: {tile: [64, 64]}}. A kernel's go
    before its family's, key by key."""


class AttentionFamilyKeys(AttentionKeys):
    """Attention kernels that share most of their keys."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the family, once in a file."""
    kernels: Annotated[tuple[AttentionKeys, ...], Field(min_length=1, strict=False)] | None = None
    """The kernels, each with the keys in which it differs; without them: one kernel."""


class FileKeys(_Block):
    """A file of kernel families: of GEMMs, of attention or of both."""

    families: Annotated[tuple[FamilyKeys, ...], Field(min_length=1, strict=False)] = ()
    """The families of GEMMs, one list entry each."""
    attention: Annotated[tuple[AttentionFamilyKeys, ...], Field(min_length=1, strict=False)] = ()
    """The families of attention kernels, one list entry each."""


def schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration file, for completion and checks in editors."""
    made = FileKeys.model_json_schema()
    tidy: dict[str, Any] = _tidy(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
    )
    return tidy


def _tidy(part: Any) -> Any:
    """Drop what an editor should not offer: null, which a file may not hold, and titles."""
    if isinstance(part, list):
        return [_tidy(item) for item in part if item != {"type": "null"}]
    if not isinstance(part, dict):
        return part
    kept = {
        key: _tidy(value)
        for key, value in part.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and not isinstance(value, str | bool))
    }
    if isinstance(text := kept.get("description"), str):
        kept["description"] = " ".join(text.split())
    for choice in ("anyOf", "allOf"):
        if len(kept.get(choice, ())) == 1:
            kept |= kept.pop(choice)[0]
    return kept
