"""Writes libcublas and libcublasLt: every routine is a kernel that takes its time.

Values are not made here but by libvalues, for the whole operator. What is written is
what the libraries of the installed torch ask for, with the signatures of the installed
headers; a routine that the tables below do not know ends the build, by its name.

    python cublas.py TORCH HEADERS FOLDER   # writes FOLDER/cublas.cpp and cublaslt.cpp
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

_HEADERS: Final = {"cublas": "cublas_api.h", "cublasLt": "cublasLt.h"}

# Operations of a routine in the names of its own arguments, by what follows the letter
# of its type: a product counts each addition and each multiplication.
_OPERATIONS: Final = {
    "gemm(Batched|StridedBatched|Ex)?": "2. * m * n * k",
    "Gemm(StridedBatched)?Ex": "2. * m * n * k",
    "gemv": "2. * m * n",
    "ger[cu]?": "2. * m * n",
    "(he|sy)mv": "2. * n * n",
    "(he|sy)r2?": "2. * n * n",
    "(he|sy)mm": "2. * m * n * (side == CUBLAS_SIDE_LEFT ? m : n)",
    "(he|sy)rk": "1. * n * n * k",
    "(he|sy)r2k": "2. * n * n * k",
    "tr[ms]v": "1. * n * n",
    "trmm": "1. * m * n * (side == CUBLAS_SIDE_LEFT ? m : n)",
    "trsm(Batched)?": "1. * m * n * (side == CUBLAS_SIDE_LEFT ? m : n)",
    "(axpy|copy|swap|s?scal|dscal|rot|srot|drot|rotm|dot[cu]?)": "2. * n",
    "DotEx": "2. * n",
    "(z|c)?(nrm2|asum)": "2. * n",
    "[sdcz]?am(ax|in)": "2. * n",
    "rotm?g": "10.",
    "getrfBatched": "2. / 3 * n * n * n",
    "getrsBatched": "2. * n * n * nrhs",
    "geqrfBatched": "2. * m * n * n",
    "gelsBatched": "2. * m * n * n",
}

# What is not a kernel: state of a handle or of a description.
_BODIES: Final = {
    "cublasCreate_v2": "*handle = new cublasContext{}; return OK;",
    "cublasDestroy_v2": "delete handle; return OK;",
    "cublasSetStream_v2": "handle->stream = streamId; return OK;",
    "cublasSetWorkspace_v2": "return OK;",
    "cublasSetSmCountTarget": "return OK;",
    "cublasGetMathMode": "*mode = handle->math; return OK;",
    "cublasSetMathMode": "handle->math = mode; return OK;",
    "cublasGetPointerMode_v2": "*mode = handle->pointers; return OK;",
    "cublasSetPointerMode_v2": "handle->pointers = mode; return OK;",
    # Nobody calls these: MAGMA would, which libvalues stands in for.
    "cublas[GS]et(Matrix|Vector)Async": "return CUBLAS_STATUS_NOT_SUPPORTED;",
    "cublasLtGetVersion": "return CUBLAS_VERSION;",
    "cublasLtMatmulDescCreate": "*matmulDesc = new cublasLtMatmulDescOpaque_t{};"
    " (*matmulDesc)->data[0] = computeType; return OK;",
    "cublasLtMatmulDescDestroy": "delete matmulDesc; return OK;",
    "cublasLtMatmulDescSetAttribute": "return OK;",
    "cublasLtMatmulPreferenceCreate": "*pref = new cublasLtMatmulPreferenceOpaque_t{};"
    " return OK;",
    "cublasLtMatmulPreferenceDestroy": "delete pref; return OK;",
    "cublasLtMatmulPreferenceSetAttribute": "return OK;",
    "cublasLtMatrixLayoutCreate": "*matLayout = of(new Layout{type, rows, cols, 1});"
    " return OK;",
    "cublasLtMatrixLayoutDestroy": "delete layout_of(matLayout); return OK;",
    "cublasLtMatrixLayoutSetAttribute": "return layout_of(matLayout)->set(attr, buf);",
    "cublasLtMatmulAlgoGetHeuristic": "*returnAlgoCount = requestedAlgoCount > 0;"
    " if (*returnAlgoCount) *heuristicResultsArray = {}; return OK;",
    "cublasLtMatmulAlgoInit": "*algo = {}; return OK;",
    "cublasLtMatmulAlgoCheck": "*result = {}; return OK;",
    "cublasLtMatmulAlgoConfigGetAttribute": "memset(buf, 0, sizeInBytes);"
    " if (sizeWritten) *sizeWritten = sizeInBytes; return OK;",
    "cublasLtMatmulAlgoConfigSetAttribute": "return OK;",
    "cublasLtMatmul": "return multiply(computeDesc, layout_of(Adesc), layout_of(Ddesc),"
    " stream);",
}

_OPENING: Final = """\
#pragma GCC diagnostic ignored "-Wunused-parameter"   /* the signatures are NVIDIA's */
#pragma GCC diagnostic ignored "-Wunused-function"
/* These two headers ask for libcu++, and only names of types are needed. */
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
struct __half;
struct __nv_bfloat16;
#include <{header}>
#include <cstring>
#include "machine.h"
#include "rates.h"

namespace {{

constexpr cublasStatus_t OK = CUBLAS_STATUS_SUCCESS;
constexpr int64_t SHORTEST_NS = 2000;

cublasStatus_t kernel(const char *name, cudaStream_t stream, double operations,
                      rates::Unit unit)
{{
    int64_t takes_ns = std::max(SHORTEST_NS, rates::computing_ns(operations, unit));
    return machine_kernel(name, stream, takes_ns) ? CUBLAS_STATUS_EXECUTION_FAILED : OK;
}}

rates::Unit unit_of(cudaDataType type, bool tensor_cores)
{{
    switch (type) {{
    case CUDA_R_64F:
    case CUDA_C_64F: return rates::FP64;
    case CUDA_R_32F:
    case CUDA_C_32F: return tensor_cores ? rates::TF32 : rates::FP32;
    case CUDA_R_16F:
    case CUDA_R_16BF:
    case CUDA_C_16F: return rates::HALF;
    default: return rates::EIGHT_BITS;
    }}
}}

const char *product_of(cudaDataType type)
{{
    switch (type) {{
    case CUDA_R_64F: return "sm90_xmma_gemm_f64f64_f64f64_f64";
    case CUDA_R_32F: return "sm90_xmma_gemm_f32f32_f32f32_f32";
    case CUDA_R_16F: return "sm90_xmma_gemm_f16f16_f16f32_f32";
    case CUDA_R_16BF: return "sm90_xmma_gemm_bf16bf16_bf16f32_f32";
    case CUDA_R_8I: return "sm90_xmma_gemm_i8i8_i8i32_f32";
    default: return "sm90_xmma_gemm_e4m3e4m3_bf16f32_f32";
    }}
}}

}}  // namespace
"""

_STATE: Final = {
    "cublas": """
struct cublasContext {
    cudaStream_t stream;
    cublasMath_t math;
    cublasPointerMode_t pointers;

    bool tensor_cores() const { return math & CUBLAS_TF32_TENSOR_OP_MATH; }
};
""",
    "cublasLt": """
namespace {

struct Layout {
    cudaDataType type;
    uint64_t rows, columns;
    int32_t batch;

    cublasStatus_t set(cublasLtMatrixLayoutAttribute_t attribute, const void *value)
    {
        if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
            memcpy(&batch, value, sizeof batch);
        return OK;
    }
};
Layout *layout_of(cublasLtMatrixLayout_t handle)
{
    return reinterpret_cast<Layout *>(handle);
}
cublasLtMatrixLayout_t of(Layout *layout)
{
    return reinterpret_cast<cublasLtMatrixLayout_t>(layout);
}

cublasStatus_t multiply(cublasLtMatmulDesc_t description, const Layout *a,
                        const Layout *d, cudaStream_t stream)
{
    double inner = d->rows ? double(a->rows * a->columns) / double(d->rows) : 0;
    double operations = 2. * double(d->rows * d->columns) * inner * d->batch;
    bool tensor_cores = description->data[0] == CUBLAS_COMPUTE_32F_FAST_TF32;
    rates::Unit unit = unit_of(a->type, tensor_cores);
    return kernel(product_of(a->type), stream, operations, unit);
}

}  // namespace
""",
}

_TYPES: Final = {
    "S": "CUDA_R_32F",
    "D": "CUDA_R_64F",
    "C": "CUDA_C_32F",
    "Z": "CUDA_C_64F",
    "I": "CUDA_R_32F",
}


def wanted(torch: Path, library: str) -> list[str]:
    """What torch's libraries ask a library for, each name once."""
    symbols = set()
    for each in sorted((torch / "lib").glob("*.so")):
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", each],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        symbols.update(re.findall(rf"\b(\w+)@+lib{library}\.so", listed))
    return sorted(symbols)


def declaration(header: str, name: str) -> tuple[str, str]:
    """What a routine gives and takes, as the header has it."""
    found = re.search(rf"(\w+)\s+CUBLASWINAPI\s+{name}\s*\(([^;]*)\)\s*;", header)
    if not found:
        raise SystemExit(f"cublas.py: the headers do not declare {name}")
    result, arguments = found.groups()
    return result, " ".join(arguments.split())


def body(name: str, arguments: str) -> str:
    """What a routine does."""
    for pattern, text in _BODIES.items():
        if re.fullmatch(pattern, name):
            return text
    routine = name.removeprefix("cublas").removesuffix("_v2")
    for pattern, operations in _OPERATIONS.items():
        if re.fullmatch(pattern, routine) or re.fullmatch(f"[SDCZI]{pattern}", routine):
            return _kernel(routine, operations, arguments)
    raise SystemExit(f"cublas.py: torch asks for {name}, and no table here knows it")


def _kernel(routine: str, operations: str, arguments: str) -> str:
    for count in ("batchCount", "batchSize"):
        if re.search(rf"\b{count}\b", arguments):
            operations += f" * {count}"
    if "Atype" in arguments:
        tensor_cores = "handle->tensor_cores()"
        if "computeType" in arguments:
            tensor_cores += " || computeType == CUBLAS_COMPUTE_32F_FAST_TF32"
        kind, kernel = "Atype", "product_of(Atype)"
    else:
        tensor_cores = "handle->tensor_cores()"
        kind = _TYPES.get(routine[0], "CUDA_R_32F")
        kernel = f'"sm90_{routine.lower()}_kernel"'
        if routine[0] in "CZ":
            operations += " * 4"
    return (
        f"return kernel({kernel}, handle->stream, {operations},"
        f" unit_of({kind}, {tensor_cores}));"
    )


def source(library: str, torch: Path, headers: Path) -> str:
    """The whole of one library."""
    header = (headers / _HEADERS[library]).read_text()
    header = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    parts = [_OPENING.format(header=_HEADERS[library]), _STATE[library]]
    for name in wanted(torch, library):
        result, arguments = declaration(header, name)
        parts.append(
            'extern "C" __attribute__((visibility("default")))\n'
            f"{result} {name}({arguments})\n{{\n    {body(name, arguments)}\n}}\n"
        )
    return "\n".join(parts)


def main() -> None:
    """Writes both."""
    torch, headers, folder = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for library in _HEADERS:
        text = source(library, torch, headers)
        (folder / f"{library.lower()}.cpp").write_text(text)


if __name__ == "__main__":
    main()
