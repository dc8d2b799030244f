"""Writes and runs ONNX files. Reading one needs onnxruntime and NumPy, not torch."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

if TYPE_CHECKING:
    from torch import nn

SUFFIX = ".onnx"


def write(model: "nn.Module", data_spec: dict[str, Any], metadata: dict[str, Any], path: Path) -> None:
    """Write a model from `image`, uint8 (N, C, H, W), to `probabilities`, float32 (N, classes), for any N."""
    import onnx
    import torch

    side = data_spec["image_size"]
    # With one example the exporter would fix the batch size at one.
    example = torch.zeros(2, data_spec["channels"], side, side, dtype=torch.uint8)
    program = torch.onnx.export(
        model,
        (example,),
        input_names=["image"],
        output_names=["probabilities"],
        dynamo=True,
        dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
        external_data=False,
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    for node in [*proto.graph.node, *(node for function in proto.functions for node in function.node)]:
        # The exporter leaves stack traces with this machine's paths.
        del node.metadata_props[:]
    onnx.helper.set_model_props(
        proto,
        {"data_spec": json.dumps(data_spec, ensure_ascii=False), "metadata": json.dumps(metadata, ensure_ascii=False)},
    )
    onnx.save(proto, path)


class OnnxClassifier:
    """Runs a file that `write` made.

    Raises:
        ValueError: the file is not ONNX or carries no description of its data.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.session = onnxruntime.InferenceSession(path, providers=onnxruntime.get_available_providers())
        except Exception as error:  # onnxruntime's errors have no common class of their own
            raise ValueError(f"onnxruntime cannot load it: {str(error).splitlines()[0]}") from error
        described = self.session.get_modelmeta().custom_metadata_map
        if "data_spec" not in described:
            raise ValueError("it carries no description of its classes and image size")
        self.data_spec: dict[str, Any] = json.loads(described["data_spec"])

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Give probabilities, float32 (N, classes), of uint8 images (N, C, H, W)."""
        (probabilities,) = self.session.run(["probabilities"], {"image": images})
        return np.asarray(probabilities)
