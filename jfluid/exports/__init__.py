"""Conversion of saved models: StableHLO and JAX (`stablehlo`), ONNX (`onnx_model`).

Each export is compared with the outputs of the model here (`model.compare`).
"""
