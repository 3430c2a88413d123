"""ONNX graphs of fitted models, written node by node."""
