"""ONNX files. Running one needs onnxruntime and NumPy, not torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import data_spec_of, first_line

if TYPE_CHECKING:
    from ..deployed import Deployed

SUFFIX = ".onnx"
NEEDS = ("onnx", "onnxscript", "onnxruntime")
LARGEST = 2**31 - 2**20  # bytes; protobuf reads no longer message


def write(model: "Deployed", described: dict[str, str], path: Path, opset: int) -> None:
    """
    Raises:
        ValueError: the weights are too large for one file, or the exporter wrote another opset.
    """
    import onnx
    import torch

    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > LARGEST:
        raise ValueError(f"an ONNX file holds up to 2 GB, the weights have {size / 1e9:.1f} GB. Try torch_export.")
    program = torch.onnx.export(
        model,
        (model.example(),),
        input_names=["image"],
        output_names=["probabilities"],
        opset_version=opset,
        dynamo=True,
        dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
        external_data=False,
        verbose=False,
    )
    assert program is not None
    proto = program.model_proto
    # An exporter that lacks an operator in an opset warns and writes another one.
    (written,) = (entry.version for entry in proto.opset_import if entry.domain == "")
    if written != opset:
        raise ValueError(f"torch wrote opset {written} instead of {opset}. Try export.opset={written}.")
    for node in [*proto.graph.node, *(node for function in proto.functions for node in function.node)]:
        # The exporter leaves stack traces with this machine's paths.
        del node.metadata_props[:]
    onnx.helper.set_model_props(proto, described)
    onnx.checker.check_model(proto)
    onnx.save(proto, path)


class OnnxClassifier:
    def __init__(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Threads that wait busily for the next batch would take the cores from those that read images.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self.session = onnxruntime.InferenceSession(path, options, providers=onnxruntime.get_available_providers())
        except Exception as error:  # onnxruntime's errors have no common class of their own
            raise ValueError(f"onnxruntime cannot load it: {first_line(error)}") from error
        self.data_spec: dict[str, Any] = data_spec_of(self.session.get_modelmeta().custom_metadata_map)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        (probabilities,) = self.session.run(["probabilities"], {"image": images})
        return np.asarray(probabilities)


classifier = OnnxClassifier
