"""
How an engine would be started to serve a model: GPU count and parallelism by the fit calculator, in the engine's own arguments.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from controlplane.calculating.answers import Answer, Precision, Source, Told
from controlplane.calculating.errors import EngineArchived, refused
from controlplane.calculating.facts import Catalog, KnownModel, known_models
from controlplane.calculating.inference_fit import InferenceFitAsk, InferenceFitResult, inference_fit, usable_bytes
from controlplane.kit.errors import FieldError

Engine = Literal["vllm", "sglang", "tensorrt-llm", "triton", "tgi"]
ModelPath = Annotated[str, StringConstraints(min_length=1, max_length=400, pattern=r"^[A-Za-z0-9_./][A-Za-z0-9_./:@-]*$")]
SOURCES: Mapping[Engine, Source] = {
    "vllm": Source(title="vLLM, vllm serve", url="https://docs.vllm.ai/en/latest/cli/serve.html", section="arguments"),
    "sglang": Source(
        title="SGLang, Server Arguments", url="https://docs.sglang.io/advanced_features/server_arguments.html", section="arguments"
    ),
    "tensorrt-llm": Source(
        title="TensorRT-LLM, trtllm-serve",
        url="https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html",
        section="options",
    ),
    "triton": Source(
        title="Triton Inference Server, vLLM backend",
        url="https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/vllm_backend/README.html",
        section="model repository",
    ),
}
DTYPES: Mapping[Precision, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
CACHES = frozenset({"bf16", "fp16", "fp8"})


class EngineAsk(InferenceFitAsk):
    """
    A model to be served, and the engine.
    """

    engine: Engine = Field(description="The engine; `tgi` is refused: it is archived.", examples=["vllm"])
    data_parallel: int = Field(default=1, ge=1, le=1024, description="Copies of the model.", examples=[1])
    model_path: ModelPath | None = Field(
        default=None,
        description="Repository or folder of the weights; null: where the model's are published.",
        examples=["meta-llama/Llama-3.1-70B-Instruct"],
    )


class EngineFile(Told):
    """
    A file that the engine reads.
    """

    path: str = Field(
        description="Where it belongs, in the engine's working folder.", examples=["model_repository/model/1/model.json"]
    )
    content: str = Field(description="What is in it.", examples=["{}"])


class EngineResult(Told):
    """
    How the engine would be started.
    """

    fit: InferenceFitResult = Field(description="GPUs and parallelism of one copy, with the bytes behind them.")
    gpus: int | None = Field(description="GPUs of all copies; null when it does not fit.", examples=[4])
    command: list[str] = Field(description="Program and arguments; empty when it does not fit.", examples=[["vllm", "serve"]])
    files: list[EngineFile] = Field(description="Files that the command reads.")
    notes: list[str] = Field(description="What whoever starts it has to see to.", examples=[[]])


class EngineAnswer(Answer):
    """
    An engine proposal.
    """

    result: EngineResult = Field(description="How the engine would be started.")


def propose_engine(ask: EngineAsk, catalog: Catalog) -> EngineAnswer:
    """
    Arguments with which the engine serves the model on the fewest GPUs. Raises EngineArchived, CannotCalculate, UnknownFacts.
    """
    if ask.engine == "tgi":
        words = "Text Generation Inference is archived by its makers: take vllm, sglang, tensorrt-llm or triton."
        raise EngineArchived(words, errors=[FieldError("body.engine", "engine_archived", words)])
    if ask.kv_precision not in CACHES:
        raise refused("kv_precision", "These engines keep the cache in bf16, fp16 or fp8.")
    path = _path(ask)
    fitted = inference_fit(ask, catalog)
    fit = fitted.result
    command, files = ([], []) if not fit.fits else ENGINES[ask.engine](ask, fit, path, _static_share(ask, fitted))
    return EngineAnswer(
        calculator="engine",
        result=EngineResult(
            fit=fit,
            gpus=None if fit.gpus is None else fit.gpus * ask.data_parallel,
            command=command,
            files=files,
            notes=_notes(ask, fit) if fit.fits else [],
        ),
        formulas=[*fitted.formulas, "gpus = data_parallel * tensor_parallel * pipeline_parallel"],
        inputs=fitted.inputs | {"model_path": path},
        assumptions=fitted.assumptions,
        sources=[*fitted.sources, SOURCES[ask.engine]],
        unknown=fitted.unknown,
    )


def _path(ask: EngineAsk) -> str:
    known = _known(ask)
    path = ask.model_path or (known.repository if known else "")
    if not path:
        raise refused("model_path", "Nothing tells where the weights are: give their repository or folder in `model_path`.")
    return path


def _known(ask: EngineAsk) -> KnownModel | None:
    return known_models().get(ask.model or "")


def _quantized(ask: EngineAsk) -> bool:
    """
    Whether the engine itself has to turn the published weights into fp8.
    """
    known = _known(ask)
    return ask.weight_precision == "fp8" and ask.model_path is None and known is not None and known.stored_as != "fp8"


def _static_share(ask: EngineAsk, fitted: Answer) -> float:
    """
    Share of a GPU's memory for weights and cache alone, rounded down to thousandths.
    """
    memory: int | None = (fitted.inputs["gpu"] or {}).get("memory_bytes")
    return 0.0 if not memory else max(0, usable_bytes(ask, memory)) * 1000 // memory / 1000


Rendered = tuple[list[str], list[EngineFile]]


def _vllm(ask: EngineAsk, fit: InferenceFitResult, path: str, share: float) -> Rendered:
    del share
    command = [
        "vllm",
        "serve",
        path,
        "--tensor-parallel-size",
        str(fit.tensor_parallel),
        "--pipeline-parallel-size",
        str(fit.pipeline_parallel),
    ]
    command += ["--max-model-len", str(fit.context_tokens), "--max-num-seqs", str(ask.sequences)]
    command += ["--gpu-memory-utilization", str(ask.memory_utilization)]
    if ask.data_parallel > 1:
        command += ["--data-parallel-size", str(ask.data_parallel)]
    command += _precision(ask, "--kv-cache-dtype", "fp8")
    if (fit.nodes or 1) > 1:
        command += ["--distributed-executor-backend", "ray"]
    return command, []


def _sglang(ask: EngineAsk, fit: InferenceFitResult, path: str, share: float) -> Rendered:
    command = ["python3", "-m", "sglang.launch_server", "--model-path", path]
    command += ["--tp-size", str(fit.tensor_parallel), "--pp-size", str(fit.pipeline_parallel)]
    command += ["--context-length", str(fit.context_tokens), "--max-running-requests", str(ask.sequences)]
    command += ["--mem-fraction-static", str(share)]
    if ask.data_parallel > 1:
        command += ["--dp-size", str(ask.data_parallel)]
    command += _precision(ask, "--kv-cache-dtype", "fp8_e4m3")
    if (fit.nodes or 1) > 1:
        command += ["--nnodes", str(fit.nodes)]
    return command, []


def _precision(ask: EngineAsk, cache_option: str, cache_word: str) -> list[str]:
    dtype = DTYPES.get(ask.weight_precision)
    options = ["--dtype", dtype] if dtype else ["--quantization", "fp8"] if _quantized(ask) else []
    return [*options, cache_option, cache_word] if ask.kv_precision == "fp8" else options


def _tensorrt_llm(ask: EngineAsk, fit: InferenceFitResult, path: str, share: float) -> Rendered:
    del share
    command = ["trtllm-serve", path, "--tp_size", str(fit.tensor_parallel), "--pp_size", str(fit.pipeline_parallel)]
    command += ["--max_seq_len", str(fit.context_tokens), "--max_batch_size", str(ask.sequences)]
    command += ["--kv_cache_free_gpu_memory_fraction", str(ask.memory_utilization)]
    if ask.kv_precision != "fp8":
        return command, []
    return [*command, "--config", "engine.yaml"], [EngineFile(path="engine.yaml", content="kv_cache_config:\n  dtype: fp8\n")]


def _triton(ask: EngineAsk, fit: InferenceFitResult, path: str, share: float) -> Rendered:
    del share
    engine = {
        "model": path,
        "tensor_parallel_size": fit.tensor_parallel,
        "pipeline_parallel_size": fit.pipeline_parallel,
        "max_model_len": fit.context_tokens,
        "max_num_seqs": ask.sequences,
        "gpu_memory_utilization": ask.memory_utilization,
        **({"dtype": DTYPES[ask.weight_precision]} if ask.weight_precision in DTYPES else {}),
        **({"quantization": "fp8"} if _quantized(ask) else {}),
        **({"kv_cache_dtype": "fp8"} if ask.kv_precision == "fp8" else {}),
    }
    files = [
        EngineFile(path="model_repository/model/1/model.json", content=json.dumps(engine, indent=2) + "\n"),
        EngineFile(
            path="model_repository/model/config.pbtxt", content='backend: "vllm"\ninstance_group [{ count: 1, kind: KIND_MODEL }]\n'
        ),
    ]
    return ["tritonserver", "--model-repository", "model_repository"], files


ENGINES: Mapping[Engine, Callable[[EngineAsk, InferenceFitResult, str, float], Rendered]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt_llm,
    "triton": _triton,
}


def _notes(ask: EngineAsk, fit: InferenceFitResult) -> list[str]:
    told = []
    if (fit.nodes or 1) > 1:
        told.append(
            "One copy spans nodes: start the engine's runtime on each of them, with the node's rank and the address of the first."
        )
    if ask.data_parallel > 1 and ask.engine in {"tensorrt-llm", "triton"}:
        told.append(
            f"{ask.data_parallel} copies are {ask.data_parallel} servers behind one address; the command starts one of them."
        )
    if ask.weight_precision not in DTYPES and not _quantized(ask) and not _stored(ask):
        told.append(
            f"The weights must be stored as {ask.weight_precision}: the engine reads the quantization from their configuration."
        )
    if ask.weight_precision == "fp8" and ask.engine == "tensorrt-llm" and _quantized(ask):
        told.append(
            "This engine does not quantize weights while it loads them: give a checkpoint that is stored as fp8 in `model_path`."
        )
    return told


def _stored(ask: EngineAsk) -> bool:
    known = _known(ask)
    return ask.model_path is None and known is not None and known.stored_as == ask.weight_precision
