"""Saved models in other formats: StableHLO and JAX's (`stablehlo`), ONNX (`onnx_graph`), each held
against what the model computes here (`check`).
"""
